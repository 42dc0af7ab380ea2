"""Gradient inversion on real digits, small enough for a few minutes: one site of two that share MNIST or SVHN.

Run: FEDLGD_DATA=DATA python -m results.inversion OUT mnist svhn
Then, for each: python -m results.pages.inversion mnist OUT/mnist

With several seeds, for the claim of the paper: FEDLGD_DATA=DATA python -m results.inversion OUT --seeds. Its rule,
written before these runs: reconstructions from updates of FedLGD are farther from the nearest private image than
those from updates on real images. The 95 % t interval over five seeds of the difference, a mean over both sites, is
above 0, both with anchors that the attacker knows and after refinement.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from fedlgd.attacks.gradient_inversion import Attack
from fedlgd.attacks.inversion import InversionPlan, attack_cells, cells_of, moments_of
from fedlgd.attacks.target import open_replay
from fedlgd.runs.config import resolve
from fedlgd.runs.run import execute
from results import MEASURED

SETTINGS: dict[str, Any] = {
    "method": "fedlgd",
    "net.width": 16,
    "rounds": 1,
    "local.lr": 0.05,
    "distil.width": 16,
    "distil.steps": 60,
    "anchors.per_class": 1,
    "anchors.steps": 5,
    "refine.steps": 10,
    "analysis": False,
    "real_samples": 0,
}
SPLIT = {"name": "split", "by": "iid", "sites": 2, "size": 16, "limit": 2000, "test_limit": 500}
PLAN = InversionPlan(attack=Attack(iterations=200), targets=4, rounds=(0,))


SEEDS = range(5)
COMPARED = ("real", "own", "refined")  # FedAvg on real images; FedLGD with known anchors, and after refinement
OF_SEEDS = MEASURED / "privacy" / "invert-seeds.json"


def main() -> None:
    out = Path(sys.argv[1])
    torch.set_num_threads(1)
    if sys.argv[2:] == ["--seeds"]:
        distances: dict[str, dict[str, list[float]]] = {
            name: {kind: [] for kind in COMPARED} for name in ("mnist", "svhn")
        }
        for seed, name in product(SEEDS, distances):
            found = attacked(out / f"{name}-{seed}", name, replace(PLAN, batches=(4,), seed=seed), COMPARED)
            for cell in found.values():
                distances[name][cell["case"]].append(cell["distance_training"])
            OF_SEEDS.write_text(json.dumps(distances, indent=1) + "\n")
        return
    for name in sys.argv[2:]:
        attacked(out / name, name, PLAN, ())


def attacked(folder: Path, name: str, plan: InversionPlan, kinds: Sequence[str]) -> dict[str, Any]:
    """The cells of the attacks on one run, of all cases or of these."""
    config = resolve({}, SETTINGS | {"seed": plan.seed, "data": SPLIT | {"of": name}})
    execute(config, config.data.open(), folder, command=f"python -m results.inversion OUT {name}")
    run = open_replay(folder)
    moments = moments_of(run, plan)
    cells = [cell for cell in cells_of(run, plan, moments) if not kinds or cell.case.kind in kinds]
    found: dict[str, Any] = attack_cells(run, plan, cells, moments).content["cells"]
    for cell in found.values():
        print(f"{folder.name}, {cell['title']}, batch {cell['batch']}: {cell['identified']:.2f}", flush=True)
    return found


if __name__ == "__main__":
    main()
