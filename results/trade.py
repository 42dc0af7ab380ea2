"""Accuracy of what makes a run faster: bfloat16, and samples of the anchors. Paired with runs without, by seed.

Run: python -m results.trade OUT SEED ...     then: python -m results OUT speed-trade
It needs the files of `fedlgd data fetch digits`. The same command continues.
"""

import sys
from pathlib import Path
from typing import Any

import torch

from fedlgd.core.device import Place
from fedlgd.core.files import safe_name
from fedlgd.engines.registry import Loop
from fedlgd.report.tables import percent
from fedlgd.runs.config import resolve
from fedlgd.runs.run import execute

SETTINGS: dict[str, Any] = {
    "data": {"name": "digits", "synth": "none", "limit": 1000, "test_limit": 1000},
    "net.width": 32,
    "rounds": 10,
    "evaluate_every": 10,
    "analysis": False,
    "real_samples": 0,
}
PLAIN, BF16 = "float32, all anchors", "bf16, all anchors"
SAMPLES = {"float32, 5 anchors per class": 5, "float32, 2 anchors per class": 2}
SAMPLED_SEEDS = 3  # samples are measured with the first seeds only


def main() -> None:
    out, seeds = Path(sys.argv[1]), [int(seed) for seed in sys.argv[2:]] or [0]
    torch.set_num_threads(1)
    for seed in seeds:
        for title in (PLAIN, BF16, *(SAMPLES if seed < SAMPLED_SEEDS else ())):
            config = resolve({}, {**SETTINGS, "anchors.sample": SAMPLES.get(title, 0), "seed": seed}, "quick")
            engine = Loop(place=Place(precision="bf16" if title == BF16 else "float32"))
            folder, command = out / safe_name(title) / f"seed{seed}", f"python -m results.trade OUT {seed}"
            result = execute(config, config.data.open(), folder, command=command, title=title, engine=engine)
            print(f"{title}, seed {seed}: {percent(result.records[-1].accuracy)} %", flush=True)


if __name__ == "__main__":
    main()
