"""`fedlgd paper` without an item, and `fedlgd paper report`; `compare` runs an item. Torch is not imported."""

import json as jsonlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

from fedlgd.cli.options import PaperOptions
from fedlgd.cli.terminal import folded
from fedlgd.core.errors import RunError
from fedlgd.core.files import writing
from fedlgd.paper.items import Item, command_of, cpu_times, items
from fedlgd.paper.stored import stored
from fedlgd.paper.verdicts import known_verdicts, shipped


def paper(given: PaperOptions) -> None:
    if given.item is None:
        list_paper(given)
    elif given.item == "report":
        report_paper(given)
    else:
        from fedlgd.cli.paper_runs import run_item

        run_item(given)


def list_paper(given: PaperOptions) -> None:
    """Every item: what it is, its command, its CPU time at each scale, the stored parts, and the verdicts."""
    if given.json:
        typer.echo(jsonlib.dumps([_plain(item, given.out) for item in items().values()]))
        return
    found = list(known_verdicts(given.out))
    for item in items().values():
        typer.echo(f"{folded(f'{item.name}: {item.title}', '    ')}\n    {command_of(item)}")
        if item.methods:
            times = ", ".join(f"{scale} {cpu}" for scale, cpu in cpu_times(item, _measured(item)).items())
            known = ", ".join(_stored(item, given.out)) or "nothing"
            typer.echo(folded(f"    CPU time: {times}; stored: {known}", " " * 8))
        for each in found:
            if each.item == item.name:
                scale = f" ({each.scale})" if each.scale else ""
                typer.echo(folded(f"    {each.word}{scale}: {each.claim.text}", " " * 8))
    where = f"the runs in {given.out}, or, for items without runs there, from those stored with this package"
    more = (
        f"Runs at the scale tiny decide nothing. fedlgd paper report writes a page about the runs in {given.out}."
    )
    typer.echo(folded(f"Verdicts are from {where}. {more}"))


def _stored(item: Item, folder: Path) -> Sequence[str]:
    """The parts with runs in the folder; without any, those that the package has verdicts of."""
    own = [found.label for found in stored(folder, item)]
    return own or [f"{label} with the package" for label in shipped().stored.get(item.name, ())]


def _measured(item: Item) -> Mapping[str, str]:
    """The CPU time of the runs that come with the package."""
    return shipped().cpu.get(item.name, {})


def _plain(item: Item, folder: Path) -> dict[str, object]:
    claims = [
        {"claim": v.claim.text, "printed": v.claim.printed, **v.plain, "verdict": v.word}
        for v in known_verdicts(folder, {item.name: item})
    ]
    known = {
        "item": item.name,
        "title": item.title,
        "command": command_of(item),
        "cpu": cpu_times(item, _measured(item)),
    }
    return {**known, "stored": _stored(item, folder), "claims": claims}


def report_paper(given: PaperOptions) -> None:
    """Write the page and say where it is."""
    from fedlgd.paper.page import write_paper

    if not any(given.out.rglob("manifest.json")):
        way_out = "run an item first, e.g. fedlgd paper table-digits --scale desk --part C10, or name its folder"
        raise RunError(f"{str(given.out)!r} has no runs; {way_out} with --out")
    page = given.out / "report.html"
    with writing(page):
        write_paper(given.out, page)
    typer.echo(jsonlib.dumps({"report": str(page)}) if given.json else f"Report: {page}")
