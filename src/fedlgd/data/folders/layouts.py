"""What is in a folder of images: sites, classes and parts by its layout, and what does not belong there."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedlgd.core.errors import DataError
from fedlgd.data.holding import Entry, Files, Holding, Packed, Part, Problem, checked_name, natural_key
from fedlgd.data.images import SUFFIXES, shown
from fedlgd.data.listing import MANIFEST, read_listing

PART_NAMES: dict[str, Part] = {"train": "train", "training": "train", "test": "test", "testing": "test"}
JUNK = ("thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx", "@eadir", "$recycle.bin", "lost+found")
LAYOUTS = (
    "site/class/image, site/train/class/image with site/test/class/image, "
    f"one site.npz a site, or a {MANIFEST} with the columns path, site, label and perhaps split"
)
SEEN = 8  # names that an error about a folder lists


@dataclass(frozen=True)
class Tree:
    """The sites found under a path, and what was found beside their images."""

    path: Path
    layout: str
    sites: tuple[Holding, ...]
    problems: tuple[Problem, ...] = ()


def survey(path: Path) -> Tree:
    """The sites under `path` by whichever layout fits; no image is opened yet."""
    if not path.exists():
        raise DataError(f"there is no folder or file {shown(path)}; correct the path")
    root = path.resolve()
    if path.is_dir():
        return _directory(path, root)
    if path.suffix.lower() == ".csv":
        return _listed(path)
    if path.suffix.lower() == ".npz":
        return Tree(path, "npz", (Packed(_site_name(path.stem, path), root.parent, root),))
    raise DataError(f"{shown(path)} is neither a folder nor a .csv or .npz file; there are the layouts {LAYOUTS}")


def _directory(path: Path, root: Path) -> Tree:
    children = list(_children(root))
    if any(child.name.lower() == MANIFEST for child in children):
        return _listed(next(child for child in children if child.name.lower() == MANIFEST))
    packed = [child for child in children if child.suffix.lower() == ".npz"]
    folders = [child for child in children if child.is_dir()]
    if packed and folders:
        raise DataError(
            f"{shown(path)} has both .npz files and folders ({_seen(children)}); keep one of the layouts"
        )
    problems = [_stray(child, root, "") for child in children if child not in packed and child not in folders]
    if packed:
        sites = tuple(Packed(_site_name(file.stem, file), root, file) for file in packed)
        return Tree(path, "npz", sites, tuple(problems))
    return _folders(path, root, folders, problems)


def _listed(file: Path) -> Tree:
    sites, problems = read_listing(file)
    return Tree(file, "csv", tuple(sites), tuple(problems))


def _folders(path: Path, root: Path, folders: list[Path], problems: list[Problem]) -> Tree:
    parts = [folder.name for folder in folders if folder.name.lower() in PART_NAMES]
    if parts:
        raise DataError(
            f"{shown(path)} has {', '.join(map(shown, parts))} where sites are expected; "
            f"put a folder for each site between, as in {shown(path)}/site/train/class"
        )
    sites: list[Holding] = []
    for folder in folders:
        entries = _site(folder, root, problems)
        if entries:
            sites.append(Files(_site_name(folder.name, folder), root, tuple(entries)))
        else:
            problems.append(_empty(folder, root, folder.name))
    if not sites:
        raise DataError(f"{shown(path)} has no site with images; seen: {_seen(folders)}; there are: {LAYOUTS}")
    return Tree(path, "folders", tuple(sites), tuple(problems))


def _site(folder: Path, root: Path, problems: list[Problem]) -> list[Entry]:
    """The images of one site folder; what else is there goes to the problems."""
    children = list(_children(folder, root))
    if not any(child.is_dir() for child in children) and any(_is_image(child) for child in children):
        raise DataError(
            f"{shown(folder)} has images ({_seen(children)}) but no class folders; "
            f"the layout is site/class/image: if {shown(folder.name)!r} is a class, put a site folder above it"
        )
    problems += [_stray(child, root, folder.name) for child in children if not child.is_dir()]
    folders = [child for child in children if child.is_dir()]
    if not any(child.name.lower() in PART_NAMES for child in folders):
        return _classes(folders, "", folder.name, root, problems)
    parts = _parts(folder, folders)
    found = {part: list(_children(inner, root)) for part, inner in parts.items()}
    for part, inside in found.items():
        if any(_is_image(child) for child in inside):
            raise DataError(f"{shown(parts[part])} has images but no class folders; put them into {part}/class/")
    entries: list[Entry] = []
    for part, inside in found.items():
        entries += _classes([c for c in inside if c.is_dir()], part, folder.name, root, problems)
    return entries


def _parts(folder: Path, folders: list[Path]) -> dict[Part, Path]:
    """The training and the test folder; training alone will be divided."""
    parts: dict[Part, Path] = {}
    for child in folders:
        part = PART_NAMES.get(child.name.lower())
        if part is None or part in parts:
            raise DataError(
                f"{shown(folder)} has {_seen(folders)}; beside train and test there can be no other folder: "
                f"merge or move {shown(child.name)!r}"
            )
        parts[part] = child
    if "train" not in parts:
        raise DataError(f"{shown(folder)} has test images but no folder train; add it or drop the level 'test'")
    return parts


def _classes(folders: list[Path], part: Part, site: str, root: Path, problems: list[Problem]) -> list[Entry]:
    entries: list[Entry] = []
    for folder in folders:
        label = checked_name(folder.name, "class", folder)
        children = list(_children(folder, root))
        images = [Entry(child, label, part) for child in children if _is_image(child)]
        problems += [_stray(child, root, site) for child in children if not _is_image(child)]
        if not children:
            problems.append(_empty(folder, root, site))
        entries += images
    return entries


def _children(folder: Path, root: Path | None = None) -> Iterator[Path]:
    """What is in a folder, in natural order, without the files that systems leave behind."""
    if root and not folder.resolve().is_relative_to(root):
        raise DataError(f"{shown(folder)} is a link that leads out of {shown(root)}; copy the folder there instead")
    try:
        names = os.listdir(folder)  # noqa: PTH208
    except OSError as error:
        raise DataError(f"{shown(folder)} cannot be listed ({error.strerror}); correct its permissions") from error
    for name in sorted(names, key=natural_key):
        if not name.startswith(".") and name.lower() not in JUNK:
            yield folder / name


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.is_dir()


def _stray(path: Path, root: Path, site: str) -> Problem:
    """What is skipped, and why."""
    if path.is_dir():
        problem, way_out = "is a folder inside a class folder; it is skipped", "move its images up or remove it"
    elif _is_image(path):
        problem, way_out = "is an image outside a class folder; it is skipped", "move it into its class folder"
    elif path.suffix.lower() in (".dcm", ".dicom"):
        problem, way_out = "is DICOM, which is not read; it is skipped", "convert it to PNG"
    else:
        problem, way_out = "is not an image; it is skipped", "remove it"
    return Problem("warning", shown(site), shown(path.relative_to(root)), problem, way_out)


def _empty(folder: Path, root: Path, site: str) -> Problem:
    where = shown(folder.relative_to(root))
    return Problem("warning", shown(site), where, "is a folder without images", "fill it or remove it")


def _site_name(text: str, path: Path) -> str:
    return checked_name(text, "site", path)


def _seen(paths: list[Path]) -> str:
    names = [shown(path.name) + ("/" if path.is_dir() else "") for path in paths]
    more = f" and {len(names) - SEEN} more" if len(names) > SEEN else ""
    return (", ".join(names[:SEEN]) or "nothing") + more
