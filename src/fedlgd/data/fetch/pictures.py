"""Data sets that come as pictures, in a folder, a tar or a zip: MNIST-M and the 12 000 synthetic digits."""

import io
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image, UnidentifiedImageError

from fedlgd.core.errors import DataError
from fedlgd.core.meter import tick
from fedlgd.data.originals.reading import Images, labels_of, missing, reading
from fedlgd.data.prepared import PARTS, Arrays, Pixels

KAGGLE = ("synthetic-digits.zip", "archive.zip")  # as its command and its page name the download
PICTURES = (".png", ".jpg", ".jpeg")
LARGEST = 1 << 24  # bytes of one picture or list of labels
PART_OF = {
    "mnist_m_train": "train",
    "mnist_m_test": "test",
    "imgs_train": "train",
    "imgs_valid": "test",
    "train": "train",
    "training": "train",
    "test": "test",
    "testing": "test",
}


def read_mnist_m(folder: Path) -> Arrays:
    """Ganin's release, packed or not, or one folder a digit; (n, 32, 32, 3) or whatever size all have."""
    roots = [folder / "mnist_m.tar.gz", folder / "mnist_m", folder]
    root = next((r for r in roots if r.is_file() or _has_parts(r)), None)
    if root is None:
        raise missing(folder, "mnist_m.tar.gz, nor a folder mnist_m with its images")
    return read_pictures(root)


def read_synth_folder(folder: Path) -> Arrays:
    """imgs_train and imgs_valid with one folder a digit. Their sizes differ, so all are resized to 64x64."""
    roots = [folder / "synthetic_digits", folder / "data" / "synthetic_digits", folder]
    archives = [folder / name for name in KAGGLE]
    root = next((r for r in [*roots, *archives] if r.is_file() or _has_parts(r)), None)
    if root is None:
        raise missing(
            folder, f"{' or '.join(KAGGLE)}, nor a folder synthetic_digits with imgs_train and imgs_valid"
        )
    return read_pictures(root, side=64)


def _has_parts(root: Path) -> bool:
    return root.is_dir() and {PART_OF.get(path.name.lower()) for path in root.iterdir() if path.is_dir()} >= {
        *PARTS
    }


@dataclass
class Part:
    """The pictures of one part by name, and their labels by name."""

    pictures: dict[str, Pixels] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)


def read_pictures(root: Path, side: int = 0) -> Arrays:
    """All pictures below `root` in the order of their names, resized to `side` if given.

    The label is the folder's name, a digit, or stands in `<part>_labels.txt`, lines `<name> <digit>`.
    """
    parts, done = {part: Part() for part in PARTS}, 0
    with reading(root):
        for path, content in members(root):
            _take(parts, path, content, side)
            done += len(content)
            tick(f"reading {root.name}", done, 0)
    arrays: Arrays = {}
    for name, part in parts.items():
        arrays[f"{name}_x"], arrays[f"{name}_y"] = _stacked(f"{root}: {name}", part)
    return arrays


def members(root: Path) -> Iterator[tuple[PurePosixPath, bytes]]:
    """Name and content of every small regular file; nothing is written, so a name can do no harm."""
    if root.is_dir():
        for file in sorted(path for path in root.rglob("*") if path.is_file()):
            yield PurePosixPath(file.relative_to(root).as_posix()), _bounded(file.read_bytes(), file)
    elif zipfile.is_zipfile(root):
        with zipfile.ZipFile(root) as packed:
            for entry in packed.infolist():
                with packed.open(entry) as content:
                    yield PurePosixPath(entry.filename), _bounded(content.read(LARGEST + 1), entry.filename)
    else:
        with tarfile.open(root) as packed_tar:
            for member in packed_tar:
                if member.isfile() and (stream := packed_tar.extractfile(member)):
                    yield PurePosixPath(member.name), _bounded(stream.read(LARGEST + 1), member.name)


def _bounded(content: bytes, name: object) -> bytes:
    if len(content) > LARGEST:
        raise DataError(f"{name} is larger than any picture or list of labels in this data set; refused")
    return content


def _take(parts: dict[str, Part], path: PurePosixPath, content: bytes, side: int) -> None:
    if path.name.startswith("."):
        return
    if path.name.endswith("_labels.txt"):
        part = parts[PART_OF[path.name.removesuffix("_labels.txt")]]
        part.labels |= {
            name: int(digit) for name, digit in (line.split() for line in content.decode().splitlines())
        }
    elif path.suffix.lower() in PICTURES:
        _take_picture(parts, path, content, side)


def _take_picture(parts: dict[str, Part], path: PurePosixPath, content: bytes, side: int) -> None:
    """`<part>/<name>` or `<part>/<digit>/<name>`; pictures elsewhere are none of this data set."""
    folders = [folder.lower() for folder in path.parts[:-1]]
    digit = folders.pop() if folders and folders[-1].isdecimal() else ""
    part = parts.get(PART_OF.get(folders[-1] if folders else "", ""))
    if part is None:
        return
    name = f"{digit}/{path.name}" if digit else path.name
    if digit:
        part.labels[name] = int(digit)
    part.pictures[name] = decode(content, path, side)


def decode(content: bytes, name: object, side: int = 0) -> Pixels:
    """A picture as RGB bytes."""
    try:
        with Image.open(io.BytesIO(content)) as image:
            rgb = image.convert("RGB")
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{name} is not a readable picture ({error}); download the data set again") from error
    return np.asarray(rgb.resize((side, side), Image.Resampling.BILINEAR) if side else rgb)


def _stacked(where: str, part: Part) -> Images:
    names = sorted(part.pictures)
    if not names:
        raise DataError(f"{where} has no pictures; download the data set again")
    if odd := part.pictures.keys() ^ part.labels.keys():
        raise DataError(f"{where}: {min(odd)} has a picture or a label, not both; {len(odd)} are like that")
    shapes = {picture.shape for picture in part.pictures.values()}
    if len(shapes) > 1:
        raise DataError(f"{where} has pictures of {len(shapes)} sizes, e.g. {min(shapes)} and {max(shapes)}")
    labels = np.array([part.labels[name] for name in names])
    return np.stack([part.pictures[name] for name in names]), labels_of(where, labels)
