"""CPU time and bytes to an accuracy on the four real digit sites.

FedLGD with our defaults and with presets is measured, the published procedure is projected.

Run: python -m results.reach OUT [SEED ...]     then: python -m results OUT reach
It needs the files of `fedlgd data fetch digits`. The same command continues.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from bench import project
from fedlgd.core.files import safe_name
from fedlgd.core.text import BYTES, TIME, duration, number_of_bytes, plural
from fedlgd.methods.fedlgd import FedLGD
from fedlgd.report.cost import CPU, cumulative_bytes, cumulative_time
from fedlgd.report.groups import Group, SeedCurve, curves
from fedlgd.report.plots import line_plot, svg
from fedlgd.report.tables import NONE, percent, percent_stat
from fedlgd.rundir.read import Run
from fedlgd.runs.config import resolve
from fedlgd.runs.run import execute

TARGET = 0.84  # the mean of the paper's FedLGD over these four sites is 83.95 %
DEFAULTS = "FedLGD, defaults"
ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "FedLGD, strong, width 32": ("strong", {"rounds": 30, "net.width": 32}),
    "FedLGD, strong, width 64": ("strong", {"rounds": 60, "net.width": 64, "local.steps": 30}),
    DEFAULTS: ("", {"rounds": 60}),
}
"""The preset and the settings of each arm. The defaults have the width of the paper, 128."""
SETTINGS: dict[str, Any] = {
    "data": {"name": "digits", "synth": "none"},
    "evaluate_every": 5,
    "analysis": False,
    "real_samples": 0,
}
INITIAL_STEPS = (1_000, 10_000)  # of the published procedure
ROUNDS = 100  # of the published procedure, after which the paper has its accuracy

ONLY_REDRAWN = "FedLGD + redraw without matching, refinement and anchors, strong"
TICKS: Mapping[str, Mapping[str, float]] = {
    "time": {"10 s": 10, "30 s": 30, "2 min": 120, "10 min": 600, "1 h": 3_600},
    "bytes": {"1 MB": 1e6, "10 MB": 1e7, "100 MB": 1e8, "1 GB": 1e9},
}

cpu_time = partial(cumulative_time, by=CPU)


def main() -> None:
    out, seeds = Path(sys.argv[1]), [int(seed) for seed in sys.argv[2:]] or [0]
    torch.set_num_threads(1)
    for title, accuracy in measure(out, seeds):
        print(f"{title}: {percent(accuracy)} %", flush=True)
    print(f"To show the result in docs/results/speed.md: python -m results {out} reach")


def measure(out: Path, seeds: Sequence[int], more: Mapping[str, Any] | None = None) -> Iterator[tuple[str, float]]:
    """Run, or continue, each arm with each seed: its name, and its accuracy after the last round."""
    for seed in seeds:
        for label, (preset, own) in ARMS.items():
            config = resolve({}, {**SETTINGS, **own, **(more or {}), "seed": seed}, preset)
            folder = out / safe_name(label) / f"seed{seed}"
            command = f"python -m results.reach OUT {seed}"
            result = execute(config, config.data.open(), folder, command=command, title=label)
            yield f"{label}, seed {seed}", result.records[-1].accuracy


def round_of(run: Run, target: float) -> int | None:
    """The first evaluated round with this accuracy."""
    return next((record.round for record in run.evaluated if record.accuracy >= target), None)


def published_seconds(bench: Sequence[Mapping[str, Any]], sites: int, t: int, initial_steps: int) -> float:
    """CPU seconds of the published procedure up to the end of round t, without evaluation, from its phases."""
    cost = {r["phase"]: r["published"]["seconds"]["median"] for r in bench if r["kind"] == "phase"}
    for record in bench:
        if record["kind"] == "anomaly":
            cost[record["phase"]] *= record["ratio"]["median"]
    selected = sum(each in FedLGD().refine.selected for each in range(t + 1))
    run = replace(project.DIGITS, sites=sites, rounds=t + 1, selected=selected)
    parts = project.theirs(run, cost, initial_steps)
    return sum(seconds for phase, seconds in parts.items() if phase != "evaluation")


def table(groups: Sequence[Group], bench: Sequence[Mapping[str, Any]], target: float = TARGET) -> str:
    """Rounds, CPU time and bytes to the target: means over seeds that reach it; then the published procedure."""
    last = "accuracy at the end, %"
    heads = ("FedLGD", "seeds", f"of them reach {percent(target)} %", "rounds", "CPU time", "bytes", last)
    lines = [heads, (":--", *["--:"] * (len(heads) - 1))]
    for group in groups:
        reached = [(run, t) for run in group.counted if (t := round_of(run, target)) is not None]
        rounds = f"{fmean(t + 1 for _, t in reached):.0f}" if reached else NONE
        time = duration(fmean(cpu_time(run)[t] for run, t in reached)) if reached else NONE
        sent = number_of_bytes(fmean(cumulative_bytes(run)[t] for run, t in reached)) if reached else NONE
        end = percent_stat(group.accuracy) if group.accuracy else ""
        lines.append((group.label, str(len(group.counted)), str(len(reached)), rounds, time, sent, end))
    sites = len(groups[0].counted[0].manifest.data.sites)
    for steps in INITIAL_STEPS:
        time = duration(published_seconds(bench, sites, ROUNDS - 1, steps))
        lines.append((f"published, {steps} initial steps, projected", NONE, NONE, str(ROUNDS), time, NONE, ""))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def headline(groups: Sequence[Group], target: float = TARGET) -> str:
    """The shortest CPU time of FedLGD, without parts of other methods, to the target."""
    times = {
        f"{group.label}, {len(found)} of {plural(len(group.counted), 'seed')}": fmean(found)
        for group in groups
        if group.runs[0].manifest.method.name == FedLGD.name
        and (found := [cpu_time(run)[t] for run in group.counted if (t := round_of(run, target)) is not None])
    }
    if not times:
        return f"No stored run reaches {percent(target)} %."
    label = min(times, key=times.__getitem__)
    return (
        f"**{percent(target)} % on the four real digit sites after {duration(times[label])} of CPU time** on one "
        f"core, with {label}. Distillation is included, evaluation is not."
    )


def figures(groups: Sequence[Group]) -> dict[str, str]:
    """SVG texts by file name: accuracy against CPU time, and against bytes, on logarithmic axes."""

    def by(along: Callable[[Run], Mapping[int, float]]) -> Sequence[SeedCurve]:
        found = curves(groups, lambda record: 100 * record.accuracy, along)
        return [replace(curve, label=curve.label.replace(ONLY_REDRAWN, "only redrawn")) for curve in found]

    drawn = {
        "time": line_plot(by(cpu_time), "accuracy, %", CPU.name, TIME),
        "bytes": line_plot(by(cumulative_bytes), "accuracy, %", "bytes up and down", BYTES),
    }
    for name, figure in drawn.items():
        for axes in figure.axes if figure else ():
            axes.set_xscale("log")
            axes.set_xlim(min(TICKS[name].values()), max(TICKS[name].values()))
            axes.set_xticks([*TICKS[name].values()], [*TICKS[name]])
            axes.set_xticks([], minor=True)
    return {f"reach-{name}.svg": svg(figure, f"reach-{name}") for name, figure in drawn.items() if figure}


if __name__ == "__main__":
    main()
