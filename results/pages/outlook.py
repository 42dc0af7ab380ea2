"""What only the pages say of the stored runs of the paper: their CPU time, what an undecided claim would take, and
the content of `measured.json`, which comes with the package."""

import json
from pathlib import Path

from fedlgd.core.text import duration, plural
from fedlgd.paper.items import (
    Found,
    Item,
    estimate_of,
    find_item,
    items,
    owner_of,
    parts_at,
    requested_runs,
    stored,
)
from fedlgd.paper.verdicts import Verdict, verdicts
from fedlgd.report.summary import Difference
from fedlgd.rundir.intervals import half_width

MAX_SEEDS = 200  # more are not worth saying


def cpu_of(found: Found) -> float:
    """CPU seconds of the runs. Every run is charged for its virtual sets; those of several runs count once."""
    runs = [run for group in found.groups.values() for run in group.runs]
    sets = {(run.seed, run.records[0].cpu.get("distil", 0.0)) for run in runs}
    return sum(cpu for _, cpu in sets) + sum(sum(record.cpu.values()) for run in runs for record in run.records[1:])


def seconds_per_run(folder: Path, item: Item) -> dict[str, dict[str, float]]:
    """The mean CPU time of a stored run, by scale and part."""
    times: dict[str, dict[str, float]] = {}
    for found in stored(folder, item) if item.methods else ():
        runs = sum(len(group.runs) for group in found.groups.values())
        times.setdefault(found.scale, {})[found.part] = round(cpu_of(found) / runs, 1)
    return times


def measured_cpu(folder: Path, item: Item) -> dict[str, str]:
    """The CPU time of the stored runs in words, by scale: `12.1 min (C10), not measured (C50)`."""
    found = {(each.scale, each.part): duration(cpu_of(each)) for each in stored(folder, item) if item.methods}
    return {
        scale: ", ".join(
            found.get((scale, part), "not measured") + (f" ({part})" if part else "")
            for part in parts_at(item, scale)
        )
        for scale in dict.fromkeys(scale for scale, _ in found)
    }


def to_ship(folder: Path) -> str:
    """The content of `measured.json` from the stored runs in a folder."""
    parts = {name: [found.label for found in stored(folder, item)] for name, item in items().items()}
    times = {name: measured_cpu(folder, item) for name, item in items().items()}
    seconds = {name: seconds_per_run(folder, item) for name, item in items().items()}
    content = {
        "stored": {name: labels for name, labels in parts.items() if labels},
        "cpu": {name: cpu for name, cpu in times.items() if cpu},
        "seconds": {name: each for name, each in seconds.items() if each},
        "verdicts": {each.key: each.plain for each in verdicts(folder) if each.scale},
    }
    return json.dumps(content, indent=1) + "\n"


def outlook(folder: Path, verdict: Verdict) -> str:
    """What would decide a claim that runs can decide and have not, in a sentence; empty for others."""
    claim, scale = verdict.claim, verdict.scale or "desk"
    rule = claim.rule_at(scale)
    if verdict.word != "not decided" or rule is None:
        return ""
    item = owner_of(find_item(verdict.item))
    seeds = requested_runs(item, rule.part, scale).seeds
    if verdict.gap and verdict.gap.interval:
        seeds = seeds_needed(verdict.gap, rule.margin)
    if seeds > MAX_SEEDS:
        return f" With this mean and spread, more than {MAX_SEEDS} seeds would be needed: any difference is small."
    per_run = seconds_per_run(folder, item).get(scale, {}).get(rule.part)
    runs = (seeds - verdict.seeds) * len({rule.left, *rule.right})
    cpu = duration(per_run * runs) if per_run else estimate_of(item, scale, rule.part) or "unmeasured hours"
    return f" To decide it takes about {plural(seeds, 'seed')}, {cpu} of CPU time more."


def seeds_needed(gap: Difference, margin: float) -> int:
    """How many seeds have an interval without the margin in one more test, if mean and spread stay as they are."""
    assert gap.interval is not None
    low, high = gap.interval
    spread, far = (high - low) / 2 / half_width(gap.seeds, gap.tests), abs(gap.mean - margin)
    counts = range(gap.seeds + 1, MAX_SEEDS + 1)
    return next((n for n in counts if spread * half_width(n, gap.tests + 1) < far), MAX_SEEDS + 1)
