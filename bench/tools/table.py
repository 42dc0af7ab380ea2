"""The results of a benchmark as text."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

Record = dict[str, Any]


def line(record: Record) -> str:
    """One result as one line."""
    kind = record["kind"]
    if kind == "machine":
        return machine(record)
    if kind == "phase":
        return f"{record['phase']}: {ratio(record['ratio'])} times cheaper per {record['unit']}"
    if kind == "allocation":
        return f"{record['phase']}: {ratio(record['ratio'])} times cheaper with the malloc settings of fedlgd"
    if kind in ("match", "smoothing"):
        reached = "never" if record["ours"] is None else f"{record['ours']:.0f} steps"
        whose_steps = "published" if kind == "match" else "plain"
        goal = f"{record['theirs']} {whose_steps} steps reach {record['value']:.4g}"
        return f"{record['phase']}: {goal}, ours in {reached}"
    if kind == "projection":
        return f"{record['run']}, {whose(record)}: {record['total']:.2f} CPU hours"
    if kind == "bar":
        return f"target: {record['name']}: {number(record['measured'])} of {record['wanted']}: {record['verdict']}"
    if kind == "anomaly":
        return f"{record['phase']}: published {ratio(record['ratio'])} times more expensive with anomaly detection"
    if kind == "engine":
        return f"pool, {record['workers']} workers, {record['sites']} sites: {record['median']:.2f} times faster"
    if kind == "memory":
        return f"{record['method']}, {record['sites']} sites: {record['peak']} MB peak, {record['seconds']} s"
    return f"growth: {record['what']} x{record['factor']}: cost x{record['ratio']:.2f}"


def machine(record: Record) -> str:
    quick = "QUICK (small width, few repetitions: ratios are lower than at width 128). " if record["quick"] else ""
    return (
        f"{quick}Width {record['width']}, {record['data']}, CPU seconds of one thread, {record['repeats']} "
        "repetitions of each side. The reference runs without anomaly detection and with default malloc settings, "
        "ours with the malloc settings of the `fedlgd` command. "
        f"{record.get('cpu', 'CPU unknown')}, {record['cores']} cores, peak {record['peak_gflops']:.0f} GFLOP/s; "
        f"load {record['load']:.1f} at the start; torch {record['torch']}."
    )


def blocks(records: Sequence[Record]) -> Iterator[tuple[str, list[list[str]]]]:
    """(title, rows including the head) of each table that has results."""
    for kind, title in TITLES.items():
        found = [record for record in records if record["kind"] == kind]
        if found:
            yield title, [HEADS[kind], *(ROWS[kind](record) for record in found)]


def tables(records: Sequence[Record]) -> Iterator[str]:
    """Tables for a terminal."""
    return (f"{title}\n{aligned(rows)}" for title, rows in blocks(records))


def markdown(records: Sequence[Record]) -> str:
    """Tables for a page."""
    parts = [machine(record) for record in records if record["kind"] == "machine"]
    for title, (head, *rows) in blocks(records):
        lines = [head, ["---"] * len(head), *rows]
        parts.append("\n".join([f"### {title}", "", *(f"| {' | '.join(cells)} |" for cells in lines)]))
    return "\n\n".join(parts) + "\n"


def aligned(rows: Iterable[Sequence[str]]) -> str:
    rows = list(rows)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "   ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def ratio(spread: Record) -> str:
    return f"{spread['median']:.2f} ({spread['low']:.2f}-{spread['high']:.2f})"


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def whose(record: Record) -> str:
    note = f", {record['note']}" if record["note"] else ""
    return f"{record['who']}{note} ({record['initial_steps']} initial steps)"


def cost(side: Record) -> list[str]:
    return [f"{side['seconds']['median']:.4g}", f"{side['share_of_peak']:.0%}", f"{side['megabytes']:.0f}"]


def turns(pairs: Sequence[Sequence[float]]) -> list[str]:
    """Seconds of each side in every repetition."""
    return [", ".join(f"{value:.1f}" for value in side) for side in zip(*pairs, strict=True)]


def _hours(record: Record) -> list[str]:
    main = ("dm-initial", "dm-iterative", "gm", "epoch-regularised", "evaluation")
    return [duration(record["hours"][name]) for name in main] + [duration(record["total"])]


def duration(hours: float) -> str:
    return f"{hours:.3g}" if hours < 1000 else f"{hours:.0f}"


TITLES = {
    "phase": "Cost of each phase",
    "allocation": "Ours: default malloc settings against those of the `fedlgd` command",
    "anomaly": "The reference: with against without anomaly detection",
    "match": "Steps to the same result",
    "smoothing": "Ours: steps with smoothed gradients to the loss of plain gradients",
    "projection": "Complete runs, CPU hours of one core",
    "bar": "Targets",
    "growth": "Growth of our cost with the federation",
    "engine": "Wall time, engine `pool` against `loop`",
    "memory": "Memory of a run with many sites",
}
HEADS = {
    "phase": [
        "phase",
        "unit",
        "published s",
        "of peak",
        "MB",
        "ours s",
        "of peak",
        "MB",
        "ratio (quartiles)",
        "load",
    ],
    "allocation": ["phase", "ratio (quartiles)"],
    "anomaly": ["phase", "ratio (quartiles)"],
    "match": ["phase", "width", "published steps", "value reached", "our steps"],
    "smoothing": ["width", "plain steps", "value reached", "smoothed steps"],
    "projection": ["run", "by", "initial DM", "iterative DM", "GM", "regularised", "evaluation", "total"],
    "bar": ["ratio", "target", "measured", "verdict"],
    "growth": ["quantity", "factor", "cost factor"],
    "engine": ["sites", "workers", "loop s", "pool s", "speed-up"],
    "memory": ["method", "sites", "MB at start", "MB peak", "seconds"],
}
ROWS: dict[str, Callable[[Record], list[str]]] = {
    "phase": lambda r: [
        *(r["phase"], r["unit"], *cost(r["published"]), *cost(r["ours"])),
        *(ratio(r["ratio"]), number(r.get("load"))),
    ],
    "allocation": lambda r: [r["phase"], ratio(r["ratio"])],
    "anomaly": lambda r: [r["phase"], ratio(r["ratio"])],
    "match": lambda r: [r["phase"], str(r["width"]), str(r["theirs"]), f"{r['value']:.4g}", number(r["ours"])],
    "smoothing": lambda r: [str(r["width"]), str(r["theirs"]), f"{r['value']:.4g}", number(r["ours"])],
    "projection": lambda r: [r["run"], whose(r), *_hours(r)],
    "bar": lambda r: [r["name"], str(r["wanted"]), number(r["measured"]), r["verdict"]],
    "growth": lambda r: [r["what"], str(r["factor"]), f"{r['ratio']:.2f}"],
    "engine": lambda r: [str(r["sites"]), str(r["workers"]), *turns(r["seconds"]), f"{r['median']:.2f}"],
    "memory": lambda r: [r["method"], *(str(r[key]) for key in ("sites", "start", "peak", "seconds"))],
}
