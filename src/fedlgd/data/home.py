"""Where images come from on this machine: files inside installed packages, and files made once and kept."""

import hashlib
import importlib.util
import io
import logging
import os
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlgd.core.errors import DataError

Arrays = dict[str, NDArray[Any]]

HOME_VARIABLE = "FEDLGD_DATA"
DIGEST_SIZE = 32

log = logging.getLogger(__name__)


def data_home() -> Path:
    """The directory named by FEDLGD_DATA, else the user's cache directory. It may not exist yet."""
    chosen = os.environ.get(HOME_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    import pooch  # only here: it takes longer to import than everything else in this module

    return Path(pooch.os_cache("fedlgd"))


def package_file(package: str, path: str) -> Path:
    """A data file of an installed package, found without running the package's (slow) code."""
    spec = importlib.util.find_spec(package)
    roots = (spec.submodule_search_locations if spec else None) or []
    for root in roots:
        if (file := Path(root, path)).is_file():
            return file
    raise DataError(f"the package {package!r} has no file {path!r}; install the dependencies of fedlgd again")


def kept(name: str, make: Callable[[], Arrays]) -> Arrays:
    """The arrays under `name` in the data home; made, and kept there if possible, when absent or damaged.

    Two processes may do this at once: each writes a file of its own and the last to finish wins.
    A home that cannot be written costs the time to make the arrays again, never the run.
    """
    path = data_home() / f"{name}.npz"
    found = _read(path)
    if found is not None:
        return found
    made = make()
    try:
        _write(path, made)
    except OSError as error:
        log.warning(
            "cannot keep %s (%s), so it is made again each time; set %s to a directory that can be written",
            path,
            error.strerror or error,
            HOME_VARIABLE,
        )
    return made


def _read(path: Path) -> Arrays | None:
    """The arrays in a file whose hash holds. Nothing is parsed before that is known."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    body, digest = content[:-DIGEST_SIZE], content[-DIGEST_SIZE:]
    if _digest(body) != digest:
        log.warning("%s is damaged; making it again", path)
        return None
    with np.load(io.BytesIO(body), allow_pickle=False) as arrays:
        return dict(arrays)


def _write(path: Path, arrays: Mapping[str, Any]) -> None:
    """An .npz with its hash behind it (which numpy ignores): complete under its name, or not there at all."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    body = buffer.getvalue()
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with beside.open("xb") as file:
            file.write(body)
            file.write(_digest(body))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=DIGEST_SIZE).digest()
