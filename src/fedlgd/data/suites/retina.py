"""RETINA: glaucoma against normal at eye clinics. The paper's four sets in folders, or two other real sets."""

from dataclasses import dataclass
from typing import get_args

from fedlgd.core.errors import DataError, check
from fedlgd.data.federation import Federation, federation
from fedlgd.data.folders import Folders, opened
from fedlgd.data.home import data_home, domain
from fedlgd.data.layouts import survey
from fedlgd.data.prepared import PARTS, resized, site_of
from fedlgd.data.scaling import Scaling, scales

NAME = "retina"
PAIR = "retina-ab"
FETCH = "fedlgd data fetch retina"
LAYOUT = "<site>/Training|Testing/glaucoma|normal/<image>"
NOTE = "glaucoma against normal; the paper's own crops and balanced subsets are not published"
CLASSES = ("normal", "glaucoma")
PAIRED = {
    "hrf": ("retina_a", "real, the sjchoi86-HRF set; not one of the paper's sites"),
    "airogs": ("retina_b", "real, part of EyePACS-AIROGS-light; not one of the paper's sites"),
}
PAIR_NOTE = "glaucoma against normal at two real sites, which are not the paper's four"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retina:
    """The four sets of the paper (Drishti, Acrima, Rim, Refuge), or any others, in <data home>/retina/<site>.

    scaling: "own", each site by the mean and std of its training pixels, "shared", all by those of all sites, or
    "half", (x - 0.5) / 0.5. size: side of the images in pixels.
    """

    scaling: Scaling = "own"
    size: int = 96

    def __post_init__(self) -> None:
        _check(self.scaling, self.size)

    def open(self) -> Federation:
        """Every site folder that is there."""
        home = data_home() / NAME
        if not home.is_dir() or not any(home.iterdir()):
            raise DataError(f"there is no {home}; {FETCH} says how to get the sets; the layout is {LAYOUT}")
        settings = Folders(path=str(home), size=self.size, scaling=self.scaling)
        return opened(survey(home), settings, NAME, NOTE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetinaPair:
    """Two real sites from prepared files in the data home, retina_a.npz and retina_b.npz.

    scaling and size as for `retina`.
    """

    scaling: Scaling = "own"
    size: int = 96

    def __post_init__(self) -> None:
        _check(self.scaling, self.size)

    def open(self) -> Federation:
        hint = "copy the prepared file there, or use your own images: fedlgd run --data DIR"
        arrays = {name: domain(file, hint) for name, (file, _) in PAIRED.items()}
        for each in arrays.values():
            each.update({f"{part}_x": resized(each[f"{part}_x"], self.size) for part in PARTS})
        scaled = scales([each["train_x"] for each in arrays.values()], self.scaling)
        parts = zip(arrays.items(), scaled, strict=True)
        sites = [site_of(name, each, CLASSES, scale, PAIRED[name][1]) for (name, each), scale in parts]
        return federation(PAIR, sites, PAIR_NOTE)


def _check(scaling: str, size: int) -> None:
    words = get_args(Scaling)
    check(scaling in words, "data.scaling", repr(scaling), f"there are: {', '.join(words)}")
    check(8 <= size <= 1024, "data.size", size, "use 8 to 1024 pixels; the paper's size is 96")
