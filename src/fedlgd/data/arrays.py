"""Arrays on disk: prepared domains in the data home, one .npz each, and what was made from them in the cache home.

Arrays are mapped."""

import hashlib
import logging
import lzma
import math
import os
import re
import shutil
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np
import torch
from numpy.random import PCG64, Generator
from numpy.typing import NDArray
from PIL import Image

from fedlgd.core.errors import DataError
from fedlgd.core.files import OLD, clear_parts, write_atomic, writing
from fedlgd.core.homes import CACHE_VARIABLE, DATA_VARIABLE, cache_home, data_home
from fedlgd.core.text import number_of_bytes
from fedlgd.core.types import LabelledSet, Scale, Site, Stream

Arrays = dict[str, NDArray[Any]]
Pixels = NDArray[np.uint8]

PARTS = ("train", "test")
SEAL_SIZE = 32
LOCAL_HEADER_BYTES = 30  # of a zip member before its name
SPARE_BYTES = 32_000_000  # that stay free on the disk
MAX_UNPACKED_BYTES = 8 << 30  # compressed arrays are unpacked in memory
UNREADABLE = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, RuntimeError, EOFError, OSError, MemoryError),
    *(ValueError, LookupError, TypeError, ArithmeticError, SyntaxError, TokenError),
)

HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
    (3, 0): np.lib.format.read_array_header_2_0,
}

log = logging.getLogger(__name__)


def numpy_generator(rng: Stream) -> Generator:
    """PCG64 by name: numpy may change its default generator."""
    return Generator(PCG64(rng.number()))


def saving(path: Path) -> AbstractContextManager[None]:
    """A failed write to the data home is a `DataError` that names the file and a solution."""
    way_out = f"Free space, or set {DATA_VARIABLE} to a folder on a larger disk, then re-run the same command"
    return writing(path, way_out, DataError)


def refuse_without_space(folder: Path, needed: int, what: str) -> None:
    """An error if the disk that will hold `folder` has fewer than `needed` free bytes."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < needed + SPARE_BYTES:
        wanted = number_of_bytes(needed + SPARE_BYTES)
        raise DataError("disk-full", what=what, folder=folder, needed=wanted, free=number_of_bytes(free))


def read_arrays(path: Path) -> Arrays:
    """The arrays of an .npz. Uncompressed ones are mapped: they use memory only where they are read."""
    with open_npz(path) as archive:
        return {m.filename.removesuffix(".npy"): _array(path, archive, m) for m in archive.infolist()}


@contextmanager
def open_npz(path: Path) -> Iterator[zipfile.ZipFile]:
    """The archive, its members checked by name and size; whatever reading it raises is a `DataError`."""
    try:
        with zipfile.ZipFile(path) as archive:
            _check_members(archive.infolist())
            yield archive
    except DataError:
        raise
    except UNREADABLE as error:
        raise DataError("npz-unreadable", path=path, error=str(error) or type(error).__name__) from error


def _check_members(members: Sequence[zipfile.ZipInfo]) -> None:
    """An .npz holds each array once, in a plain file that is not encrypted, and unpacks to a sane size."""
    names = Counter(member.filename for member in members)
    for member in members:
        if names[member.filename] > 1 or not re.fullmatch(r"[\w .-]+", member.filename):
            raise ValueError(f"a member is called {member.filename[:100]!r}, or there are two of that name")
        if member.flag_bits & 1:
            raise ValueError(f"{member.filename} is encrypted")
    unpacked = sum(member.file_size for member in members if member.compress_type != zipfile.ZIP_STORED)
    if unpacked > MAX_UNPACKED_BYTES:
        raise ValueError(f"it unpacks to {unpacked:,} bytes; save it uncompressed with np.savez")


def _array(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    """A compressed array is unpacked; an uncompressed one is mapped from where it is in the file."""
    if member.compress_type != zipfile.ZIP_STORED:
        with archive.open(member) as unpacked:
            array: NDArray[Any] = np.lib.format.read_array(unpacked, allow_pickle=False)
            if unpacked.tell() != member.file_size:
                raise ValueError(f"{member.filename} does not have the size that its header says")
            return array
    with path.open("rb") as file:
        file.seek(member.header_offset + LOCAL_HEADER_BYTES - 4)
        name, extra = struct.unpack("<HH", file.read(4))
        begin = file.seek(name + extra, os.SEEK_CUR)
        version = np.lib.format.read_magic(file)
        if version not in HEADERS:
            raise ValueError(f"{member.filename} has format {version}")
        shape, fortran, dtype = HEADERS[version](file)
        if dtype.hasobject:
            raise ValueError(f"{member.filename} holds Python objects")
        if file.tell() - begin + math.prod(shape) * dtype.itemsize != member.file_size:
            raise ValueError(f"{member.filename} does not have the size that its header says")
        if 0 in shape:
            return np.empty(shape, dtype)
        order: Any = "F" if fortran else "C"
        # "c", copy on write: torch needs writable memory
        return np.memmap(path, dtype, "c", file.tell(), shape, order)


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write an uncompressed .npz, completely or not at all; its hash is appended, which readers of .npz ignore."""

    def save(file: IO[bytes]) -> None:
        np.savez(file, **arrays)
        file.flush()
        with Path(file.name).open("rb") as written:
            file.write(_hash(written, file.tell()))

    write_atomic(path, save)


def is_sealed(path: Path) -> bool:
    """Whether the file is exactly as `write_arrays` wrote it."""
    with path.open("rb") as file:
        body = path.stat().st_size - SEAL_SIZE
        return body > 0 and _hash(file, body) == file.read()


def _hash(file: IO[bytes], size: int) -> bytes:
    """The hash of the next `size` bytes."""
    state = hashlib.blake2b(digest_size=SEAL_SIZE)
    while size > 0 and (chunk := file.read(min(size, 1 << 20))):
        state.update(chunk)
        size -= len(chunk)
    return state.digest()


def load_or_make(name: str, make: Callable[[], Arrays]) -> Arrays:
    """The arrays under `name` in the cache; if absent or damaged they are made and, if possible, stored."""
    found = load_arrays(name)
    return store_arrays(name, make()) if found is None else found


def load_arrays(name: str) -> Arrays | None:
    """The arrays under `name` in the cache; None if absent or damaged."""
    path = cache_home() / f"{name}.npz"
    if path.is_file():
        if is_sealed(path):
            return read_arrays(path)
        log.warning("%s is damaged; it is made again", path)
    return None


def store_arrays(name: str, made: Arrays) -> Arrays:
    """Store arrays in the cache and map them from there; if it is not writable they stay in memory.

    Several processes may do this at once: each writes a file of its own and the last one to finish wins.
    """
    path = cache_home() / f"{name}.npz"
    clear_parts(path.parent, OLD)
    try:
        write_arrays(path, made)
    except OSError as error:
        reason = error.strerror or error
        log.warning("cannot cache %s (%s); set %s to a writable folder", path, reason, CACHE_VARIABLE)
        return made
    return read_arrays(path)


def cache_key(*values: object, size: int = 6) -> str:
    """A short hash of everything that cached arrays depend on."""
    return hashlib.blake2b(repr(values).encode(), digest_size=size).hexdigest()


def npz_digest(path: Path) -> str:
    """A hash of the names, sizes and checksums in the directory of an .npz; "" if there is no file."""
    if not path.is_file():
        return ""
    with open_npz(path) as archive:
        members = [(m.filename, m.file_size, m.CRC) for m in archive.infolist()]
    return hashlib.blake2b(repr(members).encode(), digest_size=6).hexdigest()


def load_domain(name: str, hint: str, parts: tuple[str, ...] = PARTS) -> Arrays:
    """The prepared domain `name` of the data home; `hint` says how to get it."""
    path = data_home() / f"{name}.npz"
    if not path.is_file():
        raise DataError("files-missing", home=data_home(), files=[f"{name}.npz"], way_out=hint)
    return read_domain(path, parts)


def read_domain(path: Path, parts: tuple[str, ...] = PARTS) -> Arrays:
    """The arrays of one prepared domain, checked: uint8 images and labels, one label per image."""
    arrays = read_arrays(path)
    for part in parts:
        for key in (f"{part}_x", f"{part}_y"):
            if key not in arrays:
                raise DataError("domain-without-array", path=path, array=key)
            if arrays[key].dtype != np.uint8:
                raise DataError("domain-of-wrong-type", path=path, array=key, dtype=arrays[key].dtype)
        x, y = arrays[f"{part}_x"], arrays[f"{part}_y"]
        if x.ndim not in (3, 4) or (x.ndim == 4 and x.shape[3] != 3) or y.ndim != 1 or len(x) != len(y):
            raise DataError("domain-of-wrong-shape", path=path, part=part, x=x.shape, y=y.shape)
    return arrays


def resized(pixels: Pixels, side: int) -> Pixels:
    """Grey (n, h, w) or colour (n, h, w, 3) as planes (n, 1 or 3, side, side); bilinear, as torchvision resizes."""

    def resize(image: Pixels) -> Pixels:
        return np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling.BILINEAR))

    if pixels.shape[1:3] != (side, side):
        pixels = np.stack([resize(image) for image in pixels]) if len(pixels) else pixels[:, :side, :side]
    planes = pixels[:, None] if pixels.ndim == 3 else pixels.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(planes)


def resized_domain(whole: Arrays, side: int) -> Arrays:
    """The images and labels of a prepared domain, images as planes of one size."""
    train, test = ((resized(whole[f"{part}_x"], side), whole[f"{part}_y"]) for part in PARTS)
    return both_parts(train, test)


def both_parts(train: tuple[Any, Any], test: tuple[Any, Any]) -> Arrays:
    """Images and labels of the two parts under the names of a prepared domain."""
    return {"train_x": train[0], "train_y": train[1], "test_x": test[0], "test_y": test[1]}


def site_from_arrays(
    name: str, arrays: Arrays, classes: tuple[str, ...], scale: Scale = Scale(), note: str = ""
) -> Site:
    """A site from planes (n, 1 or 3, h, w) or (n, h, w); grey becomes three equal channels without a copy."""
    parts = []
    for part in PARTS:
        x, y = arrays[f"{part}_x"], arrays[f"{part}_y"].astype(np.int64)
        planes = torch.from_numpy(x if x.ndim == 4 else x[:, None]).expand(-1, 3, -1, -1)
        parts.append(LabelledSet(planes, torch.from_numpy(y), scale))
    return Site(name, parts[0], parts[1], classes, note)


def site_share(arrays: Arrays, i: int) -> Arrays:
    """The arrays of site i where one file holds several: its own training images, the test images of all."""
    mine = slice(*arrays["bounds"][i : i + 2].tolist())
    return arrays | {key: arrays[key][mine] for key in ("train_x", "train_y")}
