"""One self-contained page: our numbers beside the printed ones, and a verdict on every claim of the paper."""

from collections import Counter
from pathlib import Path
from typing import Any, get_args

from fedlgd.core.files import write_atomic
from fedlgd.paper.items import Item, Word, command_of, items
from fedlgd.paper.stored import Found, stored
from fedlgd.paper.tables import printed_table, reduction, site_table, verdict_table
from fedlgd.paper.verdicts import Verdict, verdicts
from fedlgd.report.figures import cost_figures, round_figures, similarity_figures
from fedlgd.report.page import TEMPLATES
from fedlgd.report.summary import caveats
from fedlgd.report.sweeps import find_sweeps, sweep_figures, sweep_tables


def write_paper(folder: Path, out: Path) -> Path:
    """Reads the runs of the paper in `folder` and writes the page to `out`."""
    write_atomic(out, render_paper(folder).encode())
    return out


def render_paper(folder: Path) -> str:
    """The page as text. The same runs give the same bytes."""
    found = list(verdicts(folder))
    sections = [_section(folder, item, [v for v in found if v.item == item.name]) for item in items().values()]
    return TEMPLATES.get_template("paper.html").render(score=score(found), sections=sections, folder=folder)


def score(found: list[Verdict]) -> str:
    """`14 claims: 3 confirmed, 2 not confirmed, 9 not decided`"""
    return f"{len(found)} claims: {tally(found)}"


def tally(found: list[Verdict]) -> str:
    """`3 confirmed, 9 not decided`"""
    count: Counter[str] = Counter(each.word for each in found)
    return ", ".join(f"{count[word]} {word}" for word in get_args(Word) if count[word])


def _section(folder: Path, item: Item, own: list[Verdict]) -> dict[str, Any]:
    return {
        "item": item,
        "tally": tally(own),
        "command": command_of(item),
        "verdicts": verdict_table(own) if own else None,
        "parts": [_part(found) for found in stored(folder, item)],
    }


def _part(found: Found) -> dict[str, Any]:
    groups = tuple(found.groups.values())
    sweeps = find_sweeps(groups)
    match found.item.figure:
        case "table" | "curves":
            figures = round_figures(groups)
        case "sweep":
            figures = tuple(sweep_figures(sweeps))
        case "cost":
            figures = cost_figures(groups)
        case "similarity":
            figures = tuple(drawing for section in similarity_figures(groups) for drawing in section.drawings)
        case _:
            figures = ()
    return {
        "name": found.label,
        "reduced": reduction(found),
        "table": printed_table(found),
        "sites": site_table(found),
        "sweeps": [*sweep_tables(sweeps)],
        "caveats": caveats(groups),
        "figures": figures,
    }
