"""The prepared format: one .npz a domain with train_x, train_y, test_x, test_y as bytes; mapped, not loaded."""

import hashlib
import os
import struct
import uuid
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fedlgd.core.errors import DataError
from fedlgd.core.types import LabelledSet, Scale, Site

Arrays = dict[str, NDArray[Any]]
Pixels = NDArray[np.uint8]

SEAL_SIZE = 32
LOCAL_HEADER = 30  # bytes of a zip member's header before its name
PARTS = ("train", "test")


def read_arrays(path: Path) -> Arrays:
    """The arrays of an .npz. Those stored plainly are mapped: they cost memory only where they are read."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {m.filename.removesuffix(".npy"): _array(path, archive, m) for m in archive.infolist()}
    except (zipfile.BadZipFile, zlib.error, struct.error, ValueError, EOFError, MemoryError) as error:
        raise DataError(f"{path} is not a readable .npz ({error}); make or fetch it again") from error


def _array(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    if member.compress_type != zipfile.ZIP_STORED:
        with archive.open(member) as unpacked:
            return np.lib.format.read_array(unpacked, allow_pickle=False)
    with path.open("rb") as file:
        file.seek(member.header_offset + LOCAL_HEADER - 4)
        name, extra = struct.unpack("<HH", file.read(4))
        file.seek(name + extra, os.SEEK_CUR)
        shape, fortran, dtype = _header(file)
        if dtype.hasobject:
            raise ValueError(f"{member.filename} holds Python objects")
        if 0 in shape:
            return np.empty(shape, dtype)
        order: Any = "F" if fortran else "C"  # "c": copy on write, as torch wants memory it may write
        return np.memmap(path, dtype, "c", file.tell(), shape, order)


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(file)


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """An .npz stored plainly, so that it can be mapped: complete under its name, or not there at all.

    Its hash goes behind it, where readers of .npz do not look.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with beside.open("x+b") as file:
            np.savez(file, **arrays)
            file.seek(0)
            file.write(_hash_of(file, beside.stat().st_size))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def sealed(path: Path) -> bool:
    """Whether the file is as `write_arrays` left it."""
    with path.open("rb") as file:
        body = path.stat().st_size - SEAL_SIZE
        return body > 0 and _hash_of(file, body) == file.read()


def _hash_of(file: IO[bytes], size: int) -> bytes:
    """The hash of the next `size` bytes."""
    digest = hashlib.blake2b(digest_size=SEAL_SIZE)
    while size > 0 and (chunk := file.read(min(size, 1 << 20))):
        digest.update(chunk)
        size -= len(chunk)
    return digest.digest()


def read_domain(path: Path, parts: tuple[str, ...] = PARTS) -> Arrays:
    """The arrays of one prepared domain, checked: bytes, one label per image, both of a size."""
    arrays = read_arrays(path)
    for part in parts:
        for key in (f"{part}_x", f"{part}_y"):
            if key not in arrays:
                raise DataError(
                    f"{path} has no array {key!r}; a prepared domain has train_x, train_y, test_x, test_y"
                )
            if arrays[key].dtype != np.uint8:
                raise DataError(f"{path}: {key} is {arrays[key].dtype}; a prepared domain holds uint8")
        x, y = arrays[f"{part}_x"], arrays[f"{part}_y"]
        if x.ndim not in (3, 4) or (x.ndim == 4 and x.shape[3] != 3) or y.ndim != 1 or len(x) != len(y):
            raise DataError(
                f"{path}: {part}_x has shape {x.shape} and {part}_y {y.shape}; "
                "give (n, height, width) or (n, height, width, 3), and one label per image"
            )
    return arrays


def fingerprint(path: Path) -> str:
    """A hash of the names, sizes and checksums in an .npz, which stand in its directory: no image is read."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = [(m.filename, m.file_size, m.CRC) for m in archive.infolist()]
    except zipfile.BadZipFile as error:
        raise DataError(f"{path} is not a readable .npz ({error}); make or fetch it again") from error
    return hashlib.blake2b(repr(members).encode(), digest_size=6).hexdigest()


def resized(pixels: Pixels, side: int) -> Pixels:
    """Grey (n, h, w) or colour (n, h, w, 3) as planes (n, 1 or 3, side, side); bilinear, as torchvision resizes."""
    if pixels.shape[1:3] != (side, side):
        pixels = np.stack([_resize(image, side) for image in pixels]) if len(pixels) else pixels[:, :side, :side]
    planes = pixels[:, None] if pixels.ndim == 3 else pixels.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(planes)


def _resize(image: Pixels, side: int) -> Pixels:
    return np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling.BILINEAR))


def rgb(planes: Pixels) -> Tensor:
    """Planes (n, 1 or 3, h, w), or grey (n, h, w), as RGB; grey becomes three equal channels without a copy."""
    x = torch.from_numpy(planes if planes.ndim == 4 else planes[:, None])
    return x.expand(-1, 3, -1, -1)


def site_of(name: str, arrays: Arrays, classes: tuple[str, ...], scale: Scale = Scale(), note: str = "") -> Site:
    """A site from arrays whose images are planes already."""
    train, test = (
        LabelledSet(rgb(arrays[f"{part}_x"]), torch.from_numpy(arrays[f"{part}_y"].astype(np.int64)), scale)
        for part in PARTS
    )
    return Site(name, train, test, classes, note)
