"""Trials on validation images: what raises accuracy at ten images per class, what the parts of FedLGD are worth.

Run: python -m results.search margin [SEED ...]        then: make results
It needs the files of `fedlgd data fetch digits`. Of each class at each site, 20 % of the training images are held
out and scored; no test image is read. Trials are appended to results/measured/search/NAME.jsonl, each of them once.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from fedlgd.data.federation import validation_of
from fedlgd.runs.config import Config, resolve
from fedlgd.runs.run import execute
from results import MEASURED

SEARCH = MEASURED / "search"


@dataclass(frozen=True)
class Trial:
    """A method with settings, and what the table calls it."""

    what: str
    method: str = "fedlgd+redraw"
    rounds: int = 30
    steps: int = 20
    width: int = 32
    settings: Mapping[str, Any] = field(default_factory=dict)

    def config(self, seed: int) -> Config:
        base = {
            "data": {"name": "digits", "synth": "none"},
            "rounds": self.rounds,
            "evaluate_every": self.rounds,
            "local.steps": self.steps,
            "net.width": self.width,
            "analysis": False,
            "real_samples": 0,
            "seed": seed,
        }
        return resolve({"method": self.method}, {**base, **self.settings}, "strong")


VIRTUAL = {"train_on": "virtual", "distil.steps": 0}
MOVED = {"anchors.per_class": 10, "anchors.selected.count": 4, "anchors.steps": 50}
STILL = {"anchors.per_class": 10, "anchors.selected.count": 4, "anchors.steps": 0}
PUBLISHED = {
    "local.lr": 0.01,
    "local.momentum": 0.0,
    "local.schedule": "constant",
    "local.augment": (),
    "redraw.selected.count": 0,
}
"""The published training: plain SGD with a small constant rate, on the first virtual set."""
OLD_STRONG = {"refine.steps": 0, "anchors.per_class": 0, "pull.weight": 0.0}
"""With `+redraw`, what preset `strong` of FedLGD was when these trials were run."""
LONGER: Mapping[str, Mapping[str, Any]] = {
    "preset strong": {},
    "5 steps of refinement, each under a new draw": {"refine.steps": 5, "refine.reuse": 1},
    "no anchors": {"anchors.per_class": 0, "pull.weight": 0.0},
    "batches of 64": {"local.batch": 64},
}
"""Preset `strong` in long runs of a wide network."""
TRIALS: Mapping[str, Sequence[Trial]] = {
    "longer": [
        *(Trial(what, "fedlgd", 60, 30, 64, settings) for what, settings in LONGER.items()),
        Trial("FedAvg on real images", "fedavg", 60, 30, 64, {"train_on": "real"}),
    ],
    "margin": [
        Trial(f"{name}, {rounds} rounds", method, rounds, steps, settings=settings)
        for rounds, steps in ((30, 20), (60, 30), (100, 30))
        for name, method, settings in (("FedLGD", "fedlgd+redraw", OLD_STRONG), ("FedAvg", "fedavg", VIRTUAL))
    ],
    "anchors": [
        *(
            Trial(what, rounds=20, width=16, settings={**OLD_STRONG, **settings})
            for what, settings in {
                "tuned training, no anchors": {},
                "anchors in the cross-entropy, no pull": {**MOVED, "pull.weight": 0.0},
                "pull 0.1": {**MOVED, "pull.weight": 0.1},
                "pull 1": {**MOVED, "pull.weight": 1.0},
                "pull 10": {**MOVED, "pull.weight": 10.0},
                "pull 1, temperature 0.5": {**MOVED, "pull.weight": 1.0, "pull.temperature": 0.5},
                "pull 1, matching stops at 0.2": {**MOVED, "pull.weight": 1.0, "anchors.tolerance": 0.2},
                "pull 1, anchors of noise that never move": {**STILL, "pull.weight": 1.0},
            }.items()
        ),
        *(
            Trial(what, rounds=60, steps=7, width=16, settings={**OLD_STRONG, **PUBLISHED, **settings})
            for what, settings in {
                "published training (rate 0.01), no anchors": {},
                "the same, pull 10": {**MOVED, "pull.weight": 10.0},
                "the same, pull 10 to noise that never moves": {**STILL, "pull.weight": 10.0},
                "rate 0.1, no anchors": {"local.lr": 0.1},
                "rate 0.1, pull 10": {**MOVED, "pull.weight": 10.0, "local.lr": 0.1},
            }.items()
        ),
    ],
}


def main() -> None:
    name, seeds = sys.argv[1], [int(seed) for seed in sys.argv[2:]] or [0]
    torch.set_num_threads(1)
    for row in search(TRIALS[name], seeds, SEARCH / f"{name}.jsonl"):
        print(f"{row['what']}, seed {row['seed']}: {row['acc']:.2f} in {row['total']:.0f} CPU s", flush=True)


def search(trials: Sequence[Trial], seeds: Sequence[int], file: Path) -> Iterator[dict[str, Any]]:
    """Run the trials that are not in the file yet; each is added to it as soon as it is finished."""
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    done = {(row["what"], row["seed"]) for row in rows}
    for seed, trial in product(seeds, trials):
        if (trial.what, seed) not in done:
            row = measured(trial, seed)
            with file.open("a") as out:
                out.write(json.dumps(row) + "\n")
            yield row


def measured(trial: Trial, seed: int) -> dict[str, Any]:
    """Accuracy on the held-out images, and CPU seconds by phase."""
    config = trial.config(seed)
    result = execute(config, validation_of(config.data.open()))
    sites = {site: round(100 * value, 2) for site, value in result.accuracy.items()}
    cpu: Counter[str] = Counter()
    for record in result.records:
        cpu.update(record.cpu)
    return {
        "what": trial.what,
        "rounds": trial.rounds,
        "steps": trial.steps,
        "width": trial.width,
        "sites": sites,
        "acc": round(fmean(sites.values()), 2),
        "total": round(cpu.total() - cpu["evaluate"], 1),
        "cpu": {phase: round(seconds, 1) for phase, seconds in cpu.items()},
        "seed": seed,
    }


if __name__ == "__main__":
    main()
