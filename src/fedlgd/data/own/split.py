"""The hold-out of test images, and images of both parts that are the same or look the same."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedlgd.data.arrays import Arrays, Pixels
from fedlgd.data.own.sites import SiteImages

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
            like[start : start + THUMBNAILS_AT_ONCE] = np.where(
                alike.max(1) >= MIN_CORRELATION, alike.argmax(1), -1
            )
        like[[row.tobytes() in copies for row in site["test_print"]]] = -1
        found.append(like)
    return found


def _normalised(rows: NDArray[Any]) -> NDArray[np.float32]:
    """Rows of mean 0 and norm 1; a constant row becomes 0."""
    centred = rows.astype(np.float32) - rows.mean(1, keepdims=True, dtype=np.float32)
    norms: NDArray[np.float32] = np.linalg.norm(centred, axis=1, keepdims=True)
    return np.asarray(centred / np.maximum(norms, 1e-6), np.float32)


def is_test(
    site: SiteImages, prints: Sequence[bytes], patients: Sequence[str], share: float, seed: int
) -> list[bool]:
    """For each image whether it is a test image: as chosen by the owner, else held out here."""
    if site.is_split:
        return [image.part == "test" for image in site.images]
    return held_out([image.label for image in site.images], prints, share, seed, patients)


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
