"""Two classes and few test images: balanced accuracy, area under the ROC curve, and how sure the accuracy is."""

from collections.abc import Sequence
from math import sqrt

from fedlgd.report.format import NONE, percent
from fedlgd.report.groups import Group, Stat, site_names, summarise
from fedlgd.report.run import Score
from fedlgd.report.tables import Cell, Column, Row, Table, count, share

Z = 1.959964  # 95 % of a normal distribution lie within so many standard deviations


def wilson(share: float, size: int) -> tuple[float, float]:
    """Wilson's interval:  (p + z^2/2n  -+  z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)."""
    square = Z * Z / size
    half = Z * sqrt(share * (1 - share) / size + square / (4 * size))
    return (share + square / 2 - half) / (1 + square), (share + square / 2 + half) / (1 + square)


def balanced(score: Score) -> float | None:
    """The mean over classes of the share that is right; classes without a test image do not count."""
    shares = [right / all_ for right, all_ in zip(score.correct, score.total, strict=False) if all_]
    return sum(shares) / len(shares) if shares else None


def binary_table(groups: Sequence[Group]) -> Table | None:
    """A row for each method at each site, when all data has two classes."""
    if any(len(run.manifest.data.classes) != 2 for group in groups for run in group.runs):
        return None
    rows = [
        _row(group, site, scores) for group in groups for site in site_names(groups) if (scores := _at(group, site))
    ]
    words = (Column("method", number=False), Column("site", number=False), Column("test images"))
    names = ("accuracy", "95 % interval", "balanced accuracy", "AUC")
    return Table((*words, *(Column(name, percent=True) for name in names)), tuple(rows)) if rows else None


def _at(group: Group, site: str) -> list[Score]:
    return [final.scores[site] for final in group.finals if site in final.scores]


def _row(group: Group, site: str, scores: Sequence[Score]) -> Row:
    accuracy = summarise(score.accuracy for score in scores)
    size = min(sum(score.total) for score in scores)
    return (
        Cell(group.label),
        Cell(site),
        count(size) if size else Cell(NONE),
        share(accuracy),
        _interval(accuracy, size),
        share(_known(map(balanced, scores))),
        share(_known(score.auc for score in scores)),
    )


def _known(values) -> Stat | None:  # type: ignore[no-untyped-def]
    seen = list(values)
    return None if None in seen else summarise(seen)


def _interval(accuracy: Stat | None, size: int) -> Cell:
    """At the mean over seeds: they share their test images, so more seeds do not make it narrower."""
    if accuracy is None or not size:
        return Cell(NONE)
    low, high = wilson(accuracy.mean, size)
    return Cell(f"{percent(low)} to {percent(high)}", low)
