"""The generated parts of speed.md that compare: with the released code by mode, with other packages, by size."""

import json
import textwrap
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from matplotlib.figure import Figure

from bench import project
from fedlgd.core.text import duration
from fedlgd.report.plots import SERIES, WIDTH, styled, svg
from results import MEASURED, RECORDS, reach
from results.pages.accuracy import table
from results.pages.comparisons import REACH, groups_of

BENCH = MEASURED / "bench"
MODES = ("eager", "bf16", "compiled", "compiled, bf16")
NAMES = {
    "dm-initial": "initial matching, step",
    "dm-iterative": "iterative matching, step",
    "gm": "gradient matching, step",
    "epoch-plain": "plain epoch",
    "epoch-regularised": "regularised epoch",
    "evaluation": "evaluation, 1000 images",
}
WANTED = {"epoch-regularised": 2.0, "evaluation": 3.0, "gm": 3.0, "dm-iterative": 25.0}  # released / ours
WANTED_RUN = {"compiled": 50.0, "compiled, bf16": 80.0}
WANTED_PEER = 1.5
OURS = "fedlgd"
PEAK = (
    "float32 at the peak"  # what a ratio would be if our operations ran at the rate of a large product of matrices
)
STEPS = 10_000  # of initial matching in the released procedure
MANY_ROUNDS = 100  # of a federation of hospitals
HOSPITALS = 1000
NOT_MEASURED = "No measurement is stored yet."

Row = Mapping[str, Any]


def stored(name: str) -> Any:
    file = BENCH / f"{name}.json"
    return json.loads(file.read_text()) if file.exists() else None


def full() -> list[dict[str, Any]]:
    """The stored benchmark of all phases: steps to the same result, and phases without passes of the network."""
    return [json.loads(line) for line in (BENCH / "full.jsonl").read_text().splitlines()]


def costs(found: Row) -> dict[str, dict[str, float]]:
    """CPU seconds by phase of each side; "shipped" has anomaly detection wherever there are gradients."""
    sides: dict[str, dict[str, float]] = {side: {} for side in ("released", "shipped", *MODES, PEAK)}
    for phase, row in found["phases"].items():
        sides[PEAK][phase] = row["gflop"]["eager"] / found["peak_gflops"]
        for side, turns in row["seconds"].items():
            sides[side][phase] = median(turns)
        sides["shipped"].setdefault(phase, sides["released"][phase])
    return sides


def modes(name: str) -> str:
    """CPU seconds of each phase, how many times less than released, and the share of the peak."""
    found = stored(name)
    if not found:
        return NOT_MEASURED
    cost, rows = costs(found), []
    for phase in (phase for phase in NAMES if phase in found["phases"]):
        flop, released = found["phases"][phase]["gflop"], cost["released"][phase]
        shares = [flop["eager"] / cost[mode][phase] / found["peak_gflops"] for mode in ("eager", "compiled")]
        cells = [f"{released:.3g}", *(f"{cost[mode][phase]:.3g}" for mode in MODES)]
        times = [f"{released / cost[mode][phase]:.2f}" for mode in MODES]
        rows.append([NAMES[phase], *(f"{a} ({b}x)" for a, b in zip(cells[1:], times, strict=True))])
        rows[-1][1:1] = [cells[0]]
        rows[-1] += [f"{share:.0%}" for share in shares]
    heads = ["phase", "released", *MODES, "of peak, eager", "of peak, compiled"]
    turns = min(len(row["seconds"]["eager"]) for row in found["phases"].values())
    loads = [row["load"] for row in found["phases"].values()]
    about = (
        f"CPU seconds of one thread, median of {turns} or more turns in one process, in brackets released / ours. "
        f"Width {found['width']}, {found['cpu']}, {found['cores']} cores, torch {found['torch']}; load "
        f"{min(loads):.1f} to {max(loads):.1f}. The peak is {found['peak_gflops']:.0f} GFLOP/s in float32."
    )
    return table(heads, rows) + "\n\n" + textwrap.fill(about, 120)


def graphs(name: str) -> str:
    """A compiled step with a graph for its size of a batch, and with one for all sizes."""
    found = stored(name)
    if not found:
        return NOT_MEASURED
    ways = ("eager", "one size", "all sizes")
    rows = [
        [str(row["width"]), str(row["size"]), *(f"{1000 * row[way]:.1f}" for way in ways)] for row in found["rows"]
    ]
    about = f"CPU milliseconds of a step, the shortest of several. {found['cpu']}, load {found['load']:.1f}."
    return table(["width", "images in the batch", *ways], rows) + "\n\n" + about


def run_ratios(name: str) -> dict[str, float]:
    """CPU time of a whole DIGITS run as released over ours at the same matching loss, by mode."""
    theirs, ours = whole_runs(name)
    return {mode: sum(theirs.values()) / sum(cost.values()) for mode, cost in ours.items()}


def whole_runs(name: str) -> tuple[Mapping[str, float], Mapping[str, Mapping[str, float]]]:
    """CPU seconds by phase of a whole DIGITS run: released with anomaly detection, and ours by mode."""
    found, records = stored(name), full()
    if not found or set(found["phases"]) != set(NAMES):
        return {}, {}
    cost = costs(found)
    fewer = {m["phase"]: m["ours"] / m["theirs"] for m in records if m["kind"] == "match"}
    for record in records:  # phases without passes of the network
        if record["kind"] == "phase" and record["phase"] not in NAMES:
            for side, of in (("shipped", "published"), *((mode, "ours") for mode in (*MODES, PEAK))):
                cost[side][record["phase"]] = record[of]["seconds"]["median"]
    steps = STEPS * fewer["dm-initial"], project.GM_STEPS * fewer["gm"]
    ours = {mode: project.ours_(project.DIGITS, cost[mode], *steps) for mode in (*MODES, PEAK)}
    return project.theirs(project.DIGITS, cost["shipped"], STEPS), ours


def bars(name: str) -> str:
    """The targets of each phase and of a whole run, what was measured in each mode, and the ratio at the peak."""
    found = stored(name)
    if not found:
        return NOT_MEASURED
    cost, rows = costs(found), []
    for phase, wanted in WANTED.items():
        if phase in found["phases"]:
            *values, most = [cost["released"][phase] / cost[mode][phase] for mode in (*MODES, PEAK)]
            rows.append(
                [f"{NAMES[phase]}, released / ours", f"{wanted:g}", *verdicts(values, wanted), f"{most:.1f}"]
            )
    ratios = run_ratios(name)
    for mode, wanted in WANTED_RUN.items() if ratios else ():
        cells = [f"{ratios[each]:.1f}" + (verdict(ratios[each], wanted) if each == mode else "") for each in MODES]
        rows.append([f"whole DIGITS run, projected, {mode}", f"{wanted:g}", *cells, f"{ratios[PEAK]:.1f}"])
    runs = whole_runs(name)[1]
    shares = [f"{runs[mode]['dm-initial'] / sum(runs[mode].values()):.0%}" for mode in MODES if runs]
    limit = f"Initial matching is {' / '.join(shares)} of a whole run of ours, in the order of the columns."
    return table(["target", "wanted", *MODES, PEAK], rows) + (f"\n\n{limit}" if shares else "")


def verdicts(values: Sequence[float], wanted: float) -> list[str]:
    return [f"{value:.2f}{verdict(value, wanted)}" for value in values]


def verdict(value: float, wanted: float) -> str:
    return " met" if value >= wanted else " missed"


def by_way(sites: int) -> dict[str, Row]:
    """The measurements of each way with so many sites; of several the one with the shortest rounds."""
    rows = [row for row in stored("peers") or () if row["kind"] == "round" and row["sites"] == sites]
    best: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: median(row["cpu"]) if "cpu" in row else 1e9, reverse=True):
        best[row["way"]] = row
    return best


def peers(_: str) -> str:
    """FedAvg with each package: time of a site in a round, and memory."""
    rows_of = {sites: found for sites in (5, 100, 1000) if (found := by_way(sites))}
    if not rows_of:
        return NOT_MEASURED
    ways = dict.fromkeys(way for found in rows_of.values() for way in found)
    heads = ["FedAvg", *(f"{sites} sites, ms" for sites in rows_of), *(f"{sites} sites, MB" for sites in rows_of)]
    rows = []
    for way in ways:
        of = [found.get(way, {}) for found in rows_of.values()]
        times = [f"{1000 * median(row['cpu']) / row['sites']:.1f}" if "cpu" in row else "–" for row in of]
        memory = [str(row["peak"] - row["start"]) if "peak" in row else "–" for row in of]
        rows.append([way, *times, *memory])
    notes = [
        f"{row['way']}: {row['failed']}." for found in rows_of.values() for row in found.values() if "failed" in row
    ]
    return "\n".join([table(heads, rows), "", *dict.fromkeys(notes), textwrap.fill(equality(), 120)])


def equality() -> str:
    """How near the results are: weights after whole batches, and accuracy after the timed rounds."""
    gaps = {
        row["way"]: row["difference"] for row in stored("peers") if row["kind"] == "equal" and "difference" in row
    }
    near = ", ".join(f"{way} {gap:.1%}" for way, gap in gaps.items() if way != "plain PyTorch")
    scores = ", ".join(f"{way} {row['accuracy']:.1%}" for way, row in by_way(5).items() if "accuracy" in row)
    text = f"Accuracy after the timed rounds with 5 sites, each with batches of its own order: {scores}."
    weights = (
        "Largest difference to the weights of the plain loop after two rounds of whole batches, relative to the "
        f"largest change of a weight: {near}. "
    )
    return (weights if near else "") + text


def best_peer() -> tuple[str, Mapping[str, float]] | None:
    """The fastest other package with 100 sites, and its time over ours by mode."""
    cost = {way: median(row["cpu"]) for way, row in by_way(100).items() if "cpu" in row}
    others = [way for way in cost if way in ("fluke", "pfl-research")]
    if not others or OURS not in cost:
        return None
    best = min(others, key=cost.__getitem__)
    return best, {way: cost[best] / value for way, value in cost.items() if way.startswith(OURS)}


def scale(name: str) -> str:
    """Time of a site and memory by the number of sites."""
    rows = stored(name)
    if not rows:
        return NOT_MEASURED
    cells = [
        [
            *(row["method"], f"{row['sites']:,}", f"{1000 * row['enrolment']:.1f}", f"{1000 * row['round']:.1f}"),
            *(str(row["peak"] - row["start"]), f"{1024 * (row['peak'] - row['start']) / row['sites']:.0f}"),
        ]
        for row in rows
    ]
    heads = ["method", "sites", "enrolment of a site, ms", "round of a site, ms", "MB above start", "kB per site"]
    return table(heads, cells) + "\n\n![Time and memory by the number of sites](../images/speed-scale.svg)"


def hospitals(_: str) -> str:
    """What one coordinator holds, and what 1 000 sites would need if cost stays linear."""
    few, many = json.loads((MEASURED / "deploy" / "many-sites.json").read_text())
    each = (many["seconds"] - few["seconds"]) / (many["sites"] - few["sites"])
    fixed = few["seconds"] - each * few["sites"]
    held = (many["peak"] - few["peak"]) / (many["sites"] - few["sites"])
    seconds, memory = fixed + each * HOSPITALS, many["peak"] + held * (HOSPITALS - many["sites"])
    text = (
        f"One coordinator with {many['sites']} sites of a Flower federation in one process handles "
        f"{2 * many['sites'] / many['seconds']:.0f} messages (orders and replies) per second and has "
        f"{many['peak']:.0f} MB at its peak; the training of tiny sites in the same process is included. Between "
        f"{few['sites']} and {many['sites']} sites a site more costs {each:.2f} s in a round and {held:.2f} MB. "
        f"If that stays linear, {HOSPITALS} hospitals need {duration(seconds)} in a round and {memory / 1024:.1f} "
        f"GB of memory. Their updates have {HOSPITALS * many['update'] / 1024:.1f} GB in a round, and "
        f"{MANY_ROUNDS} rounds take {duration(MANY_ROUNDS * seconds)}. Their training and the network take more. "
        f"This is an extrapolation by a factor of {HOSPITALS / many['sites']:.0f}, not a measurement."
    )
    return textwrap.fill(text, 120)


def lead(name: str) -> str:
    """The answer, and three numbers."""
    ratios, peer = run_ratios(name), best_peer()
    lines = []
    if ratios:
        lines.append(
            f"- **{ratios['eager']:.0f} times** less CPU time than the released code for a whole DIGITS run at the "
            f"same matching loss; compiled {ratios['compiled']:.0f} times, compiled in bfloat16 "
            f"{ratios['compiled, bf16']:.0f} times (projected from measured phases)."
        )
    if peer:
        best, times = peer
        others = {way.removeprefix(f"{OURS}, "): ratio for way, ratio in times.items() if way != OURS}
        lines.append(
            f"- **{times[OURS]:.2f} times** as fast as {best}, the best other package, on FedAvg with 100 sites in "
            f"eager mode (target {WANTED_PEER:g}:{verdict(times[OURS], WANTED_PEER)}); "
            f"{', '.join(f'{mode} {ratio:.2f} times' for mode, ratio in others.items())}."
        )
    groups = groups_of(RECORDS / REACH)
    lines.append(f"- {reach.headline(groups)}")
    return "\n".join(textwrap.fill(line, 120, subsequent_indent="  ") for line in lines)


@styled()
def figures() -> dict[str, str]:
    rows = stored("scale")
    if not rows:
        return {}
    figure = Figure(figsize=(WIDTH, 2.6), layout="constrained")
    panels = figure.subplots(1, 2)
    for colour, method in zip(SERIES, dict.fromkeys(row["method"] for row in rows), strict=False):
        own = [row for row in rows if row["method"] == method]
        heights = [1000 * row["round"] for row in own], [row["peak"] - row["start"] for row in own]
        for panel, values in zip(panels, heights, strict=True):
            panel.plot([row["sites"] for row in own], values, "o-", color=colour, label=method)
    for panel, title in zip(panels, ("CPU ms of a site in a round", "MB above the start"), strict=True):
        panel.set_title(title, loc="left", fontsize="medium")
        panel.set_xscale("log")
        panel.set_ylim(bottom=0)
        panel.set_xlabel("sites")
        panel.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    panels[0].legend(frameon=False, loc="lower right")
    return {"speed-scale.svg": svg(figure, "speed-scale")}
