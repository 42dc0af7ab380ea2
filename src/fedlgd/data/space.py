"""Room on the disk: asked for before, and said plainly when it runs out."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedlgd.core.errors import DataError
from fedlgd.data.home import HOME_VARIABLE

SPARE = 32_000_000  # bytes that should be left


def refuse_without_room(folder: Path, needed: int, what: str) -> None:
    """An error if the disk that will hold `folder` has fewer free bytes than needed."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    if free < needed + SPARE:
        raise DataError(
            f"{what} needs {readable(needed + SPARE)} in {folder}, but {readable(free)} are free; "
            f"free space, or set {HOME_VARIABLE} to a folder on a larger disk"
        )


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """A failed write says which file and what to do."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"cannot write {path}: {error.strerror or error}; free space, or set {HOME_VARIABLE} to another "
            "folder, then run the same command again"
        ) from error


def readable(size: int) -> str:
    unit, name = next(((u, n) for u, n in ((1e9, "GB"), (1e6, "MB")) if size >= u), (1e3, "kB"))
    return f"{size / unit:.1f} {name}"
