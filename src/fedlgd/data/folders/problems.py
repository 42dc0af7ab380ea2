"""Where the images of one site come from: files, or the rows of a prepared .npz. Nothing is decoded until asked."""

import re
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from PIL import Image

from fedlgd.core.errors import DataError
from fedlgd.data.images import MOST_BYTES, Header, ImageError, Picture, read_header, read_image, regular_file, shown
from fedlgd.data.prepared import PARTS, Arrays, Pixels, read_domain

Part = Literal["train", "test", ""]
Severity = Literal["error", "warning"]

LONGEST_NAME = 100
MOST_UNPACKED = 16 * MOST_BYTES


@dataclass(frozen=True, slots=True)
class Problem:
    """Something about a tree of images that should be put right: an error stops a run, a warning does not."""

    severity: Severity
    site: str
    file: str
    problem: str
    way_out: str


class Holding(Protocol):
    """The images of one site by number. A part "" is still to be divided into training and test images."""

    @property
    def name(self) -> str: ...
    @property
    def labels(self) -> tuple[str, ...]: ...
    @property
    def parts(self) -> tuple[Part, ...]: ...
    @property
    def stamp(self) -> tuple[object, ...]:
        """Changes whenever the images may have changed."""

    def where(self, i: int) -> str: ...
    def header(self, i: int) -> Header: ...
    def read(self, i: int) -> Picture: ...


@dataclass(frozen=True, slots=True)
class Entry:
    """One image file with its class."""

    path: Path
    label: str
    part: Part


@dataclass(frozen=True)
class Files:
    """A site whose images are files inside `root`, a resolved path."""

    name: str
    root: Path
    entries: tuple[Entry, ...]

    @cached_property
    def labels(self) -> tuple[str, ...]:
        return tuple(entry.label for entry in self.entries)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """Training images alone are still to be divided."""
        divided = any(entry.part == "test" for entry in self.entries)
        return tuple(entry.part if divided else "" for entry in self.entries)

    @property
    def stamp(self) -> tuple[object, ...]:
        return tuple((self.where(i), e.label, e.part, _stamp(e.path)) for i, e in enumerate(self.entries))

    def where(self, i: int) -> str:
        path = self.entries[i].path
        return shown(path.relative_to(self.root) if path.is_relative_to(self.root) else path)

    def header(self, i: int) -> Header:
        return read_header(self.entries[i].path, self.root)

    def read(self, i: int) -> Picture:
        return read_image(self.entries[i].path, self.root)


@dataclass(frozen=True)
class Packed:
    """A site whose images are the rows of a prepared .npz, training rows first; the test part may be missing."""

    name: str
    root: Path
    path: Path

    @cached_property
    def _arrays(self) -> Arrays:
        try:
            with regular_file(self.path, self.root), zipfile.ZipFile(self.path) as archive:
                _refuse_bomb(self.path, archive)
                names = {member.filename.removesuffix(".npy") for member in archive.infolist()}
            return read_domain(self.path, PARTS if "test_x" in names else PARTS[:1])
        except (zipfile.BadZipFile, MemoryError) as error:
            raise ImageError(self.path, f"is not a readable .npz ({error})") from error

    @cached_property
    def _rows(self) -> list[tuple[Part, int]]:
        parts: list[Part] = ["train", "test"] if "test_x" in self._arrays else ["train"]
        return [(part, row) for part in parts for row in range(len(self._arrays[f"{part}_y"]))]

    @cached_property
    def labels(self) -> tuple[str, ...]:
        return tuple(str(self._arrays[f"{part}_y"][row]) for part, row in self._rows)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        return tuple(part if "test_x" in self._arrays else "" for part, _ in self._rows)

    @property
    def stamp(self) -> tuple[object, ...]:
        return (self.name, _stamp(self.path))

    def where(self, i: int) -> str:
        part, row = self._rows[i]
        return f"{shown(self.path.name)}, {part}_x[{row}]"

    def header(self, i: int) -> Header:
        pixels = self._pixels(i)
        return Header(pixels.shape[1], pixels.shape[0], pixels.ndim == 2)

    def read(self, i: int) -> Picture:
        return Picture(Image.fromarray(np.ascontiguousarray(self._pixels(i))))

    def _pixels(self, i: int) -> Pixels:
        part, row = self._rows[i]
        pixels: Pixels = self._arrays[f"{part}_x"][row]
        return pixels


def _refuse_bomb(path: Path, archive: zipfile.ZipFile) -> None:
    """Packed arrays are unpacked in memory: a small file may claim to be a huge one."""
    size = sum(m.file_size for m in archive.infolist() if m.compress_type != zipfile.ZIP_STORED)
    if size > MOST_UNPACKED:
        raise ImageError(path, f"unpacks to {size:,} bytes", "store it unpacked (np.savez), which is not limited")


def _stamp(path: Path) -> tuple[int, ...]:
    """Zeros for a file that is not there: reading it will say so."""
    try:
        info = path.stat()
    except (OSError, ValueError):
        return (0, 0, 0)
    return (info.st_size, info.st_mtime_ns, info.st_ctime_ns)


def natural(names: Iterable[str]) -> list[str]:
    """In the order people count: "9" before "10", "a" beside "A"."""
    return sorted(names, key=natural_key)


def natural_key(name: str) -> tuple[list[str | int], str]:
    pieces = re.split(r"([0-9]+)", name)
    return [int(piece) if i % 2 else piece.casefold() for i, piece in enumerate(pieces)], name


def checked_name(text: str, what: str, path: Path) -> str:
    """A name for a site or a class that every table and file can hold."""
    if not text.strip() or not text.isprintable() or len(text) > LONGEST_NAME:
        raise DataError(
            f"{shown(path)}: {shown(text[: 2 * LONGEST_NAME])!r} cannot name a {what}; "
            f"use up to {LONGEST_NAME} printable letters"
        )
    return text
