"""Images of sites as arrays of bytes: all headers looked at first, then decoded once and kept in the data home."""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from fedlgd.core.errors import DataError
from fedlgd.core.meter import track
from fedlgd.data.holding import Holding, Part
from fedlgd.data.home import data_home, kept
from fedlgd.data.images import Fit, Header, fingerprint, fitted
from fedlgd.data.prepared import PARTS, Arrays, Pixels
from fedlgd.data.split import held_out

Colour = Literal["auto", "grey"]

VERSION = 1  # goes up with every change to how images are made, so that an old file is never taken for a new one
PLACE = f"made/folders-{VERSION}"
PRINT = 16  # bytes of a fingerprint
SIZES_SHOWN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """All that decides which pixels are made of an image and on which side of the split it falls."""

    size: int
    fit: Fit
    colour: Colour
    test_share: float
    split_seed: int


def arrays_of(sites: Sequence[Holding], classes: tuple[str, ...], recipe: Recipe) -> list[Arrays]:
    """Decoded images, site by site. The headers of all sites are read once, and only if something is to be made."""
    _private(data_home() / PLACE)
    headers = cache(lambda: _headers(sites, recipe.size))

    def maker(number: int) -> Callable[[], Arrays]:
        return lambda: _decoded(sites[number], headers()[number], classes, recipe)

    return [kept(f"{PLACE}/{_key(site, classes, recipe)}", maker(i)) for i, site in enumerate(sites)]


def _private(folder: Path) -> None:
    """Decoded images are as private as their originals: a folder for the owner alone."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return  # `kept` will say so


def _key(site: Holding, classes: tuple[str, ...], recipe: Recipe) -> str:
    """A hash of the files' names, sizes and times and of all that decides what is made of them."""
    told = repr((astuple(recipe), classes, site.name, site.stamp))
    return hashlib.blake2b(told.encode(), digest_size=12).hexdigest()


def _headers(sites: Sequence[Holding], size: int) -> list[list[Header]]:
    found = [[site.header(i) for i in track(f"looking at {site.name}", len(site.labels))] for site in sites]
    if not size:
        _refuse_sizes({site.name: sizes(headers) for site, headers in zip(sites, found, strict=True)})
    return found


def sizes(headers: Sequence[Header]) -> Counter[str]:
    """How many images there are of each size."""
    return Counter(f"{header.width}x{header.height}" for header in headers)


def _refuse_sizes(by_site: dict[str, Counter[str]]) -> None:
    if len(set().union(*by_site.values())) > 1:
        told = "; ".join(f"{name!r} has {size_list(counts)}" for name, counts in by_site.items())
        raise DataError(f"images are of different sizes: site {told}; resize them all with --set data.size=64")


def size_list(counts: Counter[str]) -> str:
    """The most frequent sizes with their numbers of images."""
    first = [f"{size} ({count})" for size, count in counts.most_common(SIZES_SHOWN)]
    more = [f"{len(counts) - SIZES_SHOWN} other sizes"] if len(counts) > SIZES_SHOWN else []
    return ", ".join(first + more)


def _decoded(site: Holding, headers: list[Header], classes: tuple[str, ...], recipe: Recipe) -> Arrays:
    """Planes, labels and fingerprints of both parts."""
    grey = recipe.colour == "grey" or all(header.grey for header in headers)
    planes: dict[int, Pixels] = {}
    prints: list[bytes] = []
    for i in track(f"decoding {site.name}", len(site.labels)):
        image = site.read(i).image
        prints.append(fingerprint(image))
        planes[i] = _planes(fitted(image.convert("L" if grey else "RGB"), recipe.size, recipe.fit))
    tests = np.array(tested(site.labels, site.parts, prints, recipe.test_share, recipe.split_seed))
    labels = np.array([classes.index(label) for label in site.labels])
    seen = np.frombuffer(b"".join(prints), np.uint8).reshape(-1, PRINT)
    shape = planes[0].shape
    arrays: Arrays = {}
    for part, chosen in zip(PARTS, (~tests, tests), strict=True):
        arrays |= {f"{part}_y": labels[chosen], f"{part}_print": seen[chosen]}
        arrays[f"{part}_x"] = _stacked(planes, np.flatnonzero(chosen).tolist(), shape)
    return arrays


def tested(
    labels: Sequence[str], parts: Sequence[Part], prints: Sequence[bytes], share: float, seed: int
) -> list[bool]:
    """For each image whether it is for testing: as the owner says, or divided here."""
    return [part == "test" for part in parts] if any(parts) else held_out(labels, prints, share, seed)


def _planes(image: Image.Image) -> Pixels:
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _stacked(planes: dict[int, Pixels], rows: list[int], shape: tuple[int, ...]) -> Pixels:
    """The rows as one array; each image is let go as it is copied, so that there is never a second set of them."""
    stack = np.empty((len(rows), *shape), np.uint8)
    for place, row in enumerate(rows):
        stack[place] = planes.pop(row)
    return stack
