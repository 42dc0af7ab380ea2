"""The suites `digits`, `retina` and `retina-ab`, whose sites are data sets of different origin.

`digits` are the paper's five sites, MNIST, SVHN, USPS, SynthDigits and MNIST-M, of one size in RGB; the other two
are glaucoma against normal at eye clinics.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from fedlgd.core.errors import DataError
from fedlgd.core.homes import data_home
from fedlgd.core.settings import setting
from fedlgd.core.types import Scale, Site, Stream
from fedlgd.data import arrays as store
from fedlgd.data import builtin
from fedlgd.data.federation import Federation, from_sites
from fedlgd.data.fetch.download import DATASETS, Dataset
from fedlgd.data.own.suite import Folders
from fedlgd.data.prepare import Scaling, scales
from fedlgd.data.suites import SuiteSettings

NAME = "digits"
RECIPE = 1  # increase with every change to the images, so that stored images of an older version are not used
CLASSES = tuple("0123456789")
FETCH = "fedlgd data fetch digits"
REQUIRED = ("mnist", "svhn", "usps", "mnist_m")
SYNTH = ("synth_ganin", "synth_folder")
RENDERED = {"train": 10_000, "test": 2_000}

SYNTH_SCALE = Scale((0.4828, 0.4603, 0.4320), (0.1960, 0.1938, 0.1977))
OWN = {
    "mnist": Scale((0.1307,) * 3, (0.3015,) * 3),
    "svhn": Scale((0.4379, 0.4440, 0.4731), (0.1161, 0.1192, 0.1017)),
    "usps": Scale((0.2473,) * 3, (0.2665,) * 3),
    "mnist_m": Scale((0.4595, 0.4629, 0.4097), (0.1727, 0.1603, 0.1785)),
}
STAND_IN = "digits rendered with 22 fonts in colour, with clutter: a stand-in for SynthDigits, not SynthDigits"


@dataclass(frozen=True, kw_only=True)
class Digits(SuiteSettings):
    """The five digit data sets of the paper, from prepared files in the data home."""

    scaling: Literal["half", "own"] = setting(
        "half", '"half": (x - 0.5) / 0.5 for all sites; "own": the mean and std published with each data set.'
    )
    synth: Literal["auto", "ganin", "folder", "rendered", "none"] = setting(
        "auto",
        'SynthDigits: "ganin", "folder" (12 000 digits on photographs), "rendered" (a stand-in), "none", '
        'or "auto", the first of these that is available.',
    )
    size: int = setting(28, "Side of the images in pixels; 28 in the paper.", least=8, most=512)

    def open(self) -> Federation:
        """The sites, resized on first use and stored in the data home; afterwards they are mapped from there."""
        synth = self._synth()
        needed = [*REQUIRED, *([synth] if synth in DATASETS else [])]
        missing = [f"{name}.npz" for name in needed if not _path(name).is_file()]
        if missing:
            raise DataError("files-missing", home=data_home(), files=missing, way_out=f"get them with: {FETCH}")
        names = [name for name in ("mnist", "svhn", "usps", synth, "mnist_m") if name != "none"]
        note = "the published digit sets" + ("" if synth in DATASETS else ", but without SynthDigits itself")
        return from_sites(NAME, [self._site(name) for name in names], note)

    def _synth(self) -> str:
        """The data set of the SynthDigits site, or "rendered" or "none"."""
        if self.synth == "auto":
            return next((name for name in SYNTH if _path(name).is_file()), "rendered")
        return self.synth if self.synth in ("rendered", "none") else f"synth_{self.synth}"

    def _site(self, name: str) -> Site:
        scale = OWN.get(name, SYNTH_SCALE) if self.scaling == "own" else Scale()
        folder = f"made/{NAME}-{RECIPE}"
        if name == "rendered":
            arrays = store.load_or_make(f"{folder}/synth-rendered-{self.size}", partial(_rendered, self.size))
            return store.site_from_arrays("synth-rendered", arrays, CLASSES, scale, STAND_IN)
        key = f"{folder}/{name}-{self.size}-{store.npz_digest(_path(name))}"
        way = f"get it with: {FETCH}"
        arrays = store.load_or_make(key, lambda: store.resized_domain(store.load_domain(name, way), self.size))
        note = release_note(DATASETS[name], len(arrays["train_y"]), len(arrays["test_y"]))
        return store.site_from_arrays(name.replace("_", "-"), arrays, CLASSES, scale, note)


def release_note(source: Dataset, train: int, test: int) -> str:
    """What the images are, and whether the file is complete by the sizes of the published releases."""
    if (train, test) in source.counts:
        return f"{source.what}; complete"
    whole = source.counts[0]
    parts = [f"{n:,} of {of:,}".replace(",", " ") for n, of in zip((train, test), whole, strict=True)]
    word = "subset" if train <= whole[0] and test <= whole[1] else "more than was published"
    return f"{source.what}; {word}: {', test '.join(parts)}"


def _path(name: str) -> Path:
    return data_home() / f"{name}.npz"


def _rendered(size: int) -> store.Arrays:
    arrays: store.Arrays = {}
    for part, count in RENDERED.items():
        generator = store.numpy_generator(Stream(RECIPE).at(NAME, "synth-rendered", part))
        images, labels = builtin.render_digits(builtin.font_image, count, generator)
        arrays |= {f"{part}_x": images.transpose(0, 2, 3, 1), f"{part}_y": labels.astype(np.uint8)}
    return store.resized_domain(arrays, size)


RETINA = "retina"
RETINA_PAIR = "retina-ab"
RETINA_LAYOUT = "<site>/Training|Testing/glaucoma|normal/<image>"
RETINA_NOTE = "glaucoma against normal; the paper's own crops and balanced subsets are not published"
RETINA_CLASSES = ("normal", "glaucoma")
PAIRED = {
    "hrf": ("retina_a", "real, the sjchoi86-HRF set; not one of the paper's sites"),
    "airogs": ("retina_b", "real, part of EyePACS-AIROGS-light; not one of the paper's sites"),
}
RETINA_PAIR_NOTE = "glaucoma against normal at two real sites, which are not the paper's four"


@dataclass(frozen=True, kw_only=True)
class RetinaSettings(SuiteSettings):
    """The settings of both suites."""

    scaling: Scaling = setting(
        "own", 'By mean and std of the training pixels of each site ("own") or of all ("shared"), or "half".'
    )
    size: int = setting(96, "Side of the images in pixels; 96 in the paper.", least=8, most=1024)


@dataclass(frozen=True, kw_only=True)
class Retina(RetinaSettings):
    """The four sets of the paper (Drishti, Acrima, Rim, Refuge), or any others, in <data home>/retina/<site>."""

    def open(self) -> Federation:
        """Every site folder in the data home."""
        home = data_home() / RETINA
        if not home.is_dir() or not any(home.iterdir()):
            raise DataError("no-retina-sites", home=home, command="fedlgd data fetch retina", layout=RETINA_LAYOUT)
        return Folders(path=str(home), size=self.size, scaling=self.scaling).open(RETINA, RETINA_NOTE)


@dataclass(frozen=True, kw_only=True)
class RetinaPair(RetinaSettings):
    """Two real sites from the prepared files retina_a.npz and retina_b.npz in the data home."""

    def open(self) -> Federation:
        hint = "copy the prepared file there, or use your own images: fedlgd run --data DIR"
        found = [store.resized_domain(store.load_domain(file, hint), self.size) for file, _ in PAIRED.values()]
        scaled = scales([arrays["train_x"] for arrays in found], self.scaling)
        sites = [
            store.site_from_arrays(name, arrays, RETINA_CLASSES, scale, note)
            for (name, (_, note)), arrays, scale in zip(PAIRED.items(), found, scaled, strict=True)
        ]
        return from_sites(RETINA_PAIR, sites, RETINA_PAIR_NOTE)
