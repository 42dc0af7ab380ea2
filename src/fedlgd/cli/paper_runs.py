"""`fedlgd paper ITEM`: the runs of a table or figure of the paper."""

import json as jsonlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from fedlgd.cli.common import choose_engine, estimate_jobs, open_data, place_of, set_up
from fedlgd.cli.compare import conduct
from fedlgd.cli.options import PaperOptions
from fedlgd.cli.progress import duration
from fedlgd.cli.terminal import fitted, folded, terminal_width
from fedlgd.core.errors import SettingError
from fedlgd.core.text import plural
from fedlgd.paper.items import Comparison, Item, comparison, find, parts_at, reduced
from fedlgd.paper.stored import Found, stored_part
from fedlgd.paper.tables import RIVALS, printed_table
from fedlgd.paper.verdicts import verdicts
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
    if given.estimate:
        _estimate(item, given)
        return
    failed = {run: error for part in _parts(item, given) for run, error in _run_part(item, part, given).items()}
    _print_result(item, given, failed)
    raise typer.Exit(1 if failed else 0)


def _parts(item: Item, given: PaperOptions) -> tuple[str, ...]:
    if given.part is None:
        return parts_at(item, given.scale)
    if given.part not in item.parts:
        if "" in item.parts:
            raise SettingError(f"{item.name} has no parts; leave --part out")
        raise SettingError(f"{item.name} has no part {given.part!r}; available: {', '.join(item.parts)}")
    return (given.part,)


def _jobs(item: Item, part: str, given: PaperOptions) -> list[Job]:
    library = given.out / given.scale
    return jobs_of(comparison(item, part, given.scale), library / item.name / part, library)


def _estimate(item: Item, given: PaperOptions) -> None:
    seconds = {}
    for part in _parts(item, given):
        jobs = _jobs(item, part, given)
        federation = open_data(jobs[0].config.data, given.silent)
        engine = choose_engine(given, federation, "loop" if given.jobs > 1 else None)
        seconds[part] = estimate_jobs(jobs, federation, engine) / given.jobs
    if given.json:
        typer.echo(jsonlib.dumps({"item": item.name, "scale": given.scale, "seconds": seconds}))
        return
    for part, time in seconds.items():
        typer.echo(f"{item.name} {part}".strip() + f": {duration(time)}")


def _run_part(item: Item, part: str, given: PaperOptions) -> dict[str, str]:
    """Run one part; returns the errors by run folder."""
    jobs = _jobs(item, part, given)
    federation = open_data(jobs[0].config.data, given.silent)
    less = reduced(item, part, given.scale)
    announced = f"{item.name} {part}".strip() + (
        f", scale {given.scale}: {plural(len(jobs), 'run')} on {federation.name}" + (less and f"; reduced: {less}")
    )
    outcomes = conduct(jobs, federation, given, given.out / given.scale / item.name / part, announced)
    return {str(each.job.folder): each.error for each in outcomes if each.error}


def _print_result(item: Item, given: PaperOptions, failed: Mapping[str, str]) -> None:
    """Accuracies beside the printed numbers, and the verdicts, which the scale tiny does not decide."""
    parts = [stored_part(given.out, item, part, given.scale) for part in _parts(item, given)]
    found = [each for each in verdicts(given.out, {item.name: item}) if given.scale != "tiny"]
    if given.json:
        words = {each.claim.text: each.word for each in found}
        rows = {each.part: _rows(each) for each in parts}
        result = {"item": item.name, "scale": given.scale, "parts": rows, "verdicts": words, "failed": failed}
        typer.echo(jsonlib.dumps(result))
        return
    for each in parts:
        typer.echo(f"\n{f'{item.name} {each.part}'.strip()}, accuracy:\n{_fitted(each)}")
        typer.echo(f"Report: {given.out / given.scale / item.name / each.part / 'report.html'}")
    for verdict in found:
        typer.echo(folded(f"{verdict.word}: {verdict.claim.text} {verdict.why}", "    "))
    for run, error in failed.items():
        typer.echo(f"failed: {run}: {error}")


def _fitted(found: Found) -> str:
    """The table in the width of the terminal; of the differences, those to FedLGD are never left out."""
    others = [f"minus {rival}" for rival in RIVALS if rival != "fedlgd"]
    return fitted(printed_table(found), terminal_width(), others)


def _rows(found: Found) -> list[dict[str, Any]]:
    return [
        {"entry": entry, "seeds": len(group.counted), "mean": stat.mean, "std": stat.std}
        for entry, group in found.groups.items()
        if (stat := group.accuracy)
    ]


def jobs_of(wanted: Comparison, out: Path, library: Path | None = None) -> list[Job]:
    """The runs of a comparison; all methods of a seed first, so that an interrupted one can be read.

    A finished run with the same configuration in `library`, such as one of another item, is copied.
    """
    shared = {path: value for path, value in wanted.settings.items() if path.partition(".")[0] not in OWNERS}
    entries = [_with_own(parse_entry(spec), wanted.settings) for spec in wanted.methods]
    jobs = plan(entries, wanted.seeds, out, shared, wanted.preset)
    return [replace(job, library=library) for job in sorted(jobs, key=lambda job: job.config.plan.seed)]


def _with_own(entry: Entry, settings: Mapping[str, Any]) -> Entry:
    """The entry with the settings of anchors, pull and refine if it has them; its own settings win."""
    words = entry.method.split("+")
    own = {
        path: value
        for path, value in settings.items()
        if any(word in words for word in OWNERS.get(path.partition(".")[0], ()))
    }
    return replace(entry, settings={**own, **entry.settings})
