"""The price of epsilon: accuracy of FedLGD on real digit sites with and without privacy, and of DP-SGD.

Run: FEDLGD_DATA=DATA python -m results.epsilon OUT epsilon 0 1 2    three sites like MNIST
     FEDLGD_DATA=DATA python -m results.epsilon OUT svhn 0 1 2       MNIST and SVHN
     FEDLGD_DATA=DATA python -m results.epsilon OUT trials           why few releases lose accuracy
     FEDLGD_DATA=DATA python -m results.epsilon OUT dp-sgd           the settings of DP-SGD
     FEDLGD_DATA=DATA python -m results.epsilon OUT preset 0 1 2     preset `private` of FedLGD
     FEDLGD_DATA=DATA python -m results.epsilon OUT fedlap 0 1 2     FedLAP-DP
     FEDLGD_DATA=DATA python -m results.epsilon OUT validation       the preset and DP-SGD, held-out images
Each writes OUT/<its name>.json. Finished runs in OUT are not repeated.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from fedlgd.core.files import write_atomic
from fedlgd.data.federation import Federation
from fedlgd.data.suites import load
from fedlgd.dp import release
from fedlgd.methods.fedlgd import FedLGD
from fedlgd.runs.config import resolve
from fedlgd.runs.run import execute

SITES: Mapping[str, tuple[str, ...]] = {"svhn": ("mnist", "svhn"), "": ("mnist", "usps", "mnist-m")}
LIMIT, SIZE = 8_000, 16
EPSILONS = (0.0, 4.0, 1.0, 10.0)  # 0: no noise
NOISELESS = 100.0  # the releases of private distillation, with their noise left out
COMMON: dict[str, Any] = {
    "data": {"name": "digits", "limit": LIMIT, "size": SIZE},
    "net.width": 32,
    "rounds": 15,
    "evaluate_every": 15,
    "analysis": False,
    "real_samples": 0,
}
PRIVATE: dict[str, Any] = {
    "method": "fedlgd",
    "local.lr": 0.05,
    "local.momentum": 0.9,
    "local.epochs": 3,
    "distil.start": "mean-image",
    "distil.width": 16,
    "distil.private.test_key": "measurement on public images",
    "distil.steps": 600,
    "distil.private.releases": 300,
    "distil.private.rate": 0.1,
    "refine.selected.count": 3,
    "refine.steps": 20,
    "refine.pairs": 1,
    "anchors.selected.count": 3,
    "anchors.steps": 10,
}
"""The same for every epsilon, as the trials on seed 0 decided."""

CONVERGED = {"epsilon": 4800, "svhn": 2400}  # steps of distillation
LONGER: dict[str, Any] = {"distil.steps": 1200}
FEW = {"distil.private.releases": 30, "distil.private.rate": 1.0}
TRIALS: Mapping[str, tuple[float, dict[str, Any]]] = {
    "no privacy": (0.0, {}),
    "no privacy, twice the steps": (0.0, LONGER),
    "no privacy, no refinement": (0.0, {"refine.steps": 0}),
    "30 releases, no noise": (NOISELESS, FEW),
    "30 releases, no noise, no clipping": (NOISELESS, FEW | {"distil.private.clip": 100.0}),
    "30 releases, no noise, no refinement": (NOISELESS, FEW | {"refine.steps": 0}),
    "300 releases, no noise": (NOISELESS, {"distil.private.rate": 1.0}),
    "300 releases of a tenth of the images, epsilon 4": (4.0, {}),
    "300 releases of a tenth of the images, epsilon 4, clip 0.3": (4.0, {"distil.private.clip": 0.3}),
    "converged, 300 releases, no noise": (NOISELESS, {"distil.steps": 4800}),
    "converged, 1200 releases, no noise": (NOISELESS, {"distil.steps": 4800, "distil.private.releases": 1200}),
    "converged, 300 releases, no noise, no clipping": (
        NOISELESS,
        {"distil.steps": 4800, "distil.private.clip": 100.0},
    ),
    "epsilon 4, 2400 steps": (4.0, {"distil.steps": 2400}),
    "epsilon 4, 2400 steps and 1200 releases": (4.0, {"distil.steps": 2400, "distil.private.releases": 1200}),
}
"""What costs accuracy: one change at a time, seed 0."""

DP_SGD: dict[str, Any] = {"local.batch": 256, "local.lr": 4.0, "local.steps": 20}
DP_TRIALS: Mapping[str, dict[str, Any]] = {
    "rate 0.5, 5 steps": {"local.lr": 0.5, "local.steps": 5},
    "rate 2, 5 steps": {"local.lr": 2.0, "local.steps": 5},
    "rate 4, 5 steps": {"local.lr": 4.0, "local.steps": 5},
    "rate 1, 20 steps": {"local.lr": 1.0, "local.steps": 20},
    "rate 2, 20 steps": {"local.lr": 2.0, "local.steps": 20},
    "rate 4, 20 steps": {"local.lr": 4.0, "local.steps": 20},
    "rate 2, 20 steps, clip 0.3": {"local.lr": 2.0, "local.steps": 20, "dp.clip": 0.3},
}
"""Settings of DP-SGD at epsilon 4, seed 0."""

PRESET: dict[str, Any] = {
    "method": "fedlgd",
    **FedLGD.presets["private"],
    "distil.private.test_key": "measurement on public images",
    "distil.private.rate": 0.1,
}
"""Each sum has a tenth of the images, to save time: its noise is nearly that of a sum of all images."""

LAP: dict[str, Any] = {
    "method": "fedlap",
    "dp.test_key": "measurement on public images",
    "radius": 1.5,
    "outer": 1,
    "batches": 1,
    "boost": 10,
    "inner": 1,
    "real_batch": 1024,
    "local.epochs": 20,
}
"""FedLAP-DP in the constant radius of the released configuration: one gradient of many images in a round. This was
the best of five settings on held-out images at epsilon 4."""

HELD_OUT = 1_000  # training images of each site, on which settings are chosen

START_ONLY: dict[str, Any] = {"distil.steps": 0, "refine.steps": 0}


Cell = tuple[str, float, int, dict[str, Any]]
"""Method, epsilon, seed and settings of a run."""


def curve(seeds: list[int]) -> Iterator[Cell]:
    """FedLGD with and without noise."""
    for seed, epsilon in product(seeds, EPSILONS):
        yield "FedLGD", epsilon, seed, PRIVATE | {"distil.private.epsilon": epsilon}


def converged(seeds: list[int], steps: int) -> Iterator[Cell]:
    """Distillation until more steps gain nothing, which one run with twice the steps shows."""
    for seed, epsilon in product(seeds, EPSILONS):
        settings = PRIVATE | {"distil.steps": steps, "distil.private.epsilon": epsilon}
        yield "FedLGD, converged", epsilon, seed, settings
    yield "FedLGD, twice the steps of converged", 0.0, seeds[0], PRIVATE | {"distil.steps": 2 * steps}


def runs(seeds: list[int]) -> Iterator[Cell]:
    yield from curve(seeds)
    yield from converged(seeds, CONVERGED["epsilon"])
    for seed, epsilon in product(seeds, EPSILONS):
        yield "DP-SGD on real images", epsilon, seed, dp_sgd(epsilon)
        yield "start only", epsilon, seed, PRIVATE | START_ONLY | {"distil.private.epsilon": epsilon}


def svhn_runs(seeds: list[int]) -> Iterator[Cell]:
    yield from curve(seeds)
    yield from converged(seeds, CONVERGED["svhn"])


def trials(seeds: list[int]) -> Iterator[Cell]:
    for name, (epsilon, own) in TRIALS.items():
        yield name, epsilon, seeds[0], PRIVATE | own | {"distil.private.epsilon": epsilon}


def dp_trials(seeds: list[int]) -> Iterator[Cell]:
    for name, own in DP_TRIALS.items():
        yield name, 4.0, seeds[0], dp_sgd(4.0) | own


def preset(seeds: list[int]) -> Iterator[Cell]:
    for epsilon, seed in product(EPSILONS[1:] + EPSILONS[:1], seeds):
        yield "FedLGD, preset private", epsilon, seed, PRESET | {"distil.private.epsilon": epsilon}


def validation(seeds: list[int]) -> Iterator[Cell]:
    """On held-out training images: DP-SGD with its settings and with twice the steps, and the preset."""
    yield "DP-SGD on real images", 4.0, seeds[0], dp_sgd(4.0)
    yield "DP-SGD on real images, 40 steps", 4.0, seeds[0], dp_sgd(4.0) | {"local.steps": 40}
    yield "FedLGD, preset private", 4.0, seeds[0], PRESET


def lap(seeds: list[int]) -> Iterator[Cell]:
    for epsilon, seed in product(EPSILONS[1:], seeds):
        yield "FedLAP-DP", epsilon, seed, LAP | {"dp.epsilon": epsilon}


@contextmanager
def noise_of(epsilon: float) -> Iterator[None]:
    """Without noise at `NOISELESS`, which is not private."""
    honest = release.add_noise
    if epsilon == NOISELESS:
        release.add_noise = lambda value, *_: value.double()
    try:
        yield
    finally:
        release.add_noise = honest


def dp_sgd(epsilon: float) -> dict[str, Any]:
    """Without noise FedAvg with as many steps, and a rate for gradients that are not clipped."""
    if not epsilon:
        return {"method": "fedavg", "train_on": "real", **DP_SGD, "local.lr": 0.1}
    noise = {"dp.epsilon": epsilon, "dp.test_key": "measurement on public images"}
    return {"method": "fedavg+dp-sgd", "train_on": "real", **DP_SGD, **noise}


def federation(names: tuple[str, ...]) -> Federation:
    whole = load("digits", limit=LIMIT, size=SIZE)
    return replace(whole, sites=tuple(site for site in whole.sites if site.name in names))


def held_out(whole: Federation) -> Federation:
    """Some training images of each site as its test images, in place of those."""
    sites = []
    for site in whole.sites:
        order = torch.randperm(len(site.train), generator=torch.Generator().manual_seed(5))
        train, test = (site.train.take(part) for part in (order[HELD_OUT:], order[:HELD_OUT]))
        sites.append(replace(site, train=train, test=test))
    return replace(whole, sites=tuple(sites))


CHOICES = {
    "epsilon": runs,
    "svhn": svhn_runs,
    "trials": trials,
    "dp-sgd": dp_trials,
    "preset": preset,
    "validation": validation,
    "fedlap": lap,
}


def main() -> None:
    out, name, seeds = Path(sys.argv[1]), sys.argv[2], [int(seed) for seed in sys.argv[3:]] or [0]
    torch.set_num_threads(1)
    data, rows = federation(SITES.get(name, SITES[""])), list[dict[str, Any]]()
    data = held_out(data) if name == "validation" else data
    for method, epsilon, seed, settings in CHOICES[name](seeds):
        config = resolve({}, COMMON | settings | {"seed": seed})
        folder = out / name / f"{method.replace(' ', '-')}-{epsilon:g}-seed{seed}"
        with noise_of(epsilon):
            result = execute(config, data, folder, command="python -m results.epsilon", title=method)
        cpu = sum(result.spent.cpu.values())
        rows.append({"method": method, "epsilon": epsilon, "seed": seed, "accuracy": result.accuracy, "cpu": cpu})
        write_atomic(out / f"{name}.json", json.dumps(rows).encode())
        print(
            f"{method}, epsilon {epsilon:g}, seed {seed}: {fmean(result.accuracy.values()):.4f}, {cpu:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
