"""Our numbers beside the printed ones, and a verdict on every claim of the paper: the tables, and one HTML page."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from jinja2 import ChoiceLoader, PackageLoader

from fedlgd.core.files import write_atomic
from fedlgd.paper.items import Item, Word, command_of, items, owner_of, printed, reduced
from fedlgd.paper.runs import Found, stored
from fedlgd.paper.verdicts import Verdict, verdicts
from fedlgd.report.figures import (
    Drawing,
    cost_figures,
    find_sweeps,
    round_figures,
    similarity_figures,
    sweep_figures,
    sweep_tables,
)
from fedlgd.report.formats import NONE, Cell, Column, Table, percent_stat, percentage_points
from fedlgd.report.groups import Group, Stat, site_names
from fedlgd.report.page import TEMPLATES
from fedlgd.report.summary import caveats, difference

RIVALS = ("fedavg", "fedavg:local.steps=2", "fedavg:local.steps=7", "fedavg:local.steps=19", "fedlgd")
PAGES = TEMPLATES.overlay(loader=ChoiceLoader([PackageLoader("fedlgd.paper"), PackageLoader("fedlgd.report")]))


def write_paper(folder: Path, out: Path) -> None:
    """Read the runs of the paper in `folder` and write the page to `out`. The same runs give the same bytes."""
    found = list(verdicts(folder))
    sections = [_section(folder, item, [v for v in found if v.item == item.name]) for item in items().values()]
    words = {"claims": len(found), "tally": tally(found), "folder": folder}
    text = PAGES.get_template("paper.html").render(sections=sections, **words)
    write_atomic(out, text.encode())


def _section(folder: Path, item: Item, own: list[Verdict]) -> dict[str, Any]:
    """An item with its verdicts, and the tables and figures of each stored part."""
    parts = []
    for found in stored(folder, item):
        groups = tuple(found.groups.values())
        part = {
            "name": found.label,
            "reduced": reduction(found),
            "table": printed_table(found),
            "sites": site_table(found),
            "sweeps": list(sweep_tables(find_sweeps(groups))),
            "caveats": caveats(groups),
            "figures": _figures(item, groups),
        }
        parts.append(part)
    table = verdict_table(own) if own else None
    return {"item": item, "command": command_of(item), "tally": tally(own), "verdicts": table, "parts": parts}


def _figures(item: Item, groups: Sequence[Group]) -> Sequence[Drawing]:
    match item.figure:
        case "table" | "curves":
            return round_figures(groups)
        case "sweep":
            return tuple(sweep_figures(find_sweeps(groups)))
        case "cost":
            return cost_figures(groups)
        case "similarity":
            return [drawing for section in similarity_figures(groups) for drawing in section.drawings]
    return ()


def tally(found: Sequence[Verdict]) -> str:
    """`3 confirmed, 9 not decided`"""
    count: Counter[str] = Counter(each.word for each in found)
    return ", ".join(f"{count[word]} {word}" for word in get_args(Word) if count[word])


def verdict_table(found: Sequence[Verdict]) -> Table:
    """Claim, printed number, ours with interval, scale, verdict and why."""
    heads = ("claim", "the paper prints", "ours (difference, 95 % interval)", "scale", "verdict", "why")
    rows = (
        (each.claim.text, each.claim.printed, each.ours, each.scale or NONE, each.word, each.why) for each in found
    )
    return Table(tuple(Column(head, number=False) for head in heads), tuple(tuple(map(Cell, row)) for row in rows))


def printed_table(found: Found, against: Sequence[str] = ()) -> Table:
    """Accuracy of every entry beside the printed number, with the paired differences to some entries.

    By default these are FedAvg, FedAvg with as many steps as FedLGD, and FedLGD.
    """
    part = owner_of(found.item).parts[found.part]
    rivals = [entry for entry in found.groups if entry in (against or RIVALS)]
    heads = ("entry", "seeds", "ours (%)", "the paper (%)", *(f"minus {entry}" for entry in rivals))
    rows = []
    for entry, group in found.groups.items():
        gaps = [difference(group, found.groups[rival]) if rival != entry else None for rival in rivals]
        shown = (f"{percentage_points(gap.mean)}{gap.range}" if gap else NONE for gap in gaps)
        numbers = _accuracy(group.accuracy), _number(printed(part, entry))
        rows.append(tuple(map(Cell, (entry, str(len(group.counted)), *numbers, *shown))))
    return Table((Column("entry", number=False), *map(Column, heads[1:])), tuple(rows))


def site_table(found: Found) -> Table | None:
    """Accuracy at every site of the paper, with the printed number in parentheses; None if none is printed."""
    item = owner_of(found.item)
    sites = [site for site in site_names(tuple(found.groups.values())) if site in item.sites]
    rows = []
    for entry, group in found.groups.items():
        numbers = {site: printed(item.parts[found.part], entry, item.sites[site]) for site in sites}
        if any(number is not None for number in numbers.values()):
            both = (f"{_accuracy(group.accuracy_at(site))} ({_number(number)})" for site, number in numbers.items())
            rows.append(tuple(map(Cell, (entry, *both))))
    return Table((Column("entry", number=False), *map(Column, sites)), tuple(rows)) if rows else None


def _accuracy(stat: Stat | None) -> str:
    return percent_stat(stat) if stat else NONE


def _number(printed: float | None) -> str:
    return NONE if printed is None else f"{printed:.1f}"


def reduction(found: Found) -> str:
    """In words what is less than in the paper."""
    words = reduced(owner_of(found.item), found.part, found.scale)
    return f"Scale {found.scale}, reduced: {words}." if words else f"Scale {found.scale}: full length."
