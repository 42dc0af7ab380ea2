"""Gradient inversion on real digits, small enough for a few minutes: one site of two that share MNIST or SVHN.

Run: FEDLGD_DATA=DATA python -m results.inversion OUT mnist svhn
Then, for each: python -m results.pages.inversion mnist OUT/mnist
"""

import sys
from pathlib import Path
from typing import Any

import torch

from fedlgd.attacks.gradient_inversion import Attack
from fedlgd.attacks.inversion import InversionPlan, attack_cells, cells_of, moments_of
from fedlgd.attacks.target import open_replay
from fedlgd.runs.config import resolve
from fedlgd.runs.run import execute

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


def main() -> None:
    out = Path(sys.argv[1])
    torch.set_num_threads(1)
    for name in sys.argv[2:]:
        config = resolve({}, SETTINGS | {"data": SPLIT | {"of": name}})
        execute(config, config.data.open(), out / name, command=f"python -m results.inversion OUT {name}")
        run = open_replay(out / name)
        moments = moments_of(run, PLAN)
        found = attack_cells(run, PLAN, cells_of(run, PLAN, moments), moments)
        for cell in found.content["cells"].values():
            print(f"{name}, {cell['title']}, batch {cell['batch']}: {cell['identified']:.2f}", flush=True)


if __name__ == "__main__":
    main()
