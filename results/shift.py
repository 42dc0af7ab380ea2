"""Measure the RBF-MMD between the digit sites before and after distribution matching.

Run: python -m results.shift distil FOLDER   create the virtual sets in FOLDER (most of an hour; those of the
                                                  runs of `fedlgd paper table-digits --scale full` from the cache)
     python -m results.shift measure FOLDER  measure the distances, to results/measured/shift/
     make results                      generate the page docs/results/shift.md
"""

import json
import logging
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedlgd.core.losses import cross_entropy
from fedlgd.core.net import Net
from fedlgd.core.train import Local, sgd
from fedlgd.core.types import Params, Site, Stream
from fedlgd.data.arrays import read_arrays, write_arrays
from fedlgd.data.federation import Federation, limited, pooled
from fedlgd.data.published.domains import Digits
from fedlgd.distill.distribution import first_set
from fedlgd.distill.init import from_real
from fedlgd.distill.settings import Distil
from fedlgd.nets.registry import build_net
from fedlgd.runs.analysis import mmd2
from fedlgd.runs.folder import shared_cache
from fedlgd.runs.shift import Space, features, pixels, random_features, width_of
from results import MEASURED

FOLDER = MEASURED / "shift"
WIDTH = 32  # width of the trained network and of all distillation networks
OTHER_WIDTH = 64  # width of the random networks for the measurement
REAL_PER_CLASS = 64  # real images per class and step; 256 in the paper
DRAWS = 5

log = logging.getLogger("shift")


@dataclass(frozen=True, slots=True)
class Case:
    """One distillation setting, with several seeds. `of_runs`: the virtual sets of runs with default settings."""

    start: str
    per_class: int
    steps: int
    seeds: tuple[int, ...]
    of_runs: bool = False

    @property
    def how(self) -> Distil:
        if self.of_runs:
            return Distil(per_class=self.per_class, steps=self.steps, start=self.start)
        return Distil(per_class=self.per_class, steps=self.steps, start=self.start, real_per_class=REAL_PER_CLASS)

    @property
    def name(self) -> str:
        return f"{self.start}-{self.per_class}-{self.steps}"


CASES = (
    Case("statistics", 10, 0, (0, 1, 2)),
    Case("statistics", 10, 100, (0, 1, 2)),
    Case("statistics", 10, 250, (0, 1, 2)),
    Case("statistics", 10, 2000, (0, 1, 2), of_runs=True),
    Case("real", 10, 100, (0,)),
    Case("noise", 10, 100, (0,)),
    Case("statistics", 50, 50, (0,)),
)


def distil_all(folder: Path, federation: Federation) -> None:
    for case in CASES:
        for seed in case.seeds:
            for site in federation.sites:
                virtual(folder, federation, site, case, seed)
                log.info("distilled: %s, seed %d, %s", case.name, seed, site.name)


def virtual(folder: Path, federation: Federation, site: Site, case: Case, seed: int) -> Tensor:
    """The virtual images of a site, sorted by class; cached in the folder."""
    path = _file(folder, site, case, seed)
    if not path.is_file():
        write_arrays(path, {"images": _distilled(federation, site, case, seed).numpy()})
    return torch.from_numpy(read_arrays(path)["images"])


def _distilled(federation: Federation, site: Site, case: Case, seed: int) -> Tensor:
    if not case.of_runs:
        return first_set(site, _net(federation), case.how, Stream(seed).at("shift", "distil", site.name)).images
    net = build_net("convnet", federation.shape, len(federation.classes))  # as the runs name it in the cache
    site = replace(site, cache=shared_cache())
    return first_set(site, net, case.how, Stream(seed).at("enrol", site.name, "distil")).images


def _file(folder: Path, site: Site, case: Case, seed: int) -> Path:
    return folder / case.name / f"{site.name}-{seed}.npz"


def trained(folder: Path, federation: Federation) -> Params:
    """A model trained on all sites together, 2 000 real images each; cached in the folder."""
    path = folder / "model.npz"
    if not path.is_file():
        data = pooled(limited(federation, 2000)).sites[0].train
        net, rng = _net(federation), Stream(0).at("shift", "model")

        def objective(w: Params, index: Tensor) -> Tensor:
            batch = data.take(index)
            return cross_entropy(net(w, batch.x).logits, batch.y)

        how = Local(epochs=5, lr=0.05, momentum=0.9)
        made = sgd(net, net.init(rng.at("init")), len(data), objective, how, rng)
        write_arrays(path, {name: value.numpy() for name, value in made.params.items()})
    return {name: torch.from_numpy(value) for name, value in read_arrays(path).items()}


def accuracy(folder: Path, federation: Federation, count: int = 500) -> float:
    """Accuracy of the trained model on the first test images of each site; mean over sites."""
    net, params = _net(federation), trained(folder, federation)
    parts = [site.test.take(slice(0, count)) for site in federation.sites]
    hits = [(net.frozen(params, part.x).logits.argmax(1) == part.y).double().mean().item() for part in parts]
    return round(statistics.fmean(hits), 4)


def _net(federation: Federation, width: int = WIDTH) -> Net:
    return build_net("convnet", federation.shape, len(federation.classes), {"width": width})


def measure_all(folder: Path, federation: Federation) -> None:
    """Measure every case with virtual sets in the folder, for all complete seeds."""
    FOLDER.mkdir(exist_ok=True)
    for case in CASES:
        complete = [
            s for s in case.seeds if all(_file(folder, site, case, s).is_file() for site in federation.sites)
        ]
        runs = [measured(folder, federation, case, seed) for seed in complete]
        if not runs:
            continue
        record = {
            "case": asdict(case.how),
            "width": WIDTH,
            "random width": OTHER_WIDTH,
            "sites": [{"name": s.name, "images": len(s.train), "note": s.note} for s in federation.sites],
            "draws": DRAWS,
            "trained accuracy": accuracy(folder, federation),
            "torch": torch.__version__,
            "pairs": [list(pair) for pair in combinations((s.name for s in federation.sites), 2)],
            "runs": runs,
        }
        (FOLDER / f"{case.name}.json").write_text(json.dumps(record, indent=1) + "\n")


def measured(folder: Path, federation: Federation, case: Case, seed: int) -> dict[str, Any]:
    """Distances between sites for real and virtual images of equal number; cached in the folder."""
    path = folder / case.name / f"measured-{seed}.json"
    if not path.is_file():
        path.write_text(json.dumps({"seed": seed, "spaces": _measured(folder, federation, case, seed)}))
        log.info("measured: %s, seed %d", case.name, seed)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _measured(folder: Path, federation: Federation, case: Case, seed: int) -> dict[str, Any]:
    made = {site.name: virtual(folder, federation, site, case, seed) for site in federation.sites}
    net, other = _net(federation), _net(federation, OTHER_WIDTH)
    spaces: dict[str, Space] = {
        "random features": random_features(other, Stream(seed).at("shift", "measure")),
        "trained features": features(net, trained(folder, federation)),
        "pixels": pixels,
    }
    return {space: _in_space(federation, case, seed, made, embed) for space, embed in spaces.items()}


def _in_space(
    federation: Federation, case: Case, seed: int, made: Mapping[str, Tensor], embed: Space
) -> dict[str, Any]:
    draws = []
    for draw in range(DRAWS):
        real, more = {}, {}
        for site in federation.sites:
            generator = Stream(seed).at("shift", "real", site.name, draw).generator()
            both = from_real(site.train, range(10), 2 * case.per_class, generator)
            halves = both.unflatten(0, (10, 2, case.per_class)).transpose(0, 1).flatten(1, 2)
            real[site.name], more[site.name] = embed(halves[0], draw), embed(halves[1], draw)
        distilled = {name: embed(images, draw) for name, images in made.items()}
        draws.append(_distances(real, more, distilled, case.per_class))
    return {among: _over_draws([draw[among] for draw in draws]) for among in draws[0]}


def _distances(
    real: Mapping[str, Tensor], more: Mapping[str, Tensor], made: Mapping[str, Tensor], per_class: int
) -> dict[str, dict[str, list[float]]]:
    """Over all images, and within each class (mean over classes); rows are sorted by class."""
    n = len(next(iter(real.values())))
    groups = {
        "all images": [slice(0, n)],
        "class by class": [slice(i, i + per_class) for i in range(0, n, per_class)],
    }
    return {among: _in_groups(real, more, made, slices) for among, slices in groups.items()}


def _in_groups(
    real: Mapping[str, Tensor], more: Mapping[str, Tensor], made: Mapping[str, Tensor], groups: Sequence[slice]
) -> dict[str, list[float]]:
    def mean(a: Tensor, b: Tensor, unbiased: bool = False, like: tuple[Tensor, Tensor] | None = None) -> float:
        widths = [width_of(like[0][g], like[1][g]) if like else 0.0 for g in groups]
        return statistics.fmean(mmd2(a[g], b[g], unbiased, w) for g, w in zip(groups, widths, strict=True))

    pairs = list(combinations(real, 2))
    return {
        "real biased": [mean(real[a], real[b]) for a, b in pairs],
        "virtual biased": [mean(made[a], made[b]) for a, b in pairs],
        "real unbiased": [mean(real[a], real[b], True) for a, b in pairs],
        "virtual unbiased": [mean(made[a], made[b], True) for a, b in pairs],
        "virtual width of the real pair": [mean(made[a], made[b], like=(real[a], real[b])) for a, b in pairs],
        "same site biased": [mean(real[a], more[a]) for a in real],
        "same site unbiased": [mean(real[a], more[a], True) for a in real],
    }


def _over_draws(draws: Sequence[Mapping[str, list[float]]]) -> dict[str, dict[str, list[float]]]:
    columns = {key: list(zip(*(draw[key] for draw in draws), strict=True)) for key in draws[0]}
    return {
        key: {
            "mean": [round(statistics.fmean(values), 6) for values in rows],
            "std": [round(statistics.stdev(values), 6) for values in rows],
        }
        for key, rows in columns.items()
    }


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(1)
    {"distil": distil_all, "measure": measure_all}[sys.argv[1]](Path(sys.argv[2]), Digits().open())
