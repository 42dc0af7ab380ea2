"""Accuracy of FedLGD on real digits: the published procedure, scaled down, compared with the optimised one.

Run: python -m results.accuracy OUT large 0 1 2                then: python -m results OUT speed-accuracy
     python -m results.accuracy OUT small 0 1 2 3 4 5 6 7     then: python -m results OUT speed-seeds
"""

import sys
from pathlib import Path
from typing import Any

import torch

from fedlgd.runs.config import resolve
from fedlgd.runs.run import execute

LARGE: dict[str, Any] = {
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
"""The published numbers of steps divided by 3 to 17, equal for all variants."""

SMALL = LARGE | {
    "data": {"name": "digits", "limit": 1000, "test_limit": 1000},
    "net.width": 16,
    "rounds": 10,
    "local.momentum": 0.9,
    "refine.steps": 10,
}
"""For many seeds. Momentum, because a small network with few rounds would learn little without."""

PUBLISHED = {
    "distil.plan": "exact",
    "distil.width": 0,
    "distil.smooth": 0.0,
    "distil.real_per_class": 64,
    "anchors.plan": "exact",
    "anchors.steps": 60,
}
FAST = {"distil.steps": 120, "anchors.steps": 6, "refine.reuse": 5}
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "large": {
        "published, scaled down": PUBLISHED,
        "bank alone, same steps": {**PUBLISHED, "distil.plan": "bank", "refine.reuse": 5},
        "bank, same steps": {"anchors.plan": "exact", "anchors.steps": 60, "refine.reuse": 5},
        "fast, as by default": FAST,
    },
    "small": {
        "published, scaled down": PUBLISHED,
        "L-BFGS for gradient matching alone": {**PUBLISHED, "anchors.plan": "target", "anchors.steps": 6},
        "fast without smoothing": {**FAST, "distil.smooth": 0.0},
        "fast, as by default": FAST,
    },
}


def main() -> None:
    out, scale, seeds = Path(sys.argv[1]), sys.argv[2], [int(seed) for seed in sys.argv[3:]]
    torch.set_num_threads(1)
    for seed in seeds:
        for title, settings in VARIANTS[scale].items():
            config = resolve({}, {**(LARGE if scale == "large" else SMALL), **settings, "seed": seed})
            folder = out / title.split(",")[0] / f"seed{seed}"
            command = f"python -m results.accuracy OUT {scale} {seed}"
            result = execute(config, config.data.open(), folder, command=command, title=title)
            print(f"{title}, seed {seed}: {result.records[-1].accuracy:.3f}", flush=True)


if __name__ == "__main__":
    main()
