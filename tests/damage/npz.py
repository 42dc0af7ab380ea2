"""Archives of arrays that no honest program writes."""

import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def npy(
    shape: Any = (6, 8, 8), dtype: str = "|u1", body: bytes | None = None, magic: bytes = b"\x93NUMPY\x01\x00"
) -> bytes:
    head = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape!r}, }}".encode()
    body = bytes(6 * 64) if body is None else body
    return magic + struct.pack("<H", len(head) + 1) + head + b"\n" + body


def packed(path: Path, train_x: bytes, kind: int = zipfile.ZIP_STORED, **more: bytes) -> None:
    labels = npy((6,), body=bytes([0, 0, 0, 1, 1, 1]))
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name, content in {"train_x.npy": train_x, "train_y.npy": labels, **more}.items():
            archive.writestr(name, content)


def _edited(path: Path, kind: int, at: int, value: bytes, local: int = 0) -> None:
    """Bytes of the first entry of the central directory, and of its local header, replaced."""
    packed(path, npy(), kind)
    content = bytearray(path.read_bytes())
    entry = content.index(b"PK\x01\x02")
    content[entry + at : entry + at + len(value)] = value
    if local:
        content[local : local + len(value)] = value
    path.write_bytes(content)


def _twice(path: Path) -> None:
    packed(path, npy(), **{"train_z.npy": npy()})
    path.write_bytes(path.read_bytes().replace(b"train_z.npy", b"train_x.npy"))


def _cut(path: Path) -> None:
    packed(path, npy())
    path.write_bytes(path.read_bytes()[:-30])


def encrypted(path: Path) -> None:
    _edited(path, zipfile.ZIP_STORED, 8, b"\x01\x00")


ZIPPED = zipfile.ZIP_DEFLATED
CRAFTED: dict[str, Callable[[Path], None]] = {
    "encrypted": encrypted,
    "two members of one name": _twice,
    "an absolute path": lambda path: packed(path, npy(), **{"/etc/passwd": npy()}),
    "a path upwards": lambda path: packed(path, npy(), **{"../up.npy": npy()}),
    "objects": lambda path: packed(path, npy(dtype="|O")),
    "objects, compressed": lambda path: packed(path, npy(dtype="|O"), ZIPPED),
    "wrong magic": lambda path: packed(path, npy(magic=b"\x93NUMPI\x01\x00")),
    "a version of the future": lambda path: packed(path, npy(magic=b"\x93NUMPY\x09\x00")),
    "a shape beyond the file": lambda path: packed(path, npy((10**15, 8, 8))),
    "a shape beyond memory": lambda path: packed(path, npy((10**15, 8, 8)), ZIPPED),
    "a shape beyond all numbers": lambda path: packed(path, npy((10**30, 8, 8)), ZIPPED),
    "a shape with a negative side": lambda path: packed(path, npy((-6, 8, 8))),
    "a shape into the next member": lambda path: packed(path, npy((7, 8, 8))),
    "a shape of brackets": lambda path: packed(path, npy("(" * 9_000)),
    "no numbers": lambda path: packed(path, npy(dtype="zz")),
    "declared size too large": lambda path: _edited(path, ZIPPED, 24, struct.pack("<I", 2**32 - 2)),
    "unknown compression": lambda path: _edited(path, ZIPPED, 10, struct.pack("<H", 97), local=8),
    "bzip2 that is none": lambda path: _edited(path, ZIPPED, 10, struct.pack("<H", 12), local=8),
    "lzma that is none": lambda path: _edited(path, ZIPPED, 10, struct.pack("<H", 14), local=8),
    "not a zip": _cut,
    "a folder": Path.mkdir,
}
