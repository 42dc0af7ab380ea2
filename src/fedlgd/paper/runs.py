"""The runs of an item: the jobs that make them, and those that are stored, with the CPU time that they took.

They are in <folder>/<scale>/<item>/<part>/<entry>/seed<n>.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from fedlgd.core.text import duration, plural
from fedlgd.paper.items import SCALES, Item, RequestedRuns, owner_of, parts_at, requested_runs
from fedlgd.report.groups import Group, group_runs
from fedlgd.rundir.read import read_runs, run_folders
from fedlgd.rundir.sweep import entry_folder
from fedlgd.runs.compare import Entry, Job, parse_entry, plan_jobs

OWNERS = {"anchors": ("fedlgd", "anchors"), "pull": ("fedlgd", "anchors"), "refine": ("fedlgd", "refine")}
"""The methods and parts that the settings of a section apply to."""
STORED = tuple(reversed(SCALES[1:]))  # a verdict is never based on the scale tiny


def jobs_of(wanted: RequestedRuns, out: Path, library: Path | None = None) -> list[Job]:
    """The runs of a part; all methods of a seed first, so that an interrupted comparison can be read.

    A finished run with the same configuration in `library`, such as one of another item, is copied.
    """
    shared = {path: value for path, value in wanted.settings.items() if path.partition(".")[0] not in OWNERS}
    entries = [_with_own(parse_entry(spec), wanted.settings) for spec in wanted.methods]
    jobs = plan_jobs(entries, wanted.seeds, out, shared, wanted.preset)
    return [replace(job, library=library) for job in sorted(jobs, key=lambda job: job.config.plan.seed)]


def _with_own(entry: Entry, settings: Mapping[str, Any]) -> Entry:
    """The entry with the settings of anchors, pull and refine if it has them; its own settings win."""
    words = entry.name.split("+")
    own = {
        path: value
        for path, value in settings.items()
        if any(word in words for word in OWNERS.get(path.partition(".")[0], ()))
    }
    return replace(entry, settings={**own, **entry.settings})


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The stored runs of one part of an item at a scale, by entry."""

    item: Item
    part: str
    scale: str
    groups: Mapping[str, Group]

    @property
    def label(self) -> str:
        """`C10 (desk, 3 seeds)`"""
        seeds = sorted({len(group.counted) for group in self.groups.values()})
        count = f"{seeds[0]} to {seeds[-1]} seeds" if len(seeds) > 1 else plural(seeds[0], "seed")
        return f"{self.part or 'all'} ({self.scale}, {count})"

    @property
    def cpu(self) -> float:
        """CPU seconds of the runs. Every run is charged for its virtual sets; those of several runs count once."""
        runs = [run for group in self.groups.values() for run in group.runs]
        sets = {(run.seed, run.records[0].cpu.get("distil", 0.0)) for run in runs}
        return sum(cpu for _, cpu in sets) + sum(
            sum(record.cpu.values()) for run in runs for record in run.records[1:]
        )


def stored_part(folder: Path, item: Item, part: str, scale: str) -> Found:
    """The finished runs of a part; an entry without any is missing."""
    owner = owner_of(item)
    specs = requested_runs(owner, part, scale).methods if part in owner.parts else ()
    paths = {spec: run_folders(folder / scale / owner.name / part / entry_folder(spec)) for spec in specs}
    known = [path for each in paths.values() for path in each]
    runs = {run.path: run for run in read_runs(known)[0] if run.finished} if known else {}
    by_label = {run.path: group for group in group_runs(runs.values()) for run in group.runs}
    groups = {spec: by_label[path] for spec, each in paths.items() for path in each[:1] if path in by_label}
    return Found(item=item, part=part, scale=scale, groups=groups)


def stored(folder: Path, item: Item) -> Iterator[Found]:
    """All parts with runs, at each scale that has any, the largest first."""
    for part, scale in product(owner_of(item).parts, STORED):
        found = stored_part(folder, item, part, scale)
        if found.groups:
            yield found


def measured_cpu(folder: Path, item: Item) -> dict[str, str]:
    """The CPU time of the stored runs in words, by scale: `12.1 min (C10), not measured (C50)`."""
    found = {(each.scale, each.part): duration(each.cpu) for each in stored(folder, item) if item.methods}
    return {
        scale: ", ".join(
            found.get((scale, part), "not measured") + (f" ({part})" if part else "")
            for part in parts_at(item, scale)
        )
        for scale in dict.fromkeys(scale for scale, _ in found)
    }
