"""The images of sites as arrays: read, fitted to one size, split into parts, and stored in the cache.

Test images are held out by patient; images of both parts that look the same are reported.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedlgd.core.errors import DataError
from fedlgd.core.homes import cache_home
from fedlgd.core.meter import track
from fedlgd.core.text import plural
from fedlgd.data.arrays import PARTS, Arrays, Pixels, cache_key, load_arrays, store_arrays
from fedlgd.data.images import ArrayRow, Header, ImageError, ImageFile, Picture
from fedlgd.data.own.layouts import SiteImages
from fedlgd.data.prepare import planes

if TYPE_CHECKING:
    from fedlgd.data.own.suite import Folders

DIGEST_BYTES = 16  # of the pixels of an image
THUMBNAIL_SIDE = 16  # pixels
MIN_CORRELATION = 0.985  # of two thumbnails that look the same
THUMBNAILS_AT_ONCE = 256


def pixel_digest(image: Image.Image) -> bytes:
    """A hash of the visible pixels: the same for every file format, and for grey stored as grey or as colour."""
    pixels = np.asarray(image)
    if pixels.ndim == 3 and bool((pixels == pixels[..., :1]).all()):
        pixels = pixels[..., 0]
    head = repr(pixels.shape).encode()
    return hashlib.blake2b(head + pixels.tobytes(), digest_size=DIGEST_BYTES).digest()


def thumbnail(image: Image.Image) -> Pixels:
    """A small grey version of an image, for `near_duplicates`."""
    return np.asarray(image.convert("L").resize((THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.BOX)).ravel()


def near_duplicates(sites: Sequence[Arrays]) -> list[NDArray[np.intp]]:
    """For each test image of each site, the training image of any site that looks the same, by its number; else -1.

    Thumbnails are normalised to mean 0 and norm 1, the mean of all of them is subtracted, and two look the same if
    their correlation is at least MIN_CORRELATION: the same picture after compression, resizing or a change of
    brightness. Without the subtraction all images of one kind, such as fundus photographs, look the same; so they
    do for a hash of 64 differences. Test images that have a copy among the training images, pixel for pixel, do not
    count.
    """
    train = _normalised(np.concatenate([each["train_thumb"] for each in sites]))
    tests = [_normalised(each["test_thumb"]) for each in sites]
    middle = np.concatenate([train, *tests]).mean(0)
    train, found = _normalised(train - middle), []
    copies = {row.tobytes() for each in sites for row in each["train_print"]}
    for test, site in zip(tests, sites, strict=True):
        like = np.full(len(test), -1)
        for start in range(0, len(test), THUMBNAILS_AT_ONCE):
            alike = _normalised(test[start : start + THUMBNAILS_AT_ONCE] - middle) @ train.T
            best = np.where(alike.max(1) >= MIN_CORRELATION, alike.argmax(1), -1)
            like[start : start + THUMBNAILS_AT_ONCE] = best
        like[[row.tobytes() in copies for row in site["test_print"]]] = -1
        found.append(like)
    return found


def _normalised(rows: NDArray[Any]) -> NDArray[np.float32]:
    """Rows of mean 0 and norm 1; a constant row becomes 0."""
    centred = rows.astype(np.float32) - rows.mean(1, keepdims=True, dtype=np.float32)
    norms: NDArray[np.float32] = np.linalg.norm(centred, axis=1, keepdims=True)
    return np.asarray(centred / np.maximum(norms, 1e-6), np.float32)


def is_test(site: SiteImages, prints: Sequence[bytes], patients: Sequence[str], how: "Folders") -> list[bool]:
    """For each image whether it is a test image: as chosen by the owner, else held out here."""
    if site.is_split:
        return [image.part == "test" for image in site.images]
    return held_out([image.label for image in site.images], prints, how.test_share, how.split_seed, patients)


def held_out(
    labels: Sequence[str], prints: Sequence[bytes], share: float, seed: int, patients: Sequence[str] = ()
) -> list[bool]:
    """For each image whether it is held out for testing: about `share` of every class. Equal images and all images
    of a patient stay together.

    Groups are ordered by a hash of the seed and their content, so names and order of files do not matter. A class
    that has two or more groups keeps one for training; if its groups have no other class, it has one for testing.
    """
    groups = _groups(prints, patients)
    members, by_class = _members(groups, labels, seed)
    left, tested = {label: len(mine) for label, mine in by_class.items()}, set[bytes]()

    def hold(group: bytes) -> int:
        """Hold out a group unless it is the last one of a class; returns how many images of `label` it has."""
        if group in tested or any(left[other] < 2 for other in members[group]):
            return 0
        tested.add(group)
        left.update({other: left[other] - 1 for other in members[group]})
        return members[group][label]

    for label, total in sorted(Counter(labels).items(), key=lambda each: (each[1], each[0])):  # rare classes first
        mine = by_class[label]
        room = max(1, round(share * total)) - sum(members[group][label] for group in mine if group in tested)
        for group in mine:
            room -= hold(group) if members[group][label] <= room else 0
        if tested.isdisjoint(mine):
            any(map(hold, sorted(mine, key=lambda g: members[g][label])))  # the first that can be held out
    return [group in tested for group in groups]


def _members(
    groups: Sequence[bytes], labels: Sequence[str], seed: int
) -> tuple[dict[bytes, Counter[str]], dict[str, list[bytes]]]:
    """The number of images of each class in each group, and the groups of each class in the order of their hash."""
    members: dict[bytes, Counter[str]] = defaultdict(Counter)
    for group, label in zip(groups, labels, strict=True):
        members[group][label] += 1
    by_class: dict[str, list[bytes]] = defaultdict(list)
    for group in sorted(members, key=lambda g: hashlib.blake2b(g, digest_size=16, key=str(seed).encode()).digest()):
        for label in members[group]:
            by_class[label].append(group)
    return members, by_class


def _groups(prints: Sequence[bytes], patients: Sequence[str]) -> list[bytes]:
    """For each image the smallest digest of its group: images with equal content or of the same patient."""
    if not any(patients):
        return list(prints)
    first: dict[str, bytes] = {}
    parent = {print_: print_ for print_ in prints}

    def root(print_: bytes) -> bytes:
        while parent[print_] != print_:
            parent[print_] = print_ = parent[parent[print_]]
        return print_

    for print_, patient in zip(prints, patients, strict=True):
        if patient:
            low, high = sorted((root(print_), root(first.setdefault(patient, print_))))
            parent[high] = low
    return [root(print_) for print_ in prints]


VERSION = 2  # increase with every change to the arrays, so that stored arrays of an older version are not used
FOLDER = f"made/folders-{VERSION}"
MAX_SIZES_IN_NOTE = 4
DICOM = "dicom"  # the setting `patient` for the PatientID of DICOM files


def load_or_decode(sites: Sequence[SiteImages], classes: tuple[str, ...], how: "Folders") -> list[Arrays]:
    """The arrays of each site, from the cache or else decoded and stored there.

    In addition to images and labels: `print` and `near` of every image, see `pixel_digest` and `near_duplicates`;
    `formats` with their numbers; and `patients`, the number of images of known patients, and of test images of
    patients who also have training images.
    """
    with suppress(OSError):  # `store_arrays` reports it
        (cache_home() / FOLDER).mkdir(mode=0o700, parents=True, exist_ok=True)  # as private as the original images
    settings = (how.size, how.fit, how.colour, how.depth, how.patient, how.test_share, how.split_seed)
    keys = [cache_key(settings, classes, site.name, site.stamp, size=12) for site in sites]
    arrays = [load_arrays(f"{FOLDER}/{key}") for key in keys]
    if None in arrays:
        headers = _headers(sites, how.size)  # of all sites: their sizes have to agree
        for i, found in enumerate(arrays):
            if found is None:
                arrays[i] = store_arrays(f"{FOLDER}/{keys[i]}", decode(sites[i], headers[i], classes, how))
    made = [each for each in arrays if each is not None]
    near_key = f"{FOLDER}/{cache_key('near', *keys, size=12)}"
    near = load_arrays(near_key)
    if near is None:
        found_near = near_duplicates(made)
        near = store_arrays(near_key, {str(number): each >= 0 for number, each in enumerate(found_near)})
    return [each | {"test_near": near[str(number)]} for number, each in enumerate(made)]


def _headers(sites: Sequence[SiteImages], size: int) -> list[list[Header]]:
    """The headers of all images; without a size to resize to, images of different sizes are refused."""
    found = [
        [site.images[i].header() for i in track(f"reading headers of {site.name}", len(site.images))]
        for site in sites
    ]
    counts = [Counter(f"{header.width}x{header.height}" for header in headers) for headers in found]
    for error in size_errors(dict(zip([site.name for site in sites], counts, strict=True)), size):
        raise error
    return found


def size_errors(counts: Mapping[str, Counter[str]], size: int) -> Iterator[DataError]:
    """Why a run refuses images of these sizes; counts: images of each size, by site. `size`: what they become."""
    if not size and len(set().union(*counts.values())) > 1:
        sizes = " and ".join(f"{site!r} has {size_list(each)}" for site, each in counts.items())
        yield DataError("sizes-differ", sizes=sizes)


def size_list(counts: Counter[str]) -> str:
    """The most frequent sizes with their numbers of images."""
    first = [f"{size} ({count})" for size, count in counts.most_common(MAX_SIZES_IN_NOTE)]
    more = [plural(len(counts) - MAX_SIZES_IN_NOTE, "other size")] if len(counts) > MAX_SIZES_IN_NOTE else []
    return ", ".join(first + more)


def decode(site: SiteImages, headers: list[Header], classes: tuple[str, ...], how: "Folders") -> Arrays:
    """Planes, labels, digests and thumbnails of both parts, and the facts about all images together."""
    grey = how.colour == "grey" or all(header.grey for header in headers)
    pixels: dict[int, Pixels] = {}
    prints, thumbs, formats, patients = list[bytes](), list[Pixels](), Counter[str](), list[str]()
    for i in track(f"decoding {site.name}", len(site.images)):
        picture, print_, thumb, patient = look(site.images[i], how)
        prints.append(print_)
        thumbs.append(thumb)
        patients.append(patient)
        formats[f"{picture.format} {'grey' if picture.image.mode == 'L' else 'colour'}"] += 1
        pixels[i] = planes(picture.image, grey, how.size, how.fit)
    tests = np.array(is_test(site, prints, patients, how))
    labels = np.array([classes.index(image.label) for image in site.images])
    all_prints = np.frombuffer(b"".join(prints), np.uint8).reshape(-1, DIGEST_BYTES)
    shape = pixels[0].shape
    listed = [f"{name} ({count})" for name, count in formats.most_common()]
    trained = {patient for patient, test in zip(patients, tests, strict=True) if not test and patient}
    leaked = sum(bool(test) and patient in trained for patient, test in zip(patients, tests, strict=True))
    arrays: Arrays = {"formats": np.array(listed), "patients": np.array([sum(map(bool, patients)), leaked])}
    for part, chosen in zip(PARTS, (~tests, tests), strict=True):
        stack = np.empty((int(chosen.sum()), *shape), np.uint8)
        for place, row in enumerate(np.flatnonzero(chosen).tolist()):
            stack[place] = pixels.pop(row)  # released once copied: the images are never in memory twice
        arrays |= {f"{part}_x": stack, f"{part}_y": labels[chosen], f"{part}_print": all_prints[chosen]}
        arrays[f"{part}_thumb"] = np.array(thumbs)[chosen]
    return arrays


def look(image: ImageFile | ArrayRow, how: "Folders") -> tuple[Picture, bytes, Pixels, str]:
    """The picture, a digest of its pixels, its thumbnail, and its patient: the one that the owner named, or the
    PatientID of a DICOM file if the setting says so; "" if unknown."""
    picture, patient = image.read(how.depth), image.patient
    if how.patient == DICOM and isinstance(image, ImageFile) and picture.format == "DICOM":
        patient = picture.patient
        if not patient:
            raise ImageError("no-patient-id", path=image.path)
    return picture, pixel_digest(picture.image), thumbnail(picture.image), patient
