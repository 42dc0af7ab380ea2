"""Readers of the original files of published data sets, as arrays.

The MATLAB reader is our own and reads plain numbers only: scipy's crashes the interpreter on some damaged files.
"""

import bz2
import gzip
import io
import math
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from fedlgd.core.errors import DataError, FedlgdError
from fedlgd.core.meter import tick
from fedlgd.data.arrays import PARTS, Arrays, Pixels, both_parts

Images = tuple[Pixels, Pixels]

DAMAGE = (
    *(OSError, EOFError, ValueError, TypeError, IndexError, KeyError, OverflowError, NotImplementedError),
    *(struct.error, zlib.error, tarfile.TarError, zipfile.BadZipFile),
)

IDX_BYTES = 8  # IDX type code of unsigned bytes
MAX_IDX_BYTES = 1 << 30

USPS_SIDE = 16
MAX_USPS_BYTES = 1 << 27  # bytes of text: several times the training file

GANIN = ("synth_train_32x32.mat", "synth_test_32x32.mat")
MAT_HEADER = 128
MAT_VERSION = b"\x00\x01IM"  # version 5, little-endian, at the end of the header
MAT_MATRIX, MAT_COMPRESSED = 14, 15
MAT_TYPES = {1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"}
MAT_CLASSES = ("nothing", "cell", "struct", "object", "char", "sparse", "double", "single", "int8", "uint8")
MAT_NUMBERS = range(6, 16)
MAT_UINT8 = 9
MAX_MAT_BYTES = 1 << 32  # bytes of a variable: three times SynthDigits

CIFAR10 = "cifar-10-binary.tar.gz"
BATCHES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_BATCH = "test_batch.bin"
RECORD_BYTES = 1 + 3 * 32 * 32  # bytes: a label, then 1024 red, 1024 green and 1024 blue pixels
MAX_BATCH_BYTES = 10_000 * RECORD_BYTES

KAGGLE = ("synthetic-digits.zip", "archive.zip")  # file names of the download from its command and from its page
PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg")
MAX_PICTURE_BYTES = 1 << 24  # bytes of one picture or list of labels
PART_OF = dict.fromkeys(("mnist_m_train", "imgs_train", "train", "training"), "train")
PART_OF |= dict.fromkeys(("mnist_m_test", "imgs_valid", "test", "testing"), "test")


@contextmanager
def reading_original(path: Path) -> Iterator[None]:
    """Any exception that a damaged file causes becomes a `DataError` that names the file."""
    try:
        yield
    except FedlgdError:
        raise
    except FileNotFoundError as error:
        raise DataError("original-missing", folder=path.parent, what=path.name) from error
    except DAMAGE as error:
        raise DataError("original-damaged", path=path, error=error) from error


def paired_images(where: object, x: NDArray[Any], y: NDArray[Any]) -> Images:
    """Images and one label from 0 to 9 per image."""
    if len(x) != len(y):
        raise DataError("original-labels-do-not-match", where=where, images=len(x), labels=len(y))
    return x, digit_labels(where, y)


def digit_labels(where: object, y: NDArray[Any]) -> Pixels:
    if len(y) and not (y.min() >= 0 and y.max() <= 9 and np.array_equal(y, np.floor(y))):
        raise DataError("original-labels-out-of-range", where=where, low=y.min(), high=y.max())
    return y.astype(np.uint8)


def read_mnist(folder: Path) -> Arrays:
    """The four files of MNIST as (n, 28, 28)."""

    def part(name: str) -> Images:
        x = read_idx(folder / f"{name}-images-idx3-ubyte.gz", 3)
        return paired_images(f"{folder}/{name}-*", x, read_idx(folder / f"{name}-labels-idx1-ubyte.gz", 1))

    return both_parts(part("train"), part("t10k"))


def read_idx(path: Path, dimensions: int) -> Pixels:
    """IDX: two zero bytes, a type, the number of dimensions, each dimension, then the values."""
    with reading_original(path), gzip.open(path) as file:
        zero, kind, count = struct.unpack(">HBB", file.read(4))
        if (zero, kind, count) != (0, IDX_BYTES, dimensions):
            raise DataError("idx-of-wrong-kind", path=path, dimensions=dimensions)
        shape = struct.unpack(f">{count}I", file.read(4 * count))
        size = math.prod(shape)
        content = file.read(size + 1) if size <= MAX_IDX_BYTES else b""
        if len(content) != size:
            raise DataError("idx-of-wrong-size", path=path, size=size)
        return np.frombuffer(content, np.uint8).reshape(shape)


def read_usps(folder: Path) -> Arrays:
    """Both files as (n, 16, 16); a value v becomes floor(255 (v + 1) / 2), as in torchvision."""
    return both_parts(read_libsvm(folder / "usps.bz2"), read_libsvm(folder / "usps.t.bz2"))


def read_libsvm(path: Path) -> Images:
    """One line per image, `label index:value ...`, labels 1 to 10, values in [-1, 1]."""
    with reading_original(path), bz2.open(path) as file:
        rows = [_libsvm_row(line) for line in file.read(MAX_USPS_BYTES).splitlines() if line.strip()]
    if not rows:
        raise DataError("usps-without-images", path=path)
    labels, values = np.array([label for label, _ in rows]), np.stack([value for _, value in rows])
    if not np.abs(values).max() <= 1:
        raise DataError("usps-out-of-range", path=path)
    pixels = ((values + 1) / 2 * 255).astype(np.uint8)
    return pixels.reshape(-1, USPS_SIDE, USPS_SIDE), digit_labels(path, labels - 1)


def _libsvm_row(line: bytes) -> tuple[int, NDArray[np.float32]]:
    """Label and values; the value of an absent index is 0."""
    label, *pairs = line.split()
    values = np.zeros(USPS_SIDE**2, np.float32)
    for pair in pairs:
        index, value = pair.split(b":")
        if int(index) < 1:
            raise ValueError(f"index {int(index)}; the first is 1")
        values[int(index) - 1] = float(value)
    return int(label), values


def read_svhn(folder: Path) -> Arrays:
    """The cropped digits without the extra part; label 10 is the digit 0."""
    return both_parts(*(_mat_file(folder / f"{part}_32x32.mat") for part in ("train", "test")))


def read_synth(folder: Path) -> Arrays:
    """Ganin's two files, unpacked or inside SynthDigits.zip."""
    if all((folder / name).is_file() for name in GANIN):
        return both_parts(*(_mat_file(folder / name) for name in GANIN))
    path = folder / "SynthDigits.zip"
    if not path.is_file():
        raise DataError("original-missing", folder=folder, what=f"SynthDigits.zip, nor {' and '.join(GANIN)}")
    found = []
    with reading_original(path), zipfile.ZipFile(path) as archive:
        for name in GANIN:
            with archive.open(name) as file:
                found.append(read_mat(file, path / name))
    return both_parts(*found)


def _mat_file(path: Path) -> Images:
    with reading_original(path), path.open("rb") as file:
        return read_mat(file, path)


def read_mat(file: IO[bytes], path: Path) -> Images:
    """X (h, w, 3, n) as (n, h, w, 3), a view, and y (n, 1) with label 10 as 0."""
    found = {variable.name: variable for variable in mat_variables(file)}
    for name in ("X", "y"):
        if name not in found:
            raise DataError("original-missing", folder=path, what=f"variable {name}")
    x, y = (found[name].numbers() for name in ("X", "y"))
    if found["X"].kind != MAT_UINT8 or x.dtype != np.uint8 or x.ndim != 4 or x.shape[2] != 3:
        raise DataError("mat-of-wrong-shape", path=path, dtype=x.dtype, shape=x.shape)
    return paired_images(path, x.transpose(3, 0, 1, 2), np.where(y == 10, 0, y).reshape(-1))


class MatVariable(NamedTuple):
    """A variable of a MATLAB file: its class, shape and stored values."""

    name: str
    kind: int
    shape: tuple[int, ...]
    values: NDArray[Any] | None

    def numbers(self) -> NDArray[Any]:
        """The values in their shape, the first index changing fastest."""
        if self.values is None or len(self.values) != math.prod(self.shape):
            kind = MAT_CLASSES[self.kind] if self.kind < len(MAT_CLASSES) else "an unknown class"
            raise ValueError(f"{self.name} is {kind} of shape {self.shape}, not as many numbers")
        return self.values.reshape(self.shape, order="F")


def mat_variables(file: IO[bytes]) -> Iterator[MatVariable]:
    """The variables of a MATLAB file, one after another."""
    if file.read(MAT_HEADER)[-len(MAT_VERSION) :] != MAT_VERSION:
        raise ValueError("not a MATLAB file of version 5")
    while tag := file.read(8):
        kind, size = struct.unpack("<II", tag)
        content = memoryview(file.read(size) if size < MAX_MAT_BYTES else b"")
        if len(content) != size:
            raise ValueError(f"it ends early: {size} bytes announced, {len(content)} found")
        if kind == MAT_COMPRESSED:
            inflate = zlib.decompressobj()
            content = memoryview(inflate.decompress(content, MAX_MAT_BYTES))
            if not inflate.eof:
                raise ValueError("a compressed variable ends early or is too large")
            kind = struct.unpack_from("<I", content)[0]
            content = content[8:]
        if kind == MAT_MATRIX:
            yield _variable(content)


def _variable(content: memoryview) -> MatVariable:
    """Flags, shape, name and values are four consecutive elements."""
    _, flags, at = _element(content, 0)
    kind = flags[0]
    _, shape, at = _element(content, at)
    _, name, at = _element(content, at)
    stored, values, at = _element(content, at) if kind in MAT_NUMBERS else (0, content[:0], at)
    numbers = np.frombuffer(values, MAT_TYPES[stored]) if stored in MAT_TYPES else None
    return MatVariable(bytes(name).decode("ascii"), kind, tuple(np.frombuffer(shape, "<i4").tolist()), numbers)


def _element(content: memoryview, at: int) -> tuple[int, memoryview, int]:
    """Type and bytes of the element at `at`, and where the next begins; up to four bytes are stored in the tag."""
    kind, size = struct.unpack_from("<II", content, at)
    begin, following = at + 8, at + 8 + (size + 7) // 8 * 8
    if kind >> 16:
        kind, size, begin, following = kind & 0xFFFF, kind >> 16, at + 4, at + 8
    if begin + size > len(content):
        raise ValueError("an element is larger than its variable")
    return kind, content[begin : begin + size], following


def tar_members(path: Path, names: tuple[str, ...] = ()) -> Iterator[tuple[PurePosixPath, int, IO[bytes]]]:
    """Path, size and content of the regular files, or of those with one of these names in any folder."""
    with tarfile.open(path) as archive:
        for member in archive:
            place = PurePosixPath(member.name)
            wanted = member.isfile() and (not names or place.name in names)
            if wanted and (stream := archive.extractfile(member)):
                yield place, member.size, stream


def read_cifar10(folder: Path) -> Arrays:
    """The five training batches and the test batch as (n, 32, 32, 3)."""
    path, batches = folder / CIFAR10, {}
    with reading_original(path):
        for place, _, stream in tar_members(path, (*BATCHES, TEST_BATCH)):
            batches[place.name] = _batch(stream.read(MAX_BATCH_BYTES + 1), f"{path}: {place.name}")
    if lost := {*BATCHES, TEST_BATCH} - batches.keys():
        raise DataError("original-missing", folder=path, what=", ".join(sorted(lost)))
    x, y = (np.concatenate([batches[name][i] for name in BATCHES]) for i in (0, 1))
    return both_parts((x, y), batches[TEST_BATCH])


def _batch(content: bytes, where: str) -> Images:
    if not content or len(content) % RECORD_BYTES or len(content) > MAX_BATCH_BYTES:
        raise DataError("batch-of-wrong-size", where=where, record=RECORD_BYTES)
    records = np.frombuffer(content, np.uint8).reshape(-1, RECORD_BYTES)
    return paired_images(where, records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), records[:, 0])


def read_mnist_m(folder: Path) -> Arrays:
    """Ganin's release, packed or unpacked, or one folder per digit; (n, 32, 32, 3) or the size that all have."""
    places = [folder / "mnist_m.tar.gz", folder / "mnist_m", folder]
    return read_pictures(_first(places, folder, "mnist_m.tar.gz, nor a folder mnist_m with its images"))


def read_synth_folder(folder: Path) -> Arrays:
    """imgs_train and imgs_valid with one folder per digit. Their sizes differ, so all are resized to 64x64."""
    places = [folder / "synthetic_digits", folder / "data" / "synthetic_digits", folder]
    wanted = f"{' or '.join(KAGGLE)}, nor a folder synthetic_digits with imgs_train and imgs_valid"
    return read_pictures(_first([*places, *(folder / name for name in KAGGLE)], folder, wanted), side=64)


def _first(places: list[Path], folder: Path, wanted: str) -> Path:
    """The first of the places that is a file, or a folder with a training and a test part."""
    for place in places:
        names = [path.name.lower() for path in place.iterdir() if path.is_dir()] if place.is_dir() else []
        if place.is_file() or {PART_OF.get(name) for name in names} >= {*PARTS}:
            return place
    raise DataError("original-missing", folder=folder, what=wanted)


class PicturesOfPart(NamedTuple):
    """The pictures of one part by name, and their labels by name."""

    pictures: dict[str, Pixels]
    labels: dict[str, int]


def read_pictures(root: Path, side: int = 0) -> Arrays:
    """All pictures below `root` sorted by name, resized to `side` if given.

    The label is the folder's name, a digit, or is listed in `<part>_labels.txt`, lines `<name> <digit>`.
    """
    parts, done = {part: PicturesOfPart({}, {}) for part in PARTS}, 0
    with reading_original(root):
        for path, content in files_in(root):
            _add(parts, path, content, side)
            done += len(content)
            tick(f"reading {root.name}", done, 0)
    arrays: Arrays = {}
    for name, part in parts.items():
        arrays[f"{name}_x"], arrays[f"{name}_y"] = _stacked(f"{root}: {name}", part)
    return arrays


def files_in(root: Path) -> Iterator[tuple[PurePosixPath, bytes]]:
    """Name and content of every small regular file in a folder, zip or tar; nothing is written to disk."""
    if root.is_dir():
        for path in sorted(path for path in root.rglob("*") if path.is_file()):
            yield PurePosixPath(path.relative_to(root).as_posix()), _bounded(path.read_bytes(), path)
    elif zipfile.is_zipfile(root):
        with zipfile.ZipFile(root) as packed:
            for entry in packed.infolist():
                with packed.open(entry) as file:
                    yield PurePosixPath(entry.filename), _bounded(file.read(MAX_PICTURE_BYTES + 1), entry.filename)
    else:
        for place, _, stream in tar_members(root):
            yield place, _bounded(stream.read(MAX_PICTURE_BYTES + 1), place)


def _bounded(content: bytes, name: object) -> bytes:
    if len(content) > MAX_PICTURE_BYTES:
        raise DataError("picture-too-large", name=name)
    return content


def _add(parts: dict[str, PicturesOfPart], path: PurePosixPath, content: bytes, side: int) -> None:
    """Add `<part>/<name>`, `<part>/<digit>/<name>` or `<part>_labels.txt`; other files are ignored."""
    if path.name.startswith("."):
        return
    if path.name.endswith("_labels.txt"):
        lines = (line.split() for line in content.decode().splitlines())
        labels = parts[PART_OF[path.name.removesuffix("_labels.txt")]].labels
        labels.update({name: int(digit) for name, digit in lines})
    elif path.suffix.lower() in PICTURE_SUFFIXES:
        folders = [folder.lower() for folder in path.parts[:-1]]
        digit = folders.pop() if folders and folders[-1].isdecimal() else ""
        part = parts.get(PART_OF.get(folders[-1] if folders else "", ""))
        if part is not None:
            name = f"{digit}/{path.name}" if digit else path.name
            part.labels.update({name: int(digit)} if digit else {})
            part.pictures[name] = decode_picture(content, path, side)


def decode_picture(content: bytes, name: object, side: int = 0) -> Pixels:
    """A picture as RGB bytes."""
    try:
        with Image.open(io.BytesIO(content)) as image:
            rgb = image.convert("RGB")
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError("picture-unreadable", name=name, error=error) from error
    return np.asarray(rgb.resize((side, side), Image.Resampling.BILINEAR) if side else rgb)


def _stacked(where: str, part: PicturesOfPart) -> Images:
    names = sorted(part.pictures)
    if not names:
        raise DataError("no-pictures", where=where)
    if odd := part.pictures.keys() ^ part.labels.keys():
        raise DataError("pictures-without-labels", where=where, count=len(odd), example=min(odd))
    shapes = {picture.shape for picture in part.pictures.values()}
    if len(shapes) > 1:
        raise DataError("picture-sizes-differ", where=where, count=len(shapes), low=min(shapes), high=max(shapes))
    labels = np.array([part.labels[name] for name in names])
    return np.stack([part.pictures[name] for name in names]), digit_labels(where, labels)
