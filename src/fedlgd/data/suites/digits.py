"""DIGITS: five sites in the paper's order, MNIST, SVHN, USPS, SynthDigits, MNIST-M, of one size in RGB."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.random import PCG64, Generator

from fedlgd.core.errors import DataError, check
from fedlgd.core.rng import Stream
from fedlgd.core.types import Scale, Site
from fedlgd.data import render
from fedlgd.data.federation import Federation, federation
from fedlgd.data.home import data_home, domain, kept
from fedlgd.data.prepared import PARTS, Arrays, fingerprint, resized, site_of
from fedlgd.data.sources import OPTIONAL, SOURCES, Source

NAME = "digits"
RECIPE = 1  # goes up with every change to how images are made, so that an old file is never taken for a new one
CLASSES = tuple("0123456789")
FETCH = "fedlgd data fetch digits"
FILES = ("mnist", "svhn", "usps", "mnist_m")
RENDERED = {"train": 10_000, "test": 2_000}

Scaling = Literal["half", "own"]
Synth = Literal["auto", "ganin", "folder", "rendered", "none"]


SYNTH_SCALE = Scale((0.4828, 0.4603, 0.4320), (0.1960, 0.1938, 0.1977))
OWN = {
    "mnist": Scale((0.1307,) * 3, (0.3015,) * 3),
    "svhn": Scale((0.4379, 0.4440, 0.4731), (0.1161, 0.1192, 0.1017)),
    "usps": Scale((0.2473,) * 3, (0.2665,) * 3),
    "mnist_m": Scale((0.4595, 0.4629, 0.4097), (0.1727, 0.1603, 0.1785)),
}
STAND_IN = "digits rendered with 22 fonts in colour, with clutter: a stand-in for SynthDigits, not SynthDigits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Digits:
    """The five digit data sets of the paper, from prepared files in the data home.

    scaling: "half", (x - 0.5) / 0.5 for all, or "own", each set by the mean and std published with it.
    synth: which SynthDigits: "ganin", "folder" (12 000 images on photographs), "rendered" (a stand-in made
    here), "none", or "auto", the first of these that is there. size: side of the images in pixels.
    """

    scaling: Scaling = "half"
    synth: Synth = "auto"
    size: int = 28

    def __post_init__(self) -> None:
        for name, words in (("scaling", get_args(Scaling)), ("synth", get_args(Synth))):
            value = getattr(self, name)
            check(value in words, f"data.{name}", repr(value), f"there are: {', '.join(words)}")
        check(8 <= self.size <= 512, "data.size", self.size, "use 8 to 512 pixels; the paper's size is 28")

    def open(self) -> Federation:
        """The sites, resized on first use and kept in the data home; afterwards they are mapped from there."""
        synth = self._synth()
        _refuse_missing([*FILES, *([synth] if synth in SOURCES else [])])
        names = [name for name in ("mnist", "svhn", "usps", synth, "mnist_m") if name != "none"]
        note = "the published digit sets" + ("" if synth in SOURCES else ", but without SynthDigits itself")
        return federation(NAME, [self._site(name) for name in names], note)

    def _synth(self) -> str:
        """The data set of the SynthDigits site, or "rendered" or "none"."""
        if self.synth == "auto":
            return next((name for name in OPTIONAL if _path(name).is_file()), "rendered")
        return self.synth if self.synth in ("rendered", "none") else f"synth_{self.synth}"

    def _site(self, name: str) -> Site:
        scale = OWN.get(name, SYNTH_SCALE) if self.scaling == "own" else Scale()
        if name == "rendered":
            arrays = _made(f"synth-rendered-{self.size}", partial(_rendered, self.size))
            return site_of("synth-rendered", arrays, CLASSES, scale, STAND_IN)
        arrays = _made(f"{name}-{self.size}-{fingerprint(_path(name))}", partial(_resized, name, self.size))
        note = described(SOURCES[name], len(arrays["train_y"]), len(arrays["test_y"]))
        return site_of(name.replace("_", "-"), arrays, CLASSES, scale, note)


def described(source: Source, train: int, test: int) -> str:
    """What the images are; a file without the sizes of a published release says so."""
    if (train, test) in source.counts:
        return f"{source.what}; complete"
    whole = source.counts[0]
    parts = [f"{_count(n)} of {_count(of)}" for n, of in zip((train, test), whole, strict=True)]
    word = "subset" if train <= whole[0] and test <= whole[1] else "more than was published"
    return f"{source.what}; {word}: {', test '.join(parts)}"


def _count(number: int) -> str:
    return f"{number:,}".replace(",", " ")


def _path(name: str) -> Path:
    return data_home() / f"{name}.npz"


def _refuse_missing(names: list[str]) -> None:
    missing = [f"{name}.npz" for name in names if not _path(name).is_file()]
    if missing:
        raise DataError(f"the data home {data_home()} has no {', '.join(missing)}; get them with: {FETCH}")


def _made(key: str, make: Callable[[], Arrays]) -> Arrays:
    return kept(f"made/{NAME}-{RECIPE}/{key}", make)


def _resized(name: str, size: int) -> Arrays:
    arrays = domain(name, f"get it with: {FETCH}")
    images = {f"{part}_x": resized(arrays[f"{part}_x"], size) for part in PARTS}
    return images | {f"{part}_y": arrays[f"{part}_y"] for part in PARTS}


def _rendered(size: int) -> Arrays:
    arrays: Arrays = {}
    for part, count in RENDERED.items():
        labels = render.in_turn(count)
        generator = Generator(PCG64(Stream(RECIPE).at(NAME, "synth-rendered", part).number()))
        arrays[f"{part}_x"] = resized(render.fonts(labels, generator).transpose(0, 2, 3, 1), size)
        arrays[f"{part}_y"] = labels.astype(np.uint8)
    return arrays
