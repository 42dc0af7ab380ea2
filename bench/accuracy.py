"""Accuracy of FedLGD on real digits: the published procedure, scaled down, compared with the optimised one.

Run: python -m bench.accuracy OUT [SEED ...]   then: python docs/generate.py OUT speed-accuracy
"""

import sys
from pathlib import Path
from typing import Any

import torch

from fedlgd.runs.config import resolve
from fedlgd.runs.runner import execute

SCALED: dict[str, Any] = {
    "data": {"name": "digits", "limit": 1000, "test_limit": 1000},
    "net.width": 16,
    "rounds": 10,
    "evaluate_every": 10,
    "local.lr": 0.05,
    "analysis": False,
    "distil.steps": 40,
    "refine.selected.count": 3,
    "refine.steps": 10,
    "anchors.selected.count": 3,
}
"""Small enough for many seeds: the published numbers of steps divided by 10 to 25, equal for all variants."""

PUBLISHED = {
    "distil.plan": "exact",
    "distil.width": 0,
    "distil.smooth": 0.0,
    "distil.real_per_class": 64,
    "anchors.plan": "exact",
    "anchors.steps": 50,
}
FAST = {"distil.steps": 80, "anchors.steps": 5, "refine.reuse": 5}
VARIANTS: dict[str, dict[str, Any]] = {
    "published, scaled down": PUBLISHED,
    "bank alone, same steps": {**PUBLISHED, "distil.plan": "bank", "refine.reuse": 5},
    "L-BFGS alone, for gradient matching": {**PUBLISHED, "anchors.plan": "target", "anchors.steps": 5},
    "bank, same steps": {"anchors.plan": "exact", "anchors.steps": 50, "refine.reuse": 5},
    "fast without smoothing": {**FAST, "distil.smooth": 0.0},
    "fast, as by default": FAST,
}


def main() -> None:
    out, seeds = Path(sys.argv[1]), [int(seed) for seed in sys.argv[2:]] or list(range(12))
    torch.set_num_threads(1)
    for seed in seeds:
        for title, settings in VARIANTS.items():
            config = resolve({}, {**SCALED, **settings, "seed": seed})
            folder = out / title.split(",")[0] / f"seed{seed}"
            result = execute(config, config.data.open(), folder, command="python -m bench.accuracy", title=title)
            print(f"{title}, seed {seed}: {result.records[-1].accuracy:.3f}", flush=True)


if __name__ == "__main__":
    main()
