"""The suite `cifar10c`: nineteen corruptions of the same photographs, each at three sites with label shift."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from fedlgd.core.errors import DataError, SettingError, check, did_you_mean
from fedlgd.core.meter import track
from fedlgd.core.rng import Stream
from fedlgd.core.settings import setting
from fedlgd.core.types import Scale, Site
from fedlgd.data import arrays as store
from fedlgd.data.arrays import Arrays, Pixels
from fedlgd.data.federation import Federation, federation
from fedlgd.data.published.split import dirichlet
from fedlgd.data.suites import SuiteSettings, data_home

NAME = "cifar10c"
RECIPE = 1  # increase with every change to the images, so that cached images of an older version are not used
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PHOTOGRAPHS = "cifar10_test"
FOLDER = "CIFAR-10-C"
GET_OFFICIAL = "get it with: fedlgd data fetch cifar10c"
SEVERITY_LEVELS = 5  # severities in an official file, one after the other
HELD_OUT = 10  # the last tenth of the photographs is never trained on, by any site: 9000-9999 of 10 000

SCALES: dict[str, Scale] = {"none": Scale((0.0,) * 3, (1.0,) * 3), "half": Scale()}

SEVERITIES: dict[str, tuple[tuple[float, ...], ...]] = {
    "gaussian_noise": ((0.04,), (0.06,), (0.08,), (0.09,), (0.10,)),
    "shot_noise": ((500,), (250,), (100,), (75,), (50,)),
    "impulse_noise": ((0.01,), (0.02,), (0.03,), (0.05,), (0.07,)),
    "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    "glass_blur": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    "motion_blur": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    "zoom_blur": ((1.06,), (1.11,), (1.16,), (1.21,), (1.26,)),
    "snow": (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    "frost": ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    "brightness": ((0.05,), (0.1,), (0.15,), (0.2,), (0.3,)),
    "contrast": ((0.75,), (0.5,), (0.4,), (0.3,), (0.15,)),
    "elastic_transform": (
        (0, 0, 0.08),
        (0.05, 0.2, 0.07),
        (0.08, 0.06, 0.06),
        (0.1, 0.04, 0.05),
        (0.1, 0.03, 0.03),
    ),
    "pixelate": ((0.95,), (0.9,), (0.85,), (0.75,), (0.65,)),
    "jpeg_compression": ((80,), (65,), (58,), (50,), (40,)),
    "speckle_noise": ((0.06,), (0.1,), (0.12,), (0.16,), (0.2,)),
    "gaussian_blur": ((0.4,), (0.6,), (0.7,), (0.8,), (1,)),
    "spatter": (
        (0.62, 0.1, 0.7, 0.7, 0.5, 0),
        (0.65, 0.1, 0.8, 0.7, 0.5, 0),
        (0.65, 0.3, 1, 0.69, 0.5, 0),
        (0.65, 0.1, 0.7, 0.69, 0.6, 1),
        (0.65, 0.1, 0.5, 0.68, 0.6, 1),
    ),
    "saturate": ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
}
"""The constants of CIFAR-10-C for severities 1 to 5; those of ImageNet-C are for larger images.

In the order of the original: fifteen corruptions, then four extra ones. The numbers are the arguments of the
function of the same name in `corruptions`.
"""


@dataclass(frozen=True, kw_only=True)
class Cifar10C(SuiteSettings):
    """Every corruption is a domain, partitioned among `parts` sites by Dir(alpha) per class."""

    source: Literal["made", "official"] = setting(
        "made", '"made": corrupted here from the CIFAR-10 test photographs; "official": the files of CIFAR-10-C.'
    )
    corruptions: tuple[str, ...] = setting(tuple(SEVERITIES), "Names of the corruptions, each once.")
    severity: int = setting(3, "Severity of the corruptions, 1 (mild) to 5.", least=1, most=SEVERITY_LEVELS)
    train_photos: int = setting(
        6000, "Training photographs per corruption, from number 0; 6000 in the paper.", least=1, most=10**6
    )
    test_photos: int = setting(
        1000, "Test photographs per corruption, from the last tenth, never trained on.", least=1, most=10**6
    )
    parts: int = setting(3, "Sites per corruption.", least=1, most=1000)
    alpha: float = setting(
        2.0, "Dirichlet parameter: the smaller, the more the sites differ.", least=1e-3, most=1e6
    )
    min_per_class: int = setting(
        100, "Least number of training images of each class at each site.", least=0, most=10**6
    )
    size: Literal[28, 32] = setting(28, "Side of the images in pixels.")
    scaling: Literal["none", "half"] = setting("none", '"none": pixels in 0..1; "half": (x - 0.5) / 0.5.')
    seed: int = setting(0, "Seed of the corruptions and of the partition.", least=0, most=2**63 - 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.corruptions:
            if name not in SEVERITIES:
                hint = did_you_mean(name, SEVERITIES) or ";"
                raise SettingError("unknown-corruption", name=name, hint=hint, available=list(SEVERITIES))
        once = len(set(self.corruptions)) == len(self.corruptions) > 0
        check(once, "data.corruptions", list(self.corruptions), "name at least one, and each once")

    def open(self) -> Federation:
        """The sites, mapped from the data home; made and cached there on first use, corruption by corruption."""
        origin = Made(self.seed) if self.source == "made" else Official()
        sites: list[Site] = []
        for i in track("cifar10c", len(self.corruptions)):
            sites += self._sites(origin, self.corruptions[i])
        note = (
            f"{origin.note}; severity {self.severity}; trained on photographs 0 to {self.train_photos - 1}, "
            f"tested on {self.test_photos} of the last tenth, the same for every corruption"
        )
        return federation(NAME, sites, note, self.min_per_class)

    def _sites(self, origin: "Made | Official", name: str) -> list[Site]:
        """The sites of one corruption: each has its own training images, all share the test images."""
        settings = (self.train_photos, self.test_photos, self.parts, self.alpha, self.min_per_class, self.seed)
        key = f"{name}-{self.source}-{self.severity}-{self.size}-{store.cache_key(origin.digest(name), *settings)}"
        arrays = store.load_or_make(f"made/{NAME}-{RECIPE}/{key}", lambda: self._made(origin, name))
        scale, note = SCALES[self.scaling], origin.describe(name, self.severity)
        return [
            store.site_from_arrays(f"{name}-{i + 1}", store.site_share(arrays, i), CLASSES, scale, note)
            for i in range(self.parts)
        ]

    def _made(self, origin: "Made | Official", name: str) -> Arrays:
        """All images of one corruption. The images of a site are contiguous; `photos` has their numbers."""
        count = len(origin.labels)
        held_out = count // HELD_OUT
        for setting_name, most in (("train_photos", count - held_out), ("test_photos", held_out)):
            if (wanted := getattr(self, setting_name)) > most:
                values = {"wanted": wanted, "most": most, "count": count}
                raise DataError("too-few-photographs", setting=f"data.{setting_name}", **values)
        train, test = range(self.train_photos), range(count - held_out, count - held_out + self.test_photos)
        labels = origin.labels[: train.stop]
        rng = Stream(self.seed).at(NAME, name)
        parts = dirichlet(labels, self.parts, rng, self.alpha, self.min_per_class)
        order = np.concatenate(parts)
        return {
            "photos": order,
            "bounds": np.cumsum([0, *map(len, parts)]),
            "train_x": store.resized(origin.images(name, self.severity, train)[order], self.size),
            "train_y": labels[order],
            "test_x": store.resized(origin.images(name, self.severity, test), self.size),
            "test_y": origin.labels[test.start : test.stop],
        }


class Made:
    """CIFAR-10's test photographs, corrupted here."""

    note = "made from the CIFAR-10 test photographs by CIFAR-10-C's recipes and constants; not its published files"

    def __init__(self, seed: int) -> None:
        self._seed = seed

    @cached_property
    def _photographs(self) -> Arrays:
        return store.load_domain(PHOTOGRAPHS, "get it with: fedlgd data fetch cifar10", ("test",))

    @property
    def labels(self) -> Pixels:
        return self._photographs["test_y"]

    def images(self, name: str, severity: int, wanted: range) -> Pixels:
        from fedlgd.data.published.corruptions import corrupted  # here, because scipy is slow to import

        return corrupted(self._photographs["test_x"], name, severity, wanted, self._seed)

    def digest(self, name: str) -> str:
        return store.npz_digest(data_home() / f"{PHOTOGRAPHS}.npz")

    def describe(self, name: str, severity: int) -> str:
        drawn = "; the frost is drawn, the original overlays photographs of frost" if name == "frost" else ""
        return f"{name} of severity {severity}, made from CIFAR-10 test photographs{drawn}"


class Official:
    """The files of CIFAR-10-C, mapped: severities 1 to 5 one after the other, each of the same photographs."""

    note = "CIFAR-10-C"

    @cached_property
    def labels(self) -> Pixels:
        labels = _mapped("labels")
        return np.asarray(labels[: len(labels) // SEVERITY_LEVELS])

    def images(self, name: str, severity: int, wanted: range) -> Pixels:
        every = _mapped(name)
        count = len(self.labels)
        expected = (SEVERITY_LEVELS * count, 32, 32, 3)
        if every.shape != expected or every.dtype != np.uint8:
            found = {"dtype": every.dtype, "shape": every.shape, "expected": expected}
            raise DataError("array-of-wrong-shape", path=_file(name), way_out=GET_OFFICIAL, **found)
        first = (severity - 1) * count
        return np.asarray(every[first + wanted.start : first + wanted.stop])

    def digest(self, name: str) -> str:
        found = [file.stat() for file in (_file(name), _file("labels")) if file.is_file()]
        return repr([(file.st_size, file.st_mtime_ns) for file in found])

    def describe(self, name: str, severity: int) -> str:
        return f"{name} of severity {severity}, from CIFAR-10-C"


def _file(name: str) -> Path:
    return data_home() / FOLDER / f"{name}.npy"


def _mapped(name: str) -> Pixels:
    path = _file(name)
    if not path.is_file():
        raise DataError("files-missing", home=data_home(), files=[f"{FOLDER}/{name}.npy"], way_out=GET_OFFICIAL)
    try:
        return np.asanyarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except (ValueError, EOFError) as error:
        raise DataError("npy-unreadable", path=path, error=error, way_out=GET_OFFICIAL) from error
