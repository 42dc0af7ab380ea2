"""`fedlgd paper ITEM`: run a table or a figure of the paper."""

import json as jsonlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from fedlgd.cli.compare import conduct
from fedlgd.cli.estimate import estimate_jobs
from fedlgd.cli.options import PaperOptions
from fedlgd.cli.progress import duration
from fedlgd.cli.run import choose_engine, open_data, place_of, set_up
from fedlgd.core.errors import SettingError
from fedlgd.report.formats import as_text
from fedlgd.report.items import Comparison, Item, comparison, find, parts_at, reduced
from fedlgd.report.verdicts import printed_table, stored_part, verdicts
from fedlgd.runs.comparing.entries import Entry, Job, parse_entry, plan
from fedlgd.runs.comparing.parallel import check_jobs

OWNERS = {"anchors": ("fedlgd", "anchors"), "pull": ("fedlgd", "anchors"), "refine": ("fedlgd", "refine")}
"""The methods and parts that the settings of a section apply to."""


def run_item(given: PaperOptions) -> None:
    """Run all parts of an item, or estimate their time."""
    item = find(given.item or "")
    if not item.methods:
        raise SettingError(f"{item.name} has no runs of its own; use: {item.command}")
    check_jobs(given.jobs, given.threads, place_of(given))
    set_up(given.threads)
    failed: dict[str, str] = {}
    for part in _parts(item, given):
        failed |= _run_part(item, part, given)
    if given.estimate:
        return
    found = [each for each in verdicts(given.out, {item.name: item}) if given.scale != "tiny"]
    if given.json:
        words = {each.claim.text: each.word for each in found}
        typer.echo(jsonlib.dumps({"item": item.name, "scale": given.scale, "verdicts": words, "failed": failed}))
    else:
        for each in found:
            typer.echo(f"{each.word}: {each.claim.text} {each.why}")
    raise typer.Exit(1 if failed else 0)


def _parts(item: Item, given: PaperOptions) -> tuple[str, ...]:
    known = parts_at(item, given.scale)
    if given.part is not None and given.part not in item.parts:
        raise SettingError(f"{item.name} has no part {given.part!r}; available: {', '.join(item.parts)}")
    return known if given.part is None else (given.part,)


def _run_part(item: Item, part: str, given: PaperOptions) -> dict[str, str]:
    """Run or estimate one part; returns the errors by run folder."""
    out = given.out / given.scale / item.name / part
    jobs = jobs_of(comparison(item, part, given.scale), out)
    federation = open_data(jobs[0].config.data, given.silent)
    title = f"{item.name} {part}".strip()
    if given.estimate:
        engine = choose_engine(given, federation, "loop" if given.jobs > 1 else None)
        typer.echo(f"{title}: {duration(estimate_jobs(jobs, federation, engine) / given.jobs)}")
        return {}
    less = reduced(item, part, given.scale)
    announced = f"{title}, scale {given.scale}: {len(jobs)} runs on {federation.name}" + (
        less and f"; reduced: {less}"
    )
    outcomes = conduct(jobs, federation, given, out, announced)
    if not given.silent:
        table = printed_table(stored_part(given.out, item, part, given.scale))
        typer.echo(f"\n{as_text(table)}\nReport: {out / 'report.html'}")
    return {str(each.job.folder): each.error for each in outcomes if each.error}


def jobs_of(wanted: Comparison, out: Path) -> list[Job]:
    """The runs of a comparison; all methods of a seed first, so that an interrupted one can be read."""
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
