"""The runs behind the pages on parts of FedLGD and on the targets of `strong`: the same first sets, paired by seed.

Run: python -m results.parts OUT NAME [--jobs 2] ...     then: python -m results OUT/NAME NAME
The options are those of `fedlgd compare`. It needs the data of the name; the same command continues.
"""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

FIXED, REDRAWN = "fedavg:train_on=virtual", "fedavg+redraw"
PICKS = "fedavg:train_on=virtual:distil.start=real:distil.tiles=1:distil.steps=0"
WHOLE = ("fedlgd", FIXED, REDRAWN)
ALL = (
    *WHOLE,
    "fedlgd:distil.steps=0",
    "fedlgd:refine.steps=0",
    "fedlgd:anchors.per_class=0:pull.weight=0",
    "fedlgd:pull.weight=0",
    "fedlgd+redraw",
)
DIGITS = {"data.synth": "none", "net.width": 32}
LONG = {"net.width": 64, "local.steps": 30}


class Plan(NamedTuple):
    """A comparison with preset `strong`."""

    data: str
    rounds: int
    entries: Sequence[str]
    settings: Mapping[str, object]
    seeds: int = 5


PLANS = {
    "strong-digits": Plan("digits", 30, ALL, DIGITS),
    "parts-builtin": Plan("builtin-digits", 20, ALL, {"net.width": 16}),
    "parts-cifar10c": Plan(
        "cifar10c",
        20,
        ALL,
        {"data.parts": 1, "data.train_photos": 3000, "ratio": 0.5, "net.width": 16, "distil.steps": 40},
    ),
    "parts-retina": Plan("retina-ab", 20, WHOLE, {"data.size": 48, "net.width": 32}),
    "parts-split": Plan(
        "split", 20, WHOLE, {"data.of": "cifar10_test", "data.sites": 5, "data.alpha": 0.3, "net.width": 16}
    ),
    "strong-fifty": Plan("digits", 30, ("fedlgd", FIXED, PICKS), {**DIGITS, "distil.per_class": 50}, seeds=3),
    "strong-longer": Plan("digits", 60, ("fedlgd", FIXED), {**LONG, "data.synth": "none"}),
    "strong-five": Plan("digits", 60, ("fedlgd", FIXED), LONG),
    "strong-cifar10c": Plan("cifar10c", 20, ("fedlgd", FIXED), {"net.width": 32}, seeds=3),
}


def command(name: str, out: Path, options: Sequence[str] = ()) -> list[str]:
    """The comparison of this name, in a folder of its own."""
    plan = PLANS[name]
    fixed = {"evaluate_every": plan.rounds, "analysis": "false", "real_samples": 0}
    settings = [f"--set={path}={value}" for path, value in {**plan.settings, **fixed}.items()]
    whole = [f"--rounds={plan.rounds}", f"--seeds={plan.seeds}", f"--methods={','.join(plan.entries)}"]
    return ["compare", plan.data, "--preset=strong", *whole, *settings, f"--out={out / name}", *options]


def main() -> None:
    if len(sys.argv) < 3 or sys.argv[2] not in PLANS:
        sys.exit(f"{__doc__}\nNames: {', '.join(PLANS)}")
    out, name, *options = sys.argv[1:]
    sys.exit(subprocess.run([sys.executable, "-m", "fedlgd", *command(name, Path(out), options)]).returncode)


if __name__ == "__main__":
    main()
