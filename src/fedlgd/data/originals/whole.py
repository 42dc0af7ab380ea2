"""Folders that are whole or absent."""

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fedlgd.core.errors import DataError
from fedlgd.data.space import writing

CHUNK = 1 << 20


@contextmanager
def made_whole(folder: Path) -> Iterator[Path]:
    """A folder to fill, renamed to `folder` at the end; an error or interrupt leaves the old one, or none."""
    beside = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    with writing(folder):
        beside.mkdir(parents=True)
    try:
        yield beside
        if folder.exists():
            old = beside.with_name(f"{beside.name}.old")
            folder.rename(old)
            beside.rename(folder)
            shutil.rmtree(old)
        else:
            beside.rename(folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def pour(stream: IO[bytes], target: Path, size: int) -> None:
    """Copy just `size` bytes to a new file and have them on the disk."""
    left = size
    with writing(target), target.open("xb") as file:
        while left and (chunk := stream.read(min(left, CHUNK))):
            left -= file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    if left:
        raise DataError(f"{target.name} ends {left} bytes early in its archive; download it again")
