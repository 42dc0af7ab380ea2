"""The generated parts of accuracy.md and speed.md: comparisons over seeds, trials, and images per class."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean, median, stdev
from typing import Any

from fedlgd.report.groups import Group, SeedCurve, group_runs, summarise
from fedlgd.report.plots import line_plot
from fedlgd.report.summary import Difference, by_seed, difference, paired_difference
from fedlgd.rundir.read import Run, read_runs
from fedlgd.runs.space import show_value
from fedlgd.runs.tune import Trial, cpu_seconds
from results import MEASURED, RECORDS
from results.pages.figures import narrow

SEARCH = MEASURED / "search"
FEW_VALUES = 5  # of a setting; more are compared in halves
REDRAWN, FIXED = ARMS = ("redrawn", "fixed")  # virtual sets over the rounds
COUNTED = ("accuracy-count", "accuracy-four")  # stored runs with different numbers of images per class


def holds(name: str) -> str:
    """Accuracy of stored runs compared with the published procedure, or FedLGD: paired differences over seeds."""
    if not (RECORDS / name).is_dir():
        return "No stored runs."
    groups = sorted(groups_of(name), key=lambda g: not g.label.startswith(("published", "FedLGD", "float32, all")))
    rows = []
    for group in groups:
        values = [100 * final.accuracy for final in group.finals]
        gap = None if group is groups[0] else difference(group, groups[0])
        ends = " to ".join(f"{100 * end:+.1f}" for end in gap.interval or ()) or "too few seeds" if gap else ""
        rows.append([group.label, str(len(values)), spread(values), f"{100 * gap.mean:+.1f}" if gap else "", ends])
    return table(["", "seeds", "mean", "difference", "95 % interval"], rows)


def compared(names: str) -> str:
    """Virtual sets redrawn every round and fixed ones, a row for each stored comparison with both."""
    rows = []
    for name in names.split(","):
        arms = {arm: group for group in groups_of(name) if (arm := arm_of(group.runs[0])) in ARMS}
        run = arms[REDRAWN].runs[0]
        values = {arm: {seed: 100 * value for seed, value in by_seed(group).items()} for arm, group in arms.items()}
        steps, width = run.settings["local"]["steps"], run.settings["net"]["width"]
        what = [str(len(run.manifest.data.sites)), f"{run.planned} x {steps}", str(width)]
        ours, theirs = (values[arm] for arm in ARMS)
        means = [str(len(ours)), spread(list(ours.values())), spread(list(theirs.values()))]
        rows.append([*what, *means, shown(paired_difference(ours, theirs))])
    return table(["sites", "rounds x steps", "width", "seeds", *ARMS, "difference, 95 % interval"], rows)


def arm_of(run: Run) -> str:
    """Virtual sets redrawn every round, the same first sets fixed, real images, or picks of real images."""
    if run.settings.get("train_on") == "real":
        return "real"
    if run.settings["distil"]["start"] != "neighbours":
        return "picks"
    return REDRAWN if "redraw" in run.manifest.method.name else FIXED


def groups_of(name: str) -> tuple[Group, ...]:
    return group_runs(runs_of(name))


def runs_of(*names: str) -> Sequence[Run]:
    return read_runs(sorted({file.parent for name in names for file in (RECORDS / name).rglob("manifest.json")}))[0]


def tried(name: str) -> str:
    """The trials of a search on validation images: measured/search/<name>.jsonl, in their order.

    With several seeds, the difference of a trial is to the first one with the same rounds, steps and width.
    """
    rows = [json.loads(line) for line in (SEARCH / f"{name}.jsonl").read_text().splitlines()]
    trials: dict[tuple[Any, ...], list[Any]] = {}
    for row in rows:
        trials.setdefault((row["what"], row["rounds"], row["steps"], row["width"]), []).append(row)
    several, sites = any(len(found) > 1 for found in trials.values()), list(rows[0]["sites"])
    first: dict[tuple[Any, ...], list[Any]] = {}
    lines = []
    for (what, *size), found in trials.items():
        cells = [what, f"{size[0]} x {size[1]}"]
        cells += [f"{fmean(row['sites'][site] for row in found):.1f}" for site in sites]
        cells += [spread([row["acc"] for row in found])]
        base = first.setdefault(tuple(size), found)
        cells += [gap_between(found, base)] if several else []
        lines.append([*cells, format(fmean(row["total"] for row in found), ".0f")])
    compared = ["difference, 95 % interval"] if several else []
    return table(["trial", "rounds x steps", *sites, "mean", *compared, "CPU seconds"], lines)


def searched(name: str) -> str:
    """A search of `fedlgd tune`, measured/search/<name>.json: its last trials, and which settings mattered."""
    ledger = json.loads((SEARCH / f"{name}.json").read_text())
    trials = [Trial(**each) for each in ledger["trials"]]
    rungs = sorted({trial.rounds for trial in trials})
    parts = []
    for method in dict.fromkeys(trial.method for trial in trials):
        own = [trial for trial in trials if trial.method == method]
        parts += [f"`{method}`, {cpu_seconds(own) / 60:.0f} CPU minutes:", "", last_trials(own, rungs), ""]
        parts += [what_mattered([trial for trial in own if trial.rounds == rungs[0]]), ""]
    return "\n".join(parts).rstrip()


def last_trials(trials: Sequence[Trial], rungs: Sequence[int]) -> str:
    """Accuracy (%) of the candidates of the last rung and of candidate 0, in every rung they reached."""
    found = {(trial.candidate, trial.rounds): trial for trial in trials}
    last = sorted((t for t in trials if t.rounds == rungs[-1]), key=lambda trial: -trial.accuracy)
    numbers = dict.fromkeys([*(trial.candidate for trial in last), 0])
    rows = []
    for number in numbers:
        cells = [f"{100 * t.accuracy:.1f}" if (t := found.get((number, rounds))) else "" for rounds in rungs]
        values = found[number, rungs[0]].settings
        words = ", ".join(f"{path} {said(value)}" for path, value in values.items())
        rows.append([f"{number}{'' if number else ' (`strong`)'}: {words}", *cells])
    return table(["candidate", *(f"{rounds} rounds" for rounds in rungs)], rows)


def what_mattered(trials: Sequence[Trial]) -> str:
    """The mean accuracy (%) over all candidates with the best and with the worst value of each setting."""
    rows = []
    for path in trials[0].settings:
        groups: dict[str, list[float]] = {}
        for value, accuracy in values_of(path, trials):
            groups.setdefault(value, []).append(100 * accuracy)
        means = sorted(((fmean(group), value) for value, group in groups.items()), key=lambda each: -each[0])
        if len(means) > 1:
            rows.append((means[0], means[-1], path))
    rows.sort(key=lambda row: row[1][0] - row[0][0])
    cells = [[path, best, f"{mean:.1f}", worst, f"{least:.1f}"] for (mean, best), (least, worst), path in rows]
    return table([f"setting, {trials[0].rounds} rounds", "best", "mean", "worst", "mean"], cells)


def values_of(path: str, trials: Sequence[Trial]) -> Iterator[tuple[str, float]]:
    """The value of a setting in each trial with its accuracy; many different numbers as two halves."""
    values = [trial.settings[path] for trial in trials]
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    middle = median(values) if numbers and len(set(map(show_value, values))) > FEW_VALUES else None
    for value, trial in zip(values, trials, strict=True):
        half = middle is not None and f"{'<=' if value <= middle else '>'} {middle:.3g}"
        yield half or show_value(value), trial.accuracy


def said(value: Any) -> str:
    return ("+".join(value) or "none") if isinstance(value, list) else str(value)


def gap_between(found: Sequence[Any], base: Sequence[Any]) -> str:
    """The paired difference of the mean accuracy of trials, with its interval."""
    one, other = ({row["seed"]: row["acc"] for row in rows} for rows in (found, base))
    return "" if found is base else shown(paired_difference(one, other))


def shown(gap: Difference | None) -> str:
    if gap is None:
        return ""
    ends = f"{gap.interval[0]:+.1f} to {gap.interval[1]:+.1f}" if gap.interval else "too few seeds"
    return f"{gap.mean:+.1f}" + (f" ({ends})" if gap.seeds > 1 else "")


def per_class(name: str) -> str:
    """Accuracy by the number of virtual images per class, and that of as many steps on all real images."""
    found = by_count()
    counts = sorted({count for arm in found.values() for count in arm if count})
    rows = [[str(n), *(spread(arm[n]) if n in arm else "" for arm in found.values())] for n in counts]
    rows += [["all real images", *(spread(arm[0]) if 0 in arm else "" for arm in found.values())]]
    return table(["virtual images per class", *found], rows)


def by_count() -> Mapping[str, Mapping[int, Sequence[float]]]:
    """Accuracies (%) by arm and number of virtual images per class; 0 stands for all real images."""
    found: dict[str, dict[int, list[float]]] = {arm: {} for arm in ARMS}
    for run in (run for run in runs_of(*COUNTED) if run.evaluated):
        arm, accuracy = arm_of(run), 100 * run.evaluated[-1].accuracy
        if arm == "real":
            found[FIXED].setdefault(0, []).append(accuracy)
        elif arm in found:
            found[arm].setdefault(run.settings["distil"]["per_class"], []).append(accuracy)
    return found


def figures() -> dict[str, str]:
    """SVG texts by file name."""
    curves = []
    for style, (label, arm) in enumerate(by_count().items()):
        counts = sorted(count for count in arm if count)
        stats = {n: stat for n, values in arm.items() if (stat := summarise(values))}
        curves.append(SeedCurve(label, tuple(counts), tuple(stats[n] for n in counts), style))
        if 0 in arm:
            ends = (counts[0], counts[-1])
            curves.append(SeedCurve("all real images", ends, (stats[0], stats[0]), style + 1))
    figure = line_plot(curves, "accuracy, %", "virtual images per class")
    return {"accuracy-count.svg": narrow(figure, "accuracy-count")} if figure else {}


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], words: Sequence[str] = ()) -> str:
    """The first column and those of words are aligned to the left, numbers to the right."""
    sides = [":--" if i == 0 or head in words else "--:" for i, head in enumerate(heads)]
    lines = [f"| {' | '.join(heads)} |", f"| {' | '.join(sides)} |"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def spread(values: Sequence[float]) -> str:
    """Mean ± sample standard deviation."""
    return f"{fmean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")
