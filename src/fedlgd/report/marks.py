"""Accuracy for a paper: significance marks in the table of a comparison, and every point of its curves."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from fedlgd.core.errors import FedlgdError, did_you_mean
from fedlgd.core.intervals import MIN_SEEDS
from fedlgd.report.groups import Group, site_names
from fedlgd.report.summary import paired_difference
from fedlgd.report.tables import METHOD, Cell, Column, Row, Table, accuracy_table, percent

MARK = "∗"
LEAD = 3  # columns before the sites


def marked_accuracy(groups: Sequence[Group], baseline: str = "") -> Table:
    """The accuracy table with a mark where a method differs from the best of the column, or from `baseline`.

    Marked: the 95 % t interval of the differences between runs with the same seed excludes 0.
    """
    table = accuracy_table(groups)
    if baseline and baseline not in (labels := [group.label for group in groups]):
        hint = did_you_mean(baseline, labels)
        raise FedlgdError("no-such-baseline", baseline=baseline, hint=hint, labels=labels)
    if len(groups) < 2:
        return table
    columns = [*zip(*table.rows, strict=True)]
    for at, site in enumerate((*site_names(groups), ""), LEAD):
        columns[at] = tuple(_mark_column(columns[at], groups, site, baseline))
    rows: tuple[Row, ...] = tuple(zip(*columns, strict=True))
    return replace(table, rows=rows, notes=(*table.notes, _caption(groups, baseline)))


def _mark_column(cells: Sequence[Cell], groups: Sequence[Group], site: str, baseline: str) -> Iterator[Cell]:
    """A column of the table with marks. `site`: empty for the mean over sites."""
    competing = [group for group in groups if group.competes] or groups
    best = max(competing, key=lambda each: fmean(_by_seed(each, site).values() or (-1.0,)))
    against = next((each for each in groups if each.label == baseline), best)
    for cell, group in zip(cells, groups, strict=True):
        found = paired_difference(_by_seed(group, site), _by_seed(against, site))
        clear = found is not None and found.clear and group is not against
        yield replace(cell, text=cell.text + MARK) if clear else cell


def _by_seed(group: Group, site: str) -> Mapping[int, float]:
    finals = {run.seed: run.final for run in group.counted}
    if not site:
        return {seed: final.accuracy for seed, final in finals.items() if final}
    return {seed: final.scores[site].accuracy for seed, final in finals.items() if final and site in final.scores}


def _caption(groups: Sequence[Group], baseline: str) -> str:
    """What bold and marks mean."""
    bold = "Bold: highest of its column."
    few = [group.label for group in groups if len({run.seed for run in group.counted}) < MIN_SEEDS]
    if len(groups) - len(few) < 2:
        return f"{bold} No difference is marked: too few seeds, at least {MIN_SEEDS} are needed."
    rival = baseline or "the highest"
    interval = "the 95 % t interval of the paired differences over seeds excludes 0"
    unmarked = f" Not marked, too few seeds: {', '.join(few)}." if few else ""
    return f"{bold} {MARK} differs from {rival}: {interval}; not corrected for several comparisons.{unmarked}"


def curve_table(groups: Sequence[Group]) -> Table | None:
    """A row for each evaluated round of each run at each site. Rounds are numbered from 1; 0 is the setup."""
    lead = (Column("round"), METHOD, Column("seed"), Column("site", number=False))
    rows = tuple(
        (
            Cell(str(record.round + 1), record.round + 1),
            Cell(group.label),
            Cell(str(run.seed), run.seed),
            Cell(site),
            Cell(percent(score.accuracy), score.accuracy),
            Cell(f"{score.loss:.4g}", score.loss),
        )
        for group in groups
        for run in group.runs
        for record in run.evaluated
        for site in site_names(groups)
        if (score := record.scores.get(site))
    )
    return Table((*lead, Column("accuracy", percent=True), Column("loss")), rows) if rows else None
