"""RIM-ONE DL, the one retina set that a program can fetch: a zip with folders by part and diagnosis."""

import zipfile
from pathlib import Path, PurePosixPath

from fedlgd.core.errors import DataError
from fedlgd.data.originals.pictures import LARGEST, PICTURES
from fedlgd.data.originals.reading import reading
from fedlgd.data.originals.whole import made_whole, pour

ARCHIVE = "RIM-ONE_DL_images.zip"
PARTITION = "partitioned_randomly"
PART_OF = {"training_set": "Training", "test_set": "Testing"}
CLASSES = ("glaucoma", "normal")


def unpack_rim_one(folder: Path, home: Path) -> None:
    """Its random partition as retina/rim_one/Training|Testing/glaucoma|normal, pictures as they are."""
    path = folder / ARCHIVE
    with made_whole(home / "retina" / "rim_one") as target, reading(path), zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if place := _place(PurePosixPath(entry.filename)):
                _unpack(archive, entry, target / place)
        for part in PART_OF.values():
            for diagnosis in CLASSES:
                if not (target / part / diagnosis).is_dir():
                    raise DataError(f"{path} has no {PARTITION} pictures for {part}/{diagnosis}; download it again")


def _place(name: PurePosixPath) -> str:
    """Where a member goes, made of known words and its last name; "" for what is no picture of the partition."""
    match name.parts[-4:]:
        case (folder, part, diagnosis, picture) if folder == PARTITION and part in PART_OF and diagnosis in CLASSES:
            if PurePosixPath(picture).suffix.lower() in PICTURES and not picture.startswith("."):
                return f"{PART_OF[part]}/{diagnosis}/{picture}"
    return ""


def _unpack(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, target: Path) -> None:
    if entry.file_size > LARGEST:
        raise DataError(f"{entry.filename} is larger than any picture of this data set; refused")
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(entry) as stream:
        pour(stream, target, entry.file_size)
