"""Our numbers beside those of the paper, and the verdicts, as tables."""

from collections.abc import Sequence

from fedlgd.paper.items import find, printed, reduced
from fedlgd.paper.stored import Found
from fedlgd.paper.verdicts import Verdict
from fedlgd.report.formats import NONE, Cell, Column, Table, percent_stat, percentage_points
from fedlgd.report.groups import Stat, site_names
from fedlgd.report.summary import Difference, difference

RIVALS = ("fedavg", "fedavg:local.steps=2", "fedavg:local.steps=7", "fedavg:local.steps=19", "fedlgd")


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
    part = find(found.item.runs_of or found.item.name).parts[found.part]
    rivals = [entry for entry in found.groups if entry in (against or RIVALS)]
    heads = ("entry", "seeds", "ours (%)", "the paper (%)", *(f"minus {entry}" for entry in rivals))
    rows = []
    for entry, group in found.groups.items():
        gaps = (difference(group, found.groups[rival]) if rival != entry else None for rival in rivals)
        numbers = _accuracy(group.accuracy), _number(printed(part, entry))
        rows.append(tuple(map(Cell, (entry, str(len(group.counted)), *numbers, *map(_gap_text, gaps)))))
    return Table((Column("entry", number=False), *map(Column, heads[1:])), tuple(rows))


def site_table(found: Found) -> Table | None:
    """Accuracy at every site of the paper, with the printed number in parentheses; None if none is printed."""
    item = find(found.item.runs_of or found.item.name)
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


def _gap_text(gap: Difference | None) -> str:
    return f"{percentage_points(gap.mean)}{gap.range}" if gap else NONE


def reduction(found: Found) -> str:
    """In words what is less than in the paper."""
    words = reduced(find(found.item.runs_of or found.item.name), found.part, found.scale)
    return f"Scale {found.scale}, reduced: {words}." if words else f"Scale {found.scale}: full length."
