"""`make bench`: compare the published procedure with ours, phase by phase, and project complete runs.

Run: python -m bench.run                                       everything at the paper's width (most of an hour)
     python -m bench.run --quick                               under two minutes: width 32, few repetitions
     python -m bench.run --phases gm,dm-iterative --repeats 3  only some phases
"""

import argparse
import json
import os
import platform
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from bench import growth, match, memory, project, published, workers
from bench.phases import Phase, phases
from bench.tools import measure, ours, table
from bench.tools.measure import Compared
from bench.tools.scene import Scene

Record = dict[str, Any]

NAMES = (
    "dm-initial",
    "dm-iterative",
    "gm",
    "epoch-plain",
    "epoch-regularised",
    "evaluation",
    "aggregation",
    "save-load",
)
AS_IT_COMES = "as it comes"
ALLOCATED = ("dm-iterative", "epoch-regularised", "evaluation", "gm")  # phases with many large allocations
SHIPPED = ("dm-initial", "dm-iterative", "gm", "epoch-plain", "epoch-regularised")  # also with anomaly detection


def main() -> None:
    how = _arguments()
    torch.set_num_threads(1)
    how.out.parent.mkdir(parents=True, exist_ok=True)
    records: list[Record] = []
    with how.out.open("w") as file:
        for record in bench(how):
            records.append(record)
            file.write(json.dumps(record) + "\n")
            file.flush()
            print(table.line(record), flush=True)
    print("\n" + "\n\n".join(table.tables(records)) + f"\n\nStored: {how.out}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Compare the published procedure with ours, in CPU seconds of one thread."
    )
    parser.add_argument("--phases", default=",".join(NAMES), help="comma-separated: " + ", ".join(NAMES))
    parser.add_argument("--width", type=int, help="width of the network (default 128, quick 32)")
    parser.add_argument("--repeats", type=int, help="repetitions of each side (default 5, quick 2)")
    parser.add_argument("--data", default="builtin-digits", help="federation of the images")
    parser.add_argument("--dm-steps", type=int, help="reference steps whose loss ours must reach; 0: skip")
    parser.add_argument("--dm-width", type=int, help="width of the network for --dm-steps (default: --width)")
    parser.add_argument("--gm-steps", type=int, help="reference steps whose Dist ours must reach; 0: skip")
    parser.add_argument("--no-growth", action="store_true", help="skip the growth with the federation")
    parser.add_argument("--no-memory", action="store_true", help="skip the memory of runs with many sites")
    parser.add_argument("--quick", action="store_true", help="smaller network, fewer repetitions; ratios are lower")
    parser.add_argument("--out", type=Path, default=Path("out/bench.jsonl"), help="output file (JSON lines)")
    how = parser.parse_args()
    full = {"width": 128, "repeats": 5, "dm_steps": 100, "gm_steps": 500}
    small = {"width": 32, "repeats": 2, "dm_steps": 8, "gm_steps": 24}
    for name, value in (small if how.quick else full).items():
        if getattr(how, name) is None:
            setattr(how, name, value)
    how.dm_width = how.dm_width or how.width
    unknown = set(how.phases.split(",")) - set(NAMES)
    if unknown:
        parser.error(f"no phase is called {', '.join(sorted(unknown))}; available: {', '.join(NAMES)}")
    return how


def bench(how: argparse.Namespace) -> Iterator[Record]:
    """Yield each result when it is available."""
    peak = measure.peak_flops()
    yield machine(how, peak)
    scene = Scene.of(how.data, how.width)
    found: list[Record] = []
    with tempfile.TemporaryDirectory() as folder:
        every = phases(scene, Path(folder))
        for name in how.phases.split(","):
            found.append(phase(every[name], how, peak))
            yield found[-1]
        few = ALLOCATED[-2:] if how.quick else ALLOCATED
        yield from (allocation(every[name], min(3, how.repeats)) for name in few if name in how.phases.split(","))
        shipped = [anomaly(every[name], min(3, how.repeats)) for name in SHIPPED if name in how.phases.split(",")]
        yield from shipped
    matched = list(studies(how, scene))
    yield from matched
    yield from conclusions(found, matched, shipped)
    if not how.no_growth:
        for what, factor, ratio in growth.grown((2,) if how.quick else (2, 4)):
            yield {"kind": "growth", "what": what, "factor": factor, "ratio": ratio}
    if not how.quick:
        yield {"kind": "engine", **workers.speed_up(how.data, how.width // 2, min(3, how.repeats))}
    if not (how.no_memory or how.quick):
        yield from ({"kind": "memory", **memory.apart("fedlgd", sites)} for sites in memory.SITES)


def machine(how: argparse.Namespace, peak: float) -> Record:
    return {
        "kind": "machine",
        "quick": how.quick,
        "width": how.width,
        "repeats": how.repeats,
        "data": how.data,
        "peak_gflops": peak / 1e9,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
        "cores": os.cpu_count(),
        "cpu": processor(),
    }


def processor() -> str:
    """The name of the CPU, as Linux knows it."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    return next((text.partition(":")[2].strip() for text in lines if text.startswith("model name")), "unknown")


def phase(one: Phase, how: argparse.Namespace, peak: float) -> Record:
    """Measure both sides alternately, and each in a child process for memory and FLOPs."""

    units = one.published_units, one.ours_units
    theirs, mine = measure.once(one.published, measure.default_malloc), measure.once(one.ours, measure.kept_malloc)
    compared = measure.compare(one.published, one.ours, how.repeats, units)
    return {
        "kind": "phase",
        "phase": one.name,
        "unit": one.unit,
        "published": side(compared.first, theirs, units[0], peak),
        "ours": side(compared.second, mine, units[1], peak),
        "ratio": asdict(compared.ratio),
        "load": os.getloadavg()[0],
    }


def side(cost: measure.Spread, once: measure.Once, units: float, peak: float) -> Record:
    gflop = once.flops / units / 1e9
    share = once.flops / units / cost.median / peak if cost.median else 0.0
    return {"seconds": asdict(cost), "gflop": gflop, "share_of_peak": share, "megabytes": once.megabytes}


def allocation(one: Phase, repeats: int) -> Record:
    """Ours with the default malloc settings, and with those of the `fedlgd` command."""
    compared: Compared = measure.compare(one.ours, one.ours, repeats)
    return {"kind": "allocation", "phase": one.name, "ratio": asdict(compared.ratio)}


def anomaly(one: Phase, repeats: int) -> Record:
    """The reference with and without anomaly detection."""

    def shipped() -> None:
        with published.as_shipped():
            one.published()

    compared = measure.compare(shipped, one.published, repeats, malloc=measure.default_malloc)
    return {"kind": "anomaly", "phase": one.name, "ratio": asdict(compared.ratio)}


def studies(how: argparse.Namespace, scene: Scene) -> Iterator[Record]:
    """Steps to the same result."""
    wanted = how.phases.split(",")
    if how.dm_steps and "dm-initial" in wanted:
        small = scene if how.dm_width == how.width else Scene.of(how.data, how.dm_width)
        checkpoints = sorted({max(1, how.dm_steps // 4), max(1, how.dm_steps // 2), how.dm_steps})
        for found in match.initial(small, checkpoints):
            yield {"kind": "match", "width": how.dm_width, **asdict(found)}
        for found in [] if how.quick else match.smoothing(small, [how.dm_steps // 4, 2 * how.dm_steps]):
            yield {"kind": "smoothing", "width": how.dm_width, **asdict(found)}
    if how.gm_steps and "gm" in wanted:
        yield {"kind": "match", "width": how.width, **asdict(match.gradient(scene, how.gm_steps))}


def conclusions(found: list[Record], matched: list[Record], shipped: list[Record]) -> Iterator[Record]:
    """Ratios to the same result, complete runs, and the targets."""
    ratio = {record["phase"]: record["ratio"]["median"] for record in found}
    same = to_the_same(ratio, matched)
    bars = [
        project.Bar("iterative DM, as many steps", 15, ratio.get("dm-iterative")),
        project.Bar("initial DM to the same held-out loss", 20, same.get("dm-initial")),
        project.Bar("GM to the same Dist", 5, same.get("gm")),
        project.Bar("regularised epoch", 1.5, ratio.get("epoch-regularised")),
        project.Bar("evaluation", 1.5, ratio.get("evaluation")),
    ]
    if ratio.keys() == set(NAMES):
        runs = list(projections(found, matched, shipped))
        yield from runs
        equal = "to the loss of {} published steps"
        bars += [
            project.Bar(f"DIGITS run {note.format(steps)}", wanted, ratio_of(runs, steps, note.format(steps)))
            for note in (equal, f"{equal}, evaluated in every round", "as it comes, against {} published steps")
            for steps, wanted in ((10_000, 50), (1_000, 20))
        ]
    for bar in bars:
        yield {"kind": "bar", **asdict(bar), "verdict": bar.verdict}


def to_the_same(ratio: dict[str, float], matched: list[Record]) -> dict[str, float]:
    """The ratio of steps times the ratio of the cost per step, for the largest number of steps."""
    return {
        m["phase"]: ratio[m["phase"]] * m["theirs"] / m["ours"]
        for m in matched
        if m["ours"] and m["phase"] in ratio
    }


def projections(found: list[Record], matched: list[Record], shipped: list[Record]) -> Iterator[Record]:
    """Hours of the released code, including anomaly detection."""
    costs = {
        who: {record["phase"]: record[who]["seconds"]["median"] for record in found}
        for who in ("published", "ours")
    }
    for record in shipped:
        costs["published"][record["phase"]] *= record["ratio"]["median"]
    fewer = {m["phase"]: m["ours"] / m["theirs"] for m in matched if m["ours"]}
    gm_steps = project.GM_STEPS * fewer["gm"] if "gm" in fewer else ours.looks(ours.METHOD.anchors)
    for run in (project.DIGITS, project.CIFAR10C):
        default = project.ours_(run, costs["ours"], ours.INITIAL.steps, ours.looks(ours.METHOD.anchors))
        yield _projection(run, "ours", AS_IT_COMES, ours.INITIAL.steps, default)
        for steps in (10_000, 1_000):
            yield _projection(run, "published", "", steps, project.theirs(run, costs["published"], steps))
            for every in (0, 1) if "dm-initial" in fewer else ():
                mine = project.ours_(run, costs["ours"], steps * fewer["dm-initial"], gm_steps, every)
                note = f"to the loss of {steps} published steps" + ", evaluated in every round" * every
                yield _projection(run, "ours", note, round(steps * fewer["dm-initial"]), mine)


def _projection(run: project.Run, who: str, note: str, steps: int, seconds: dict[str, float]) -> Record:
    hours = {name: value / 3600 for name, value in seconds.items()}
    return {
        "kind": "projection",
        "run": run.name,
        "who": who,
        "note": note,
        "initial_steps": steps,
        "hours": hours,
        "total": sum(hours.values()),
    }


def ratio_of(runs: list[Record], steps: int, note: str) -> float | None:
    """CPU hours of the published run with this many initial steps over ours, on DIGITS; None if not measured."""
    digits = [record for record in runs if record["run"] == project.DIGITS.name]
    theirs = next(r["total"] for r in digits if r["who"] == "published" and r["initial_steps"] == steps)
    mine = [r["total"] for r in digits if r["note"] == (AS_IT_COMES if note.startswith(AS_IT_COMES) else note)]
    return float(theirs / mine[0]) if mine else None


if __name__ == "__main__":
    main()
