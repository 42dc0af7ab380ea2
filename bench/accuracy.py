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
    "data": {"name": "digits", "limit": 2000, "test_limit": 1000},
    "net.width": 64,
    "rounds": 30,
    "evaluate_every": 5,
    "local.lr": 0.05,
    "analysis": False,
    "distil.steps": 60,
    "refine.selected.count": 3,
    "refine.steps": 20,
    "anchors.selected.count": 3,
}
"""The published numbers of steps scaled down by about ten, equal for all variants."""

PUBLISHED = {
    "distil.plan": "exact",
    "distil.width": 0,
    "distil.smooth": 0.0,
    "distil.real_per_class": 64,
    "anchors.plan": "exact",
}
VARIANTS: dict[str, dict[str, Any]] = {
    "published, scaled down": {**PUBLISHED, "anchors.steps": 60},
    "bank alone, same steps": {**PUBLISHED, "distil.plan": "bank", "anchors.steps": 60, "refine.reuse": 5},
    "bank, same steps": {"anchors.plan": "exact", "anchors.steps": 60, "refine.reuse": 5},
    "fast, as by default": {"distil.steps": 120, "anchors.steps": 6, "refine.reuse": 5},
}


def main() -> None:
    out, seeds = Path(sys.argv[1]), [int(seed) for seed in sys.argv[2:]] or [0, 1, 2]
    torch.set_num_threads(1)
    for seed in seeds:
        for title, settings in VARIANTS.items():
            config = resolve({}, {**SCALED, **settings, "seed": seed})
            folder = out / title.split(",")[0] / f"seed{seed}"
            result = execute(config, config.data.open(), folder, command="python -m bench.accuracy", title=title)
            print(f"{title}, seed {seed}: {result.records[-1].accuracy:.3f}", flush=True)


if __name__ == "__main__":
    main()
