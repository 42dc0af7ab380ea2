"""The phases of a run: the released procedure, ours as it is, in bfloat16, compiled, and both.

Run: python -m bench.compiled                        at the paper's width, and store it (most of an hour)
     python -m bench.compiled --phases gm,evaluation --add --repeats 2

All of them take turns in one process with one thread, so that load on the machine affects all of them. Costs are
CPU seconds per unit. "released" is `bench/published.py`, "shipped" the same with the anomaly detection that the
released code leaves on; projections of complete runs include it. The first call of each is measured apart.
"""

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from bench import published
from bench.phases import Phase, phases
from bench.run import processor
from bench.tools.measure import default_malloc, kept_malloc, peak_flops, seconds
from bench.tools.scene import Scene
from bench.tools.table import aligned
from fedlgd.core.device import Place

OUT = Path(__file__).parents[1] / "results" / "measured" / "bench" / "compiled.json"
PLACES = {
    "eager": Place(),
    "bf16": Place(precision="bf16"),
    "compiled": Place(compile="on"),
    "compiled, bf16": Place(compile="on", precision="bf16"),
}
NAMES = ("dm-initial", "dm-iterative", "gm", "epoch-plain", "epoch-regularised", "evaluation")


def sides(phase: Phase) -> dict[str, tuple[Callable[[], object], Callable[[], None], float]]:
    """What is called on each side, with its malloc settings and its units."""

    def shipped() -> None:
        with published.as_shipped():
            phase.published()

    def at(place: Place) -> Callable[[], object]:
        return lambda: place.do(lambda _: phase.ours(), None)

    found = {name: (at(place), kept_malloc, phase.ours_units) for name, place in PLACES.items()}
    released = {"released": (phase.published, default_malloc, phase.published_units)}
    if phase.name != "evaluation":  # which has no gradients
        released["shipped"] = (shipped, default_malloc, phase.published_units)
    return released | found


def gflop(work: Callable[[], object], units: float) -> float:
    with FlopCounterMode(display=False) as counter:
        work()
    return float(counter.get_total_flops()) / units / 1e9


def measure(phase: Phase, repeats: int) -> dict[str, Any]:
    """CPU seconds of each side in every turn, and of the first call of ours."""
    every = sides(phase)
    first = {name: seconds(call, malloc) for name, (call, malloc, _) in every.items() if name in PLACES}
    turns: dict[str, list[float]] = {name: [] for name in every}
    for _ in range(repeats):
        for name, (call, malloc, units) in every.items():
            turns[name].append(seconds(call, malloc) / units)
    flops = {
        "released": gflop(phase.published, phase.published_units),
        "eager": gflop(phase.ours, phase.ours_units),
    }
    load = os.getloadavg()[0]
    return {"phase": phase.name, "unit": phase.unit, "seconds": turns, "first": first, "gflop": flops, "load": load}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--data", default="builtin-digits")
    parser.add_argument("--phases", default=",".join(NAMES))
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--add", action="store_true", help="keep the other phases that are stored")
    given = parser.parse_args()
    torch.set_num_threads(1)
    about = {"cpu": processor(), "cores": os.cpu_count(), "torch": torch.__version__, "width": given.width}
    found = {**about, "peak_gflops": peak_flops() / 1e9, "phases": {}}
    if given.add and given.out.exists():
        found["phases"] = json.loads(given.out.read_text())["phases"]
    with tempfile.TemporaryDirectory() as folder:
        every = phases(Scene.of(given.data, given.width), Path(folder))
        for name in given.phases.split(","):
            row = measure(every[name], given.repeats)
            found["phases"][name] = row
            cost = {side: statistics.median(turns) for side, turns in row["seconds"].items() if turns}
            ratios = [f"{side} {cost['released'] / value:.2f}x" for side, value in cost.items()] if cost else []
            print(aligned([[name, *ratios]]), flush=True)
            given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
