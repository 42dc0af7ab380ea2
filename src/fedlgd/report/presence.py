"""Which sites took part in which rounds, and why the others did not."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from fedlgd.core.records import RoundRecord
from fedlgd.report.formats import Cell, Column, Row, Table
from fedlgd.report.groups import Group
from fedlgd.report.run import Run

WIDEST = 60  # rounds shown one by one
VALID, NONE, JOINED, IDLE = "■", "□", "+", "·"
LEGEND = f"{VALID} valid update, {NONE} none, {JOINED} enrolled late or again, {IDLE} not sampled"


def presence_tables(groups: Sequence[Group]) -> tuple[tuple[str, int, Table], ...]:
    """Label, seed and table of every run in which a site was absent or refused, or enrolled late or again."""
    runs = [run for group in groups for run in group.runs]
    return tuple((run.label, run.seed, _table(run)) for run in runs if _eventful(run))


def unscored_notes(groups: Sequence[Group]) -> tuple[str, ...]:
    """Runs whose last evaluation lacks sites: their mean is over fewer sites."""
    finals = [(run, run.final) for group in groups for run in group.counted]
    return tuple(
        f"{run.label}, seed {run.seed}: no score from {', '.join(final.unscored)} in round {final.round + 1}; "
        "the mean is over the other sites."
        for run, final in finals
        if final and final.unscored
    )


def _eventful(run: Run) -> bool:
    return any(record.refused or record.unscored or record.joined for record in run.records)


def _table(run: Run) -> Table:
    names = [site.name for site in run.manifest.data.sites]
    left = max(0, run.done - WIDEST)
    head = f"rounds {left + 1} to {run.done}" if left else "rounds"
    columns = ("valid updates", head, "without an update or a score")
    words = [Column(name, number=False) for name in columns]
    return Table((Column("site", number=False), *words), tuple(_row(run, name) for name in names), (LEGEND,))


def _row(run: Run, site: str) -> Row:
    rounds = [record for record in run.records if record.round >= 0]
    asked = sum(site in record.sampled for record in rounds)
    valid = sum(site in record.sampled and site not in record.refused for record in rounds)
    marks = "".join(_mark(record, site) for record in rounds[-WIDEST:])
    return Cell(site), Cell(f"{valid} of {asked}"), Cell(marks), Cell("; ".join(_reasons(run, site)))


def _mark(record: RoundRecord, site: str) -> str:
    if site not in record.sampled:
        return IDLE
    if site in record.refused:
        return NONE
    return JOINED if site in record.joined else VALID


def _reasons(run: Run, site: str) -> Iterator[str]:
    """rounds 3 to 5: it is not connected; round 9 (score): it sent no score"""
    for kind, word in (("refused", ""), ("unscored", " (score)")):
        found = [(r.round, getattr(r, kind)[site]) for r in run.records if site in getattr(r, kind)]
        for (reason, _), same in groupby(enumerate(found), lambda each: (each[1][1], each[1][0] - each[0])):
            numbers = [t for _, (t, _) in same]
            yield f"{_named(numbers[0], numbers[-1])}{word}: {reason}"


def _named(first: int, last: int) -> str:
    if last < 0:
        return "enrolment"
    start = "enrolment" if first < 0 else str(first + 1)
    return f"round {last + 1}" if first == last else f"rounds {start} to {last + 1}"
