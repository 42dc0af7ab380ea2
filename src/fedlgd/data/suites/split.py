"""The suite `split`: one prepared data set divided among sites."""

import hashlib
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from fedlgd.core.errors import check
from fedlgd.core.rng import Stream
from fedlgd.core.types import Site
from fedlgd.data import partition
from fedlgd.data.federation import Federation, federation
from fedlgd.data.home import data_home, domain, kept
from fedlgd.data.prepared import Arrays, fingerprint, resized, site_of

NAME = "split"
RECIPE = 1  # goes up with every change to the images, so that an old file is never taken for a new one

By = Literal["iid", "dirichlet", "shards", "quantity"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The training images of one prepared domain among sites; all are tested on its test images.

    of: the domain, a file `<of>.npz` of the data home. by: "iid", every site has the same of everything;
    "dirichlet", each class by shares of its own drawn from Dir(alpha); "quantity", all classes by the same
    shares drawn from Dir(alpha), so that sites differ in size; "shards", sorted by class and cut, `shards`
    pieces a site. min_per_class: images of every class at every site, not with "shards". size: side of the
    images in pixels, 0 as they are. seed: of the division.
    """

    of: str = "mnist"
    by: By = "dirichlet"
    sites: int = 10
    alpha: float = 0.5
    shards: int = 2
    min_per_class: int = 0
    size: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        check(self.by in get_args(By), "data.by", repr(self.by), f"there are: {', '.join(get_args(By))}")
        plain = bool(self.of) and not set(self.of) & set("/\\") and not self.of.startswith(".")
        check(plain, "data.of", repr(self.of), "give the name of a file of the data home, such as mnist")
        check(self.sites >= 1, "data.sites", self.sites, "use 1 or more")
        check(self.shards >= 1, "data.shards", self.shards, "use 1 or more a site")
        check(0 <= self.size <= 512, "data.size", self.size, "use 0 (as they are) to 512 pixels")
        both = self.by == "shards" and self.min_per_class > 0
        check(not both, "data.min_per_class", self.min_per_class, 'use 0 with data.by="shards": sites lack classes')

    def open(self) -> Federation:
        """The sites, mapped from the data home; divided there on first use."""
        path = data_home() / f"{self.of}.npz"
        settings = (fingerprint(path) if path.is_file() else "", self)
        digest = hashlib.blake2b(repr(settings).encode(), digest_size=6).hexdigest()
        arrays = kept(f"made/{NAME}-{RECIPE}/{self.of}-{self.by}-{self.sites}-{digest}", self._made)
        classes = tuple(
            str(k) for k in range(1 + max(int(arrays[f"{part}_y"].max()) for part in ("train", "test")))
        )
        sites = [self._site(arrays, classes, i) for i in range(self.sites)]
        note = f"{self.of} divided among {self.sites} sites, {self._how()}, seed {self.seed}"
        return federation(NAME, sites, note, self.min_per_class)

    def _site(self, arrays: Arrays, classes: tuple[str, ...], i: int) -> Site:
        mine = slice(*arrays["bounds"][i : i + 2].tolist())
        own = arrays | {key: arrays[key][mine] for key in ("train_x", "train_y")}
        name = f"{self.of}-{i + 1:0{len(str(self.sites))}}"
        return site_of(name, own, classes, note=f"part of {self.of}, {self._how()}")

    def _made(self) -> Arrays:
        """The training images of a site lie together; `images` has their numbers in the file."""
        whole = domain(self.of, "prepared files are named <domain>.npz; see: fedlgd data list")
        size = self.size or whole["train_x"].shape[1]
        parts = self._parts(whole["train_y"])
        order = np.concatenate(parts)
        return {
            "images": order,
            "bounds": np.cumsum([0, *map(len, parts)]),
            "train_x": resized(whole["train_x"][order], size),
            "train_y": whole["train_y"][order],
            "test_x": resized(whole["test_x"], size),
            "test_y": whole["test_y"],
        }

    def _parts(self, labels: partition.Labels) -> list[partition.Numbers]:
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
        """In words, what makes the sites differ."""
        return {
            "iid": "evenly",
            "dirichlet": f"classes by Dir({self.alpha:g})",
            "quantity": f"sizes by Dir({self.alpha:g})",
            "shards": f"{self.shards} shards each",
        }[self.by]
