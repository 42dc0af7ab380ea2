"""The images of sites as arrays: read, fitted to one size, split into parts, and cached in the data home."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Literal, NamedTuple

import numpy as np
from PIL import Image

from fedlgd.core.errors import DataError
from fedlgd.core.meter import track
from fedlgd.data.folders.image_source import ArrayRow, Header, ImageFile, SiteImages
from fedlgd.data.home import data_home
from fedlgd.data.store import PARTS, Arrays, Pixels, cache_key, cached

Fit = Literal["stretch", "crop", "pad"]
Colour = Literal["auto", "grey"]

VERSION = 1  # increase with every change to the arrays, so that cached arrays of an older version are not used
FOLDER = f"made/folders-{VERSION}"
PRINT = 16  # bytes of a fingerprint
SIZES_SHOWN = 4


class Recipe(NamedTuple):
    """The settings that decide about the pixels of an image and about its part."""

    size: int
    fit: Fit
    colour: Colour
    test_share: float
    split_seed: int


def decoded(sites: Sequence[SiteImages], classes: tuple[str, ...], recipe: Recipe) -> list[Arrays]:
    """The arrays of each site, from the cache if possible. Headers are read only if a site has to be decoded."""
    with suppress(OSError):  # `cached` reports it
        (data_home() / FOLDER).mkdir(mode=0o700, parents=True, exist_ok=True)  # as private as the original images
    headers = cache(lambda: _headers(sites, recipe.size))

    def decode(number: int) -> Callable[[], Arrays]:
        return lambda: _decoded(sites[number], headers()[number], classes, recipe)

    keys = [cache_key(tuple(recipe), classes, site.name, site.stamp, size=12) for site in sites]
    return [cached(f"{FOLDER}/{key}", decode(number)) for number, key in enumerate(keys)]


def _headers(sites: Sequence[SiteImages], size: int) -> list[list[Header]]:
    """The headers of all images; without a size to resize to, images of different sizes are refused."""
    found = [
        [site.images[i].header() for i in track(f"reading headers of {site.name}", len(site.images))]
        for site in sites
    ]
    counts = [Counter(f"{header.width}x{header.height}" for header in headers) for headers in found]
    if not size and len(set().union(*counts)) > 1:
        sizes = "; ".join(f"{site.name!r} has {size_list(each)}" for site, each in zip(sites, counts, strict=True))
        raise DataError(f"images have different sizes: site {sizes}; resize them all with --set data.size=64")
    return found


def size_list(counts: Counter[str]) -> str:
    """The most frequent sizes with their numbers of images."""
    first = [f"{size} ({count})" for size, count in counts.most_common(SIZES_SHOWN)]
    more = [f"{len(counts) - SIZES_SHOWN} other sizes"] if len(counts) > SIZES_SHOWN else []
    return ", ".join(first + more)


def _decoded(site: SiteImages, headers: list[Header], classes: tuple[str, ...], recipe: Recipe) -> Arrays:
    """Planes, labels and fingerprints of both parts."""
    grey = recipe.colour == "grey" or all(header.grey for header in headers)
    planes: dict[int, Pixels] = {}
    prints: list[bytes] = []
    for i in track(f"decoding {site.name}", len(site.images)):
        image = site.images[i].read().image
        prints.append(fingerprint(image))
        pixels = np.asarray(fitted(image.convert("L" if grey else "RGB"), recipe.size, recipe.fit))
        planes[i] = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    tests = np.array(is_test(site.images, prints, site.is_split, recipe.test_share, recipe.split_seed))
    labels = np.array([classes.index(image.label) for image in site.images])
    all_prints = np.frombuffer(b"".join(prints), np.uint8).reshape(-1, PRINT)
    shape = planes[0].shape
    arrays: Arrays = {}
    for part, chosen in zip(PARTS, (~tests, tests), strict=True):
        stack = np.empty((int(chosen.sum()), *shape), np.uint8)
        for place, row in enumerate(np.flatnonzero(chosen).tolist()):
            stack[place] = planes.pop(row)  # released once copied: the images are never in memory twice
        arrays |= {f"{part}_x": stack, f"{part}_y": labels[chosen], f"{part}_print": all_prints[chosen]}
    return arrays


def fitted(image: Image.Image, size: int, fit: Fit = "stretch") -> Image.Image:
    """The image as a square of `size` pixels, bilinear; 0 leaves it unchanged.

    stretch: the whole image, aspect ratio not kept. crop: the central square. pad: the whole image on black.
    """
    if not size or image.size == (size, size):
        return image
    if fit == "crop":
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        image = image.crop((left, top, left + side, top + side))
    if fit != "pad":
        return image.resize((size, size), Image.Resampling.BILINEAR)
    width, height = (max(1, round(size * side / max(image.size))) for side in image.size)
    canvas = Image.new(image.mode, (size, size))
    small = image.resize((width, height), Image.Resampling.BILINEAR)
    canvas.paste(small, ((size - width) // 2, (size - height) // 2))
    return canvas


def fingerprint(image: Image.Image) -> bytes:
    """A hash of the visible pixels: the same for every file format, and for grey stored as grey or as colour."""
    pixels = np.asarray(image)
    if pixels.ndim == 3 and bool((pixels == pixels[..., :1]).all()):
        pixels = pixels[..., 0]
    head = repr(pixels.shape).encode()
    return hashlib.blake2b(head + pixels.tobytes(), digest_size=PRINT).digest()


def is_test(
    images: Sequence[ImageFile | ArrayRow], prints: Sequence[bytes], is_split: bool, share: float, seed: int
) -> list[bool]:
    """For each image whether it is a test image: as chosen by the owner (`is_split`), else held out here."""
    if is_split:
        return [image.part == "test" for image in images]
    return held_out([image.label for image in images], prints, share, seed)


def held_out(labels: Sequence[str], prints: Sequence[bytes], share: float, seed: int) -> list[bool]:
    """For each image whether it is held out for testing: about `share` of every class, equal images together.

    Images are ordered by a hash of the seed and their content, so names and order of files do not matter.
    A class with two or more different images has at least one in each part.
    """
    copies: dict[bytes, int] = defaultdict(int)
    classes: dict[str, list[bytes]] = defaultdict(list)
    for label, print_ in zip(labels, prints, strict=True):
        if print_ not in copies:
            classes[label].append(print_)
        copies[print_] += 1
    tested: set[bytes] = set()
    for members in classes.values():
        members.sort(key=lambda p: hashlib.blake2b(p, digest_size=16, key=str(seed).encode()).digest())
        tested.update(_chosen(members, copies, share))
    return [print_ in tested for print_ in prints]


def _chosen(members: list[bytes], copies: dict[bytes, int], share: float) -> list[bytes]:
    """The first that fit into the share; if none fits, the one with the fewest copies. Never all of them."""
    if len(members) < 2:
        return []
    room = max(1, round(share * sum(copies[m] for m in members)))
    chosen: list[bytes] = []
    for member in members:
        if copies[member] <= room and len(chosen) < len(members) - 1:
            chosen.append(member)
            room -= copies[member]
    return chosen or [min(members, key=copies.__getitem__)]
