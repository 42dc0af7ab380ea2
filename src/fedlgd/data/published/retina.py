"""The suites `retina` and `retina-ab`: glaucoma against normal at eye clinics."""

from dataclasses import dataclass

from fedlgd.core.errors import DataError
from fedlgd.core.settings import setting
from fedlgd.data.arrays import PARTS, load_domain, resized, site_from_arrays
from fedlgd.data.federation import Federation, federation
from fedlgd.data.own.suite import Folders
from fedlgd.data.prepare import Scaling, scales
from fedlgd.data.suites import SuiteSettings, data_home

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
        home = data_home() / NAME
        if not home.is_dir() or not any(home.iterdir()):
            raise DataError("no-retina-sites", home=home, command=FETCH, layout=LAYOUT)
        return Folders(path=str(home), size=self.size, scaling=self.scaling).open(NAME, NOTE)


@dataclass(frozen=True, kw_only=True)
class RetinaPair(RetinaSettings):
    """Two real sites from the prepared files retina_a.npz and retina_b.npz in the data home."""

    def open(self) -> Federation:
        hint = "copy the prepared file there, or use your own images: fedlgd run --data DIR"
        found = {name: load_domain(file, hint) for name, (file, _) in PAIRED.items()}
        for arrays in found.values():
            arrays.update({f"{part}_x": resized(arrays[f"{part}_x"], self.size) for part in PARTS})
        scaled = scales([arrays["train_x"] for arrays in found.values()], self.scaling)
        parts = zip(found.items(), scaled, strict=True)
        sites = [site_from_arrays(name, arrays, CLASSES, scale, PAIRED[name][1]) for (name, arrays), scale in parts]
        return federation(PAIR, sites, PAIR_NOTE)
