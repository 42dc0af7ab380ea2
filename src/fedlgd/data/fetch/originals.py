"""What every reader of an original shares: damage is an error that names the file."""

import contextlib
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlgd.core.errors import DataError, FedlgdError
from fedlgd.data.prepared import Pixels

Images = tuple[Pixels, Pixels]

DAMAGE = (OSError, EOFError, ValueError, TypeError, IndexError, KeyError, OverflowError, NotImplementedError)
BROKEN = (struct.error, zlib.error, tarfile.TarError, zipfile.BadZipFile)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Whatever a parser trips over in a damaged file becomes a `DataError` that names it."""
    try:
        yield
    except FedlgdError:
        raise
    except (*DAMAGE, *BROKEN) as error:
        if isinstance(error, FileNotFoundError):
            raise missing(path.parent, path.name) from error
        raise DataError(f"{path} is not what it should be ({error}); download it again") from error


def missing(folder: Path, what: str) -> DataError:
    return DataError(f"{folder} has no {what}")


def paired(where: object, x: NDArray[Any], y: NDArray[Any]) -> Images:
    """Images and labels, one each, as bytes; labels are digits."""
    if len(x) != len(y):
        raise DataError(f"{where} has {len(x)} images but {len(y)} labels; download it again")
    return x, labels_of(where, y)


def labels_of(where: object, y: NDArray[Any]) -> Pixels:
    if len(y) and not (y.min() >= 0 and y.max() <= 9 and np.array_equal(y, np.floor(y))):
        raise DataError(f"{where} has labels from {y.min()} to {y.max()}; ten classes are labelled 0 to 9")
    return y.astype(np.uint8)
