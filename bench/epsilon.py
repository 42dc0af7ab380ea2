"""The price of epsilon: accuracy of FedLGD on three real digit sites with and without privacy, and of DP-SGD.

Run: FEDLGD_DATA=DATA python -m bench.epsilon OUT 0 1 2        writes OUT/epsilon.json; runs in OUT are not repeated
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from fedlgd.core.files import write_atomic
from fedlgd.data.federation import Federation
from fedlgd.data.registry import load
from fedlgd.runs.config import resolve
from fedlgd.runs.runner import execute

SITES, LIMIT, SIZE = ("mnist", "usps", "mnist-m"), 8_000, 16
EPSILONS = (0.0, 4.0, 1.0, 10.0)  # 0: no noise
COMMON: dict[str, Any] = {
    "data": {"name": "digits", "limit": LIMIT, "size": SIZE},
    "net.width": 32,
    "rounds": 15,
    "evaluate_every": 15,
    "analysis": False,
    "real_samples": 0,
}
VIRTUAL: dict[str, Any] = {
    "local.lr": 0.05,
    "local.momentum": 0.9,
    "local.epochs": 3,
    "distil.start": "mean-image",
    "distil.width": 16,
    "distil.private.test_key": "measurement on public images",
    "distil.steps": 600,
    "distil.private.releases": 30,
    "refine.selected.count": 3,
    "refine.steps": 20,
    "refine.pairs": 1,
    "anchors.selected.count": 3,
    "anchors.steps": 10,
}
"""The same for every epsilon: chosen for time, before any result was seen."""

EXTRA: tuple[tuple[str, float, dict[str, Any]], ...] = (
    ("FedLGD", 100.0, {}),
    ("FedLGD, 120 releases", 4.0, {"distil.private.releases": 120}),
)
"""With the first seed: almost no noise, and more releases, to tell the price of noise from that of few releases."""

START_ONLY: dict[str, Any] = {"distil.steps": 0, "refine.steps": 0}


def runs(seeds: list[int]) -> Iterator[tuple[str, float, int, dict[str, Any]]]:
    """Method, epsilon, seed and settings of each run: no noise and epsilon 4 of FedLGD first, the rest by seed."""
    first = [(epsilon, seed) for seed, epsilon in product(seeds, EPSILONS[:2])]
    rest = [(epsilon, seed) for seed, epsilon in product(seeds, EPSILONS[2:])]
    private = VIRTUAL | {"method": "fedlgd"}
    for epsilon, seed in first:
        yield "FedLGD", epsilon, seed, private | {"distil.private.epsilon": epsilon}
    for method, epsilon, own in EXTRA:
        yield method, epsilon, seeds[0], private | own | {"distil.private.epsilon": epsilon}
    for seed in seeds:
        for epsilon in EPSILONS:
            yield "DP-SGD on real images", epsilon, seed, dp_sgd(epsilon)
            yield "start only", epsilon, seed, private | START_ONLY | {"distil.private.epsilon": epsilon}
        for epsilon, other in rest:
            if other == seed:
                yield "FedLGD", epsilon, seed, private | {"distil.private.epsilon": epsilon}


def dp_sgd(epsilon: float) -> dict[str, Any]:
    """The same steps without noise: FedAvg."""
    steps = {"local.batch": 256, "local.lr": 0.5, "local.steps": 5}
    if not epsilon:
        return {"method": "fedavg", "train_on": "real", **steps}
    noise = {"dp.epsilon": epsilon, "dp.test_key": "measurement on public images"}
    return {"method": "fedavg+dp-sgd", "train_on": "real", **steps, **noise}


def federation() -> Federation:
    whole = load("digits", limit=LIMIT, size=SIZE)
    return replace(whole, sites=tuple(site for site in whole.sites if site.name in SITES))


def main() -> None:
    out, seeds = Path(sys.argv[1]), [int(seed) for seed in sys.argv[2:]]
    torch.set_num_threads(1)
    data, rows = federation(), list[dict[str, Any]]()
    for method, epsilon, seed, settings in runs(seeds):
        config = resolve({}, COMMON | settings | {"seed": seed})
        folder = out / f"{method.replace(' ', '-')}-{epsilon:g}-seed{seed}"
        result = execute(config, data, folder, command="python -m bench.epsilon", title=method)
        cpu = sum(result.spent.cpu.values())
        rows.append({"method": method, "epsilon": epsilon, "seed": seed, "accuracy": result.accuracy, "cpu": cpu})
        write_atomic(out / "epsilon.json", json.dumps(rows).encode())
        print(
            f"{method}, epsilon {epsilon:g}, seed {seed}: {fmean(result.accuracy.values()):.4f}, {cpu:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
