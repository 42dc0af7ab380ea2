"""Readers of data sets published as picture files: MNIST-M, the 12 000 synthetic digits, RIM-ONE DL."""

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
from fedlgd.data.arrays import PARTS, Arrays, Pixels
from fedlgd.data.fetch.sources import Images, copy_member, labels_of, missing, reading, replacing

KAGGLE = ("synthetic-digits.zip", "archive.zip")  # file names of the download from its command and from its page
SUFFIXES = (".png", ".jpg", ".jpeg")
LARGEST = 1 << 24  # bytes of one picture or list of labels
PART_OF = dict.fromkeys(("mnist_m_train", "imgs_train", "train", "training"), "train")
PART_OF |= dict.fromkeys(("mnist_m_test", "imgs_valid", "test", "testing"), "test")

RIM_ONE = "RIM-ONE_DL_images.zip"
RIM_ONE_PARTITION = "partitioned_randomly"
RIM_ONE_PARTS = {"training_set": "Training", "test_set": "Testing"}
RIM_ONE_CLASSES = ("glaucoma", "normal")


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
    raise missing(folder, wanted)


@dataclass
class Part:
    """The pictures of one part by name, and their labels by name."""

    pictures: dict[str, Pixels] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)


def read_pictures(root: Path, side: int = 0) -> Arrays:
    """All pictures below `root` sorted by name, resized to `side` if given.

    The label is the folder's name, a digit, or is listed in `<part>_labels.txt`, lines `<name> <digit>`.
    """
    parts, done = {part: Part() for part in PARTS}, 0
    with reading(root):
        for path, content in members(root):
            _add(parts, path, content, side)
            done += len(content)
            tick(f"reading {root.name}", done, 0)
    arrays: Arrays = {}
    for name, part in parts.items():
        arrays[f"{name}_x"], arrays[f"{name}_y"] = _stacked(f"{root}: {name}", part)
    return arrays


def members(root: Path) -> Iterator[tuple[PurePosixPath, bytes]]:
    """Name and content of every small regular file in a folder, zip or tar; nothing is written to disk."""
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
        raise DataError(f"{name} is larger than any picture or list of labels in this data set; download it again")
    return content


def _add(parts: dict[str, Part], path: PurePosixPath, content: bytes, side: int) -> None:
    """Add `<part>/<name>`, `<part>/<digit>/<name>` or `<part>_labels.txt`; other files are ignored."""
    if path.name.startswith("."):
        return
    if path.name.endswith("_labels.txt"):
        lines = (line.split() for line in content.decode().splitlines())
        parts[PART_OF[path.name.removesuffix("_labels.txt")]].labels |= {name: int(digit) for name, digit in lines}
    elif path.suffix.lower() in SUFFIXES:
        folders = [folder.lower() for folder in path.parts[:-1]]
        digit = folders.pop() if folders and folders[-1].isdecimal() else ""
        part = parts.get(PART_OF.get(folders[-1] if folders else "", ""))
        if part is not None:
            name = f"{digit}/{path.name}" if digit else path.name
            part.labels |= {name: int(digit)} if digit else {}
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
        raise DataError(
            f"{where}: {len(odd)} names have a picture or a label but not both, for example {min(odd)}; "
            "download it again"
        )
    shapes = {picture.shape for picture in part.pictures.values()}
    if len(shapes) > 1:
        raise DataError(f"{where} has pictures of {len(shapes)} sizes, e.g. {min(shapes)} and {max(shapes)}")
    labels = np.array([part.labels[name] for name in names])
    return np.stack([part.pictures[name] for name in names]), labels_of(where, labels)


def unpack_rim_one(given: Path, home: Path) -> None:
    """Its random partition as retina/rim_one/Training|Testing/glaucoma|normal, picture files unchanged."""
    path = given / RIM_ONE
    with replacing(home / "retina" / "rim_one") as target, reading(path), zipfile.ZipFile(path) as archive:
        folders = [f"{part}/{diagnosis}" for part in RIM_ONE_PARTS.values() for diagnosis in RIM_ONE_CLASSES]
        for folder in folders:
            (target / folder).mkdir(parents=True)
        for entry in archive.infolist():
            if place := _rim_one_place(PurePosixPath(entry.filename)):
                if entry.file_size > LARGEST:
                    raise DataError(
                        f"{entry.filename} is larger than any picture of this data set; download it again"
                    )
                with archive.open(entry) as stream:
                    copy_member(stream, target / place, entry.file_size)
        for folder in folders:
            if not any((target / folder).iterdir()):
                raise DataError(f"{path} has no {RIM_ONE_PARTITION} pictures for {folder}; download it again")


def _rim_one_place(name: PurePosixPath) -> str:
    """The target of a member, made of known words and its file name; "" if it is not a picture of the partition."""
    partition, part, diagnosis, picture = ("", "", "", "", *name.parts)[-4:]
    known = partition == RIM_ONE_PARTITION and part in RIM_ONE_PARTS and diagnosis in RIM_ONE_CLASSES
    if known and PurePosixPath(picture).suffix.lower() in SUFFIXES and not picture.startswith("."):
        return f"{RIM_ONE_PARTS[part]}/{diagnosis}/{picture}"
    return ""
