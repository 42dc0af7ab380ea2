"""The suite `split`: one prepared domain partitioned among sites."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedlgd.core.errors import check
from fedlgd.core.rng import Stream
from fedlgd.core.settings import setting
from fedlgd.core.text import plural
from fedlgd.data import arrays as store
from fedlgd.data import partition
from fedlgd.data.federation import Federation, federation
from fedlgd.data.suites import SuiteSettings, data_home

NAME = "split"
RECIPE = 1  # increase with every change to the images, so that cached images of an older version are not used
BY = (
    '"iid": equal sites; "dirichlet": each class by its own shares from Dir(alpha); "quantity": all classes by the '
    'same shares from Dir(alpha); "shards": sorted by class and cut.'
)


@dataclass(frozen=True, kw_only=True)
class Split(SuiteSettings):
    """The training images of one prepared domain partitioned among sites; all sites share its test images."""

    of: str = setting("mnist", "The domain: a file <of>.npz in the data home.")
    by: Literal["iid", "dirichlet", "shards", "quantity"] = setting("dirichlet", BY)
    sites: int = setting(10, "Number of sites.", least=1, most=100_000)
    alpha: float = setting(
        0.5, "Dirichlet parameter: the smaller, the more the sites differ.", least=1e-3, most=1e6
    )
    shards: int = setting(2, 'Shards per site, for by="shards".', least=1, most=10_000)
    min_per_class: int = setting(
        0, 'Least number of training images of each class at each site; 0 for by="shards".', least=0, most=10**6
    )
    size: int = setting(0, "Side of the images in pixels; 0 leaves them unchanged.", least=0, most=512)
    seed: int = setting(0, "Seed of the partition.", least=0, most=2**63 - 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        plain = bool(self.of) and not set(self.of) & set("/\\") and not self.of.startswith(".")
        check(plain, "data.of", repr(self.of), "give the name of a file in the data home, such as mnist")
        both = self.by == "shards" and self.min_per_class > 0
        check(not both, "data.min_per_class", self.min_per_class, 'use 0 with data.by="shards": sites lack classes')

    def open(self) -> Federation:
        """The sites, mapped from the data home; partitioned and cached there on first use."""
        path = data_home() / f"{self.of}.npz"
        key = store.cache_key(store.npz_digest(path) if path.is_file() else "", self)
        arrays = store.load_or_make(f"made/{NAME}-{RECIPE}/{self.of}-{self.by}-{self.sites}-{key}", self._made)
        classes = tuple(str(k) for k in range(1 + max(int(arrays[f"{part}_y"].max()) for part in store.PARTS)))
        how, digits = self._how(), len(str(self.sites))
        sites = [
            store.site_from_arrays(
                f"{self.of}-{i + 1:0{digits}}",
                store.site_share(arrays, i),
                classes,
                note=f"part of {self.of}, {how}",
            )
            for i in range(self.sites)
        ]
        note = f"{self.of} partitioned among {plural(self.sites, 'site')}, {how}, seed {self.seed}"
        return federation(NAME, sites, note, self.min_per_class)

    def _made(self) -> store.Arrays:
        """The training images of a site are contiguous; `images` has their indices in the prepared file."""
        whole = store.load_domain(self.of, "prepared files are named <domain>.npz; see: fedlgd data list")
        size = self.size or whole["train_x"].shape[1]
        parts = self._partition(whole["train_y"])
        order = np.concatenate(parts)
        return {
            "images": order,
            "bounds": np.cumsum([0, *map(len, parts)]),
            "train_x": store.resized(whole["train_x"][order], size),
            "train_y": whole["train_y"][order],
            "test_x": store.resized(whole["test_x"], size),
            "test_y": whole["test_y"],
        }

    def _partition(self, labels: partition.Labels) -> list[partition.Numbers]:
        rng = Stream(self.seed).at(NAME, self.by)
        match self.by:
            case "iid":
                return partition.iid(labels, self.sites, rng, self.min_per_class)
            case "dirichlet":
                return partition.dirichlet(labels, self.sites, rng, self.alpha, self.min_per_class)
            case "quantity":
                return partition.quantity(labels, self.sites, rng, self.alpha, self.min_per_class)
            case "shards":
                return partition.shards(labels, self.sites, rng, self.shards)

    def _how(self) -> str:
        """What makes the sites differ, for the notes."""
        return {
            "iid": "evenly",
            "dirichlet": f"classes by Dir({self.alpha:g})",
            "quantity": f"sizes by Dir({self.alpha:g})",
            "shards": f"{self.shards} shards each",
        }[self.by]
