"""`fedlgd paper`: the tables and figures of the paper, their runs, and a verdict on every claim."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedlgd.report.items import Comparison
from fedlgd.runs.suite import Entry, Job, parse_entry, plan

OWNERS = {"anchors": ("fedlgd", "anchors"), "pull": ("fedlgd", "anchors"), "refine": ("fedlgd", "refine")}
"""The methods and parts that the settings of a section apply to."""


def jobs_of(wanted: Comparison, out: Path) -> list[Job]:
    """The runs of a comparison; all methods of a seed first, so that an interrupted comparison is complete."""
    shared = {path: value for path, value in wanted.settings.items() if path.partition(".")[0] not in OWNERS}
    entries = [_with_own(parse_entry(spec), wanted.settings) for spec in wanted.methods]
    jobs = plan(entries, wanted.seeds, out, shared, wanted.preset)
    return sorted(jobs, key=lambda job: job.config.plan.seed)


def _with_own(entry: Entry, settings: Mapping[str, Any]) -> Entry:
    """The entry with the settings of anchors, pull and refine if it has them; its own settings win."""
    words = entry.method.split("+")
    own = {
        path: value
        for path, value in settings.items()
        if any(word in words for word in OWNERS.get(path.partition(".")[0], ()))
    }
    return replace(entry, settings={**own, **entry.settings})
