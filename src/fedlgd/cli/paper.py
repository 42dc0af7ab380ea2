"""`fedlgd paper`: list the tables and figures of the paper, run one, or report on all."""

import json as jsonlib
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from fedlgd.cli.common import choose_engine, estimate_jobs, open_data, place_of, set_up
from fedlgd.cli.compare import conduct
from fedlgd.cli.options import PaperOptions
from fedlgd.cli.terminal import folded, print_json, table_text
from fedlgd.core.errors import RunError, SettingError
from fedlgd.core.files import writing
from fedlgd.core.text import duration, plural, rough_duration
from fedlgd.paper.items import (
    Item,
    check_part,
    command_of,
    cpu_times,
    find_item,
    items,
    jobs_of,
    parts_at,
    reduced,
    requested_runs,
    stored,
    stored_part,
)
from fedlgd.paper.plan import Missing, missing_runs, undecided
from fedlgd.paper.verdicts import known_verdicts, printed_table, shipped, verdicts, write_paper
from fedlgd.report.tables import Cell, Column, Table
from fedlgd.runs.entries import Job
from fedlgd.runs.jobs import check_jobs


def paper(given: PaperOptions) -> None:
    if given.undecided:
        _run_undecided(given)
    elif given.item is None:
        _list_items(given)
    elif given.item == "report":
        _write_page(given)
    else:
        _run_item(find_item(given.item), given)


def _list_items(given: PaperOptions) -> None:
    """Every item: what it is, its command, its CPU time at each scale, the stored parts, and the verdicts."""
    listed = [_facts(item, given) for item in items().values()]
    if given.json:
        print_json(listed)
        return
    for each in listed:
        title = folded(f"{each['item']}: {each['title']}", "    ")
        typer.echo(f"{title}\n    {each['command']}")
        if each["cpu"]:
            times = ", ".join(f"{scale} {cpu}" for scale, cpu in each["cpu"].items())
            known = ", ".join(each["stored"]) or "nothing"
            typer.echo(folded(f"    CPU time: {times}; stored: {known}", " " * 8))
        for claim in each["claims"]:
            scale = f" ({claim['scale']})" if claim["scale"] else ""
            typer.echo(folded(f"    {claim['verdict']}{scale}: {claim['claim']}", " " * 8))
    where = f"the runs in {given.out}, or, for items without runs there, from those stored with this package"
    more = f"fedlgd paper report writes a page about the runs in {given.out}."
    typer.echo(folded(f"Verdicts are from {where}. Runs at the scale tiny decide nothing. {more}"))


def _facts(item: Item, given: PaperOptions) -> dict[str, Any]:
    """An item; what its runs do not say is what those say that come with the package."""
    measured = shipped()
    own = [found.label for found in stored(given.out, item)]
    return {
        "item": item.name,
        "title": item.title,
        "command": command_of(item),
        "cpu": cpu_times(item, measured.cpu.get(item.name, {})),
        "stored": own or [f"{label} with the package" for label in measured.stored.get(item.name, ())],
        "claims": [
            {"claim": each.claim.text, "printed": each.claim.printed, **each.plain, "verdict": each.word}
            for each in known_verdicts(given.out, {item.name: item})
        ],
    }


def _write_page(given: PaperOptions) -> None:
    if not any(given.out.rglob("manifest.json")):
        raise RunError("no-paper-runs", folder=str(given.out))
    page = given.out / "report.html"
    with writing(page):
        write_paper(given.out, page)
    typer.echo(jsonlib.dumps({"report": str(page)}) if given.json else f"Report: {page}")


def _run_item(item: Item, given: PaperOptions) -> None:
    """Run the parts of an item and show their accuracies and the verdicts, or estimate their time."""
    if not item.methods:
        raise SettingError("item-without-runs", item=item.name, command=item.command)
    check_part(item, given.part)
    check_jobs(given.jobs, given.threads, place_of(given))
    set_up(given.threads)
    parts = parts_at(item, given.scale) if given.part is None else (given.part,)
    library = given.out / given.scale
    jobs = {
        part: jobs_of(requested_runs(item, part, given.scale, given.seeds), library / item.name / part, library)
        for part in parts
    }
    if given.estimate:
        _estimate(item, jobs, given)
        return
    failed: dict[str, str] = {}
    for part, own in jobs.items():
        failed |= _run_part(item, part, own, given)
    _print_result(item, parts, given, failed)
    raise typer.Exit(1 if failed else 0)


def _run_part(item: Item, part: str, jobs: Sequence[Job], given: PaperOptions) -> dict[str, str]:
    """Run what is not finished yet; the errors by folder."""
    federation = open_data(jobs[0].config.data, given.silent)
    about = f"{_title(item, part)}, scale {given.scale}: {plural(len(jobs), 'run')} on {federation.name}"
    less = reduced(item, part, given.scale)
    announced = f"{about}; reduced: {less}" if less else about
    outcomes = conduct(jobs, federation, given, given.out / given.scale / item.name / part, announced)
    return {str(each.job.folder): each.error for each in outcomes if each.error}


def _run_undecided(given: PaperOptions) -> None:
    """A table of what undecided claims wait for, of all items or of one, and then the runs, unless `estimate` is
    given."""
    if given.item is not None:
        check_part(find_item(given.item), given.part)
    check_jobs(given.jobs, given.threads, place_of(given))
    set_up(given.threads)
    claims = undecided(given.out, given.item, given.part)
    waiting = missing_runs(given.out, given.scale, given.seeds, claims)
    if not given.silent or (given.estimate and not given.json):
        typer.echo(_waiting_text(waiting, len(claims), given))
    failed: dict[str, str] = {}
    for each in () if given.estimate else waiting:
        failed |= _run_part(each.item, each.part, each.jobs, given)
    left = claims if given.estimate else undecided(given.out, given.item, given.part)
    if given.json:
        rows = [
            {
                "item": each.item.name,
                "part": each.part,
                "claims": each.claims,
                "runs": len(each.jobs),
                "seconds": each.seconds,
            }
            for each in waiting
        ]
        print_json(
            {"scale": given.scale, "waiting": rows, "undecided": [each.key for each in left], "failed": failed}
        )
    elif not given.estimate:
        typer.echo(folded(f"{plural(len(left), 'claim')} not decided, {len(claims)} before."))
        for run, error in failed.items():
            typer.echo(f"failed: {run}: {error}")
    raise typer.Exit(1 if failed else 0)


def _waiting_text(waiting: Sequence[Missing], claims: int, given: PaperOptions) -> str:
    """The missing runs by part, and how many of the undecided claims no run at this scale can decide."""
    heads = (Column("part", number=False), Column("claims"), Column("runs"), Column("CPU time"))
    rows = [(_title(m.item, m.part), str(len(m.claims)), str(len(m.jobs)), m.cpu) for m in waiting]
    served = sum(len(each.claims) for each in waiting)
    rest = f" No missing run at this scale decides the other {claims - served}." if claims > served else ""
    total = f"{plural(claims, 'claim')} not decided."
    if waiting:
        known = sum(each.seconds or 0.0 for each in waiting)
        time = f"that take {duration(known)} of CPU time, where it is measured" if known else "of unknown CPU time"
        total += f" At scale {given.scale}, {served} of them wait for runs {time}."
    text = folded(f"{total}{rest}")
    return f"{table_text(Table(heads, tuple(tuple(map(Cell, row)) for row in rows)))}\n{text}" if rows else text


def _title(item: Item, part: str) -> str:
    return f"{item.name} {part}".strip()


def _estimate(item: Item, jobs: Mapping[str, list[Job]], given: PaperOptions) -> None:
    seconds = {}
    for part, own in jobs.items():
        federation = open_data(own[0].config.data, given.silent)
        engine = choose_engine(given, federation, "loop" if given.jobs > 1 else None)
        seconds[part] = estimate_jobs(own, federation, engine) / given.jobs
    if given.json:
        print_json({"item": item.name, "scale": given.scale, "seconds": seconds})
        return
    for part, time in seconds.items():
        typer.echo(f"{_title(item, part)}: {rough_duration(time)}")


def _print_result(item: Item, parts: tuple[str, ...], given: PaperOptions, failed: Mapping[str, str]) -> None:
    """Accuracies beside the printed numbers, and the verdicts, which the scale tiny does not decide."""
    made = [stored_part(given.out, item, part, given.scale) for part in parts]
    found = [each for each in verdicts(given.out, {item.name: item}) if given.scale != "tiny"]
    if given.json:
        rows = {
            each.part: [
                {"entry": entry, "seeds": len(group.counted), "mean": stat.mean, "std": stat.std}
                for entry, group in each.groups.items()
                if (stat := group.accuracy)
            ]
            for each in made
        }
        words = {each.claim.text: each.word for each in found}
        result = {"item": item.name, "scale": given.scale, "parts": rows, "verdicts": words, "failed": failed}
        print_json(result)
        return
    for each in made:
        table = table_text(printed_table(each))
        typer.echo(f"\n{_title(item, each.part)}, accuracy:\n{table}")
        typer.echo(f"Report: {given.out / given.scale / item.name / each.part / 'report.html'}")
    for verdict in found:
        typer.echo(folded(f"{verdict.word}: {verdict.claim.text} {verdict.why}", "    "))
    for run, error in failed.items():
        typer.echo(f"failed: {run}: {error}")
