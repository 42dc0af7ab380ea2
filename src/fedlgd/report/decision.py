"""Should a site join? The first section of a report with runs of sites alone: gains by site, cost and leaks.

What is computed, and the sentences on sites and cost, are in `rundir.decision`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from fedlgd.core.text import percentage_points
from fedlgd.report.attacks import verdict
from fedlgd.report.cost import clock, total
from fedlgd.report.groups import Group
from fedlgd.report.privacy import promise_sentence
from fedlgd.report.tables import NONE, Cell, Column, Row, Sentence, Table, percent, table_formats
from fedlgd.rundir.decision import POOLED, Decision, Gain, MethodRuns, decide
from fedlgd.rundir.intervals import MIN_SEEDS

READING = (
    "Number of test images, and accuracy (%) on them, mean over seeds; a model that always answers the largest "
    "class reaches its share. The gain is {joined} minus alone, in points. Its 95 % interval covers the choice of "
    "test images{seeds}; it does not use that both models see the same images, and is therefore wide."
)
UPPER_BOUND = (
    "pooled: all images in one place, not possible in reality; an upper bound if it takes as many steps per image, "
    "as it does in a comparison without --methods."
)


def decision_of(groups: Sequence[Group]) -> Decision | None:
    """The decision by the finished runs of these groups, if sites trained alone in some of them."""
    done = [group for group in groups if group.finished]
    time = clock(done)
    arms = [
        MethodRuns(
            label=group.label,
            method=group.runs[0].manifest.method.name,
            competes=group.competes,
            scores={run.seed: run.final.scores for run in group.counted if run.final},
            bytes=total(group, "bytes"),
            seconds=total(group, time.kind),
        )
        for group in done
    ]
    return decide(arms, time.name)


def decision_table(decision: Decision) -> Table:
    """A row for each site: alone, joined, the gain with its interval, and the accuracy of the other methods."""
    others = [{gain.site: gain.joined for gain in gains} for gains in decision.others.values()]

    def row(gain: Gain) -> Row:
        shares = (Cell(percent(each), each) for each in (gain.largest, gain.alone, gain.joined))
        points = Cell(percentage_points(gain.mean), gain.mean)
        rest = (
            Cell(percent(each[gain.site]), each[gain.site]) if gain.site in each else Cell(NONE) for each in others
        )
        return (Cell(gain.site), Cell(str(gain.images), gain.images), *shares, points, Cell(gain.range), *rest)

    short = (POOLED if _is_pooled(label) else label.removesuffix(" data") for label in decision.others)
    names = ("largest class", "alone", decision.joined.label, "gain", *short)
    columns = [Column("site", number=False), Column("test"), *(Column(name, percent=True) for name in names)]
    columns.insert(columns.index(Column("gain", percent=True)) + 1, Column("95 % interval", number=False))
    enough = " and the variation over seeds" if decision.seeds >= MIN_SEEDS else ""
    notes = [READING.format(joined=decision.joined.label, seeds=enough)]
    notes += [UPPER_BOUND] if any(map(_is_pooled, decision.others)) else []
    return Table(tuple(columns), tuple(map(row, decision.gains)), tuple(notes))


def _is_pooled(label: str) -> bool:
    return label.lower().startswith(POOLED)


def leak_sentences(groups: Sequence[Group], decision: Decision) -> Iterator[Sentence]:
    """What is promised about the images of the runs that join, and what audits of them found."""
    runs = [run for group in groups for run in group.counted if group.label == decision.joined.label]
    if promised := promise_sentence(runs[0]):
        yield promised
    audits = [(run.seed, audit) for run in runs for audit in run.audits.values()]
    for seed, audit in audits:
        found = verdict(audit)
        yield Sentence(found.kind, f"Audit of site {audit.site}, seed {seed}: {found}")
    if not audits:
        text = "Whether an image can be recognised from what leaves a site was not tested; to test it: fedlgd audit"
        yield Sentence("not-audited", f"{text} {runs[0].path}")


def decision_section(groups: Sequence[Group]) -> dict[str, Any] | None:
    """The decision as it stands in the page, and in the terminal; None without runs of sites alone."""
    if (decision := decision_of(groups)) is None:
        return None
    table = decision_table(decision)
    told = [Sentence(kind, text) for kind, text in decision.sentences()]
    told += leak_sentences(groups, decision)
    return {
        "title": decision.title,
        "table": table,
        "copies": table_formats(table),
        "sentences": told,
        "plain": {**decision.plain(), "sentences": [asdict(each) for each in told]},
    }
