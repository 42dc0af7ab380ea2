"""Accuracy by method and site: the table of a comparison, what is marked in it, and every point of its curves."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean

from fedlgd.core.errors import FedlgdError, did_you_mean
from fedlgd.report.classes import (
    LARGEST,
    LARGEST_NOTE,
    ONE_CLASS_MARK,
    largest_class,
    marked,
    missing_classes,
    missing_notes,
    one_class_everywhere,
    one_class_models,
    one_class_notes,
    shows_largest,
    unscored_notes,
)
from fedlgd.report.groups import Group, Stat, site_names
from fedlgd.report.summary import above_largest, by_seed, clearly_above, paired_difference
from fedlgd.report.tables import METHOD, NONE, Cell, Column, Row, Table, count_cell, percent, share_cell
from fedlgd.rundir.intervals import MIN_SEEDS

MARK = "∗"
LEAD = (METHOD, Column("seeds"), Column("rounds"))  # columns before the sites
BEST_RULE = (
    f"the best method where it is above {LARGEST} and above every other method, both outside the noise: the 95 % t "
    f"interval over seeds, or, with fewer than {MIN_SEEDS} seeds, the 95 % interval over test images"
)


def accuracy_table(groups: Sequence[Group]) -> Table:
    """Methods by sites, with the mean over sites and the spread between the best and the worst site.

    The last row is always the largest class, for a task with few or unequal classes.
    """
    sites, missing = site_names(groups), missing_classes(groups)
    columns = [[_accuracy_cell(group, site) for group in groups] for site in (*sites, "")]
    for cells, best in zip(columns, (best_of(groups, site) for site in (*sites, "")), strict=True):
        cells[:] = (replace(cell, best=group is best) for cell, group in zip(cells, groups, strict=True))
    rows = [(*lead_cells(group), *cells) for group, *cells in zip(groups, *columns, strict=True)]
    rows = [(*row, _spread([cell.value for cell in row[len(LEAD) : -1]])) for row in rows]
    notes = (*map(str, one_class_notes(groups)), *missing_notes(groups), *unscored_notes(groups))
    if shows_largest(groups):
        rows.append(_largest_row(groups))
        notes = (LARGEST_NOTE, *notes)
    names = (*(marked(site, missing) for site in sites), "mean", "spread")
    heads = (*LEAD, *(Column(name, percent=True) for name in names))
    return Table(heads, tuple(rows), notes, len(groups) if len(rows) > len(groups) else 0)


def lead_cells(group: Group) -> Row:
    """The method, its number of seeds, and its rounds."""
    least = min(group.counted, key=lambda run: run.done)
    rounds = str(least.done) if group.finished else f"{least.done} of {least.planned}"
    return Cell(group.label), count_cell(len(group.counted)), Cell(rounds, least.done)


def _accuracy_cell(group: Group, site: str) -> Cell:
    """At a site, or without one in the mean over sites; marked where the model predicts one class only."""
    cell = share_cell(group.accuracy_at(site) if site else group.accuracy)
    alone = site in one_class_models(group) if site else one_class_everywhere(group)
    return replace(cell, text=cell.text + ONE_CLASS_MARK) if alone else cell


def _largest_row(groups: Sequence[Group]) -> Row:
    shares = largest_class(groups)
    cells = [share_cell(Stat(shares[site]) if site in shares else None) for site in site_names(groups)]
    spread = _spread([cell.value for cell in cells])
    return Cell(LARGEST), Cell(NONE), Cell(NONE), *cells, share_cell(Stat(fmean(shares.values()))), spread


def _spread(shares: Sequence[float | None]) -> Cell:
    known = [share for share in shares if share is not None]
    return Cell(percent(max(known) - min(known)), max(known) - min(known)) if known else Cell(NONE)


def best_of(groups: Sequence[Group], site: str = "") -> Group | None:
    """The best of several methods at a site, or in the mean over sites, if `BEST_RULE` holds for one."""
    results = {group.label: by_seed(group, site).values() for group in groups if group.competes}
    competing = [group for group in groups if results.get(group.label)]
    if len(groups) < 2 or not competing:
        return None
    best = max(competing, key=lambda group: fmean(results[group.label]))
    others = (group for group in competing if group is not best)
    clear = above_largest(best, site) and all(clearly_above(best, other, site) for other in others)
    return best if clear else None


def without_sites(table: Table, most: int) -> Table:
    """An accuracy table without its site columns if there are more than `most` sites."""
    kept = (0, 1, 2, -2, -1)
    return table if len(table.columns) - len(kept) <= most else table.pick(kept)


def mean_first(table: Table) -> Table:
    """An accuracy table for a page: the mean beside the method, seeds and rounds at the end."""
    *sites, mean, spread = range(len(LEAD), len(table.columns))
    return table.pick((0, mean, *sites, spread, 1, 2))


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
    for at, site in enumerate((*site_names(groups), ""), len(LEAD)):
        ours = columns[at][: len(groups)]
        columns[at] = (*_mark_column(ours, groups, site, baseline), *columns[at][len(groups) :])
    rows: tuple[Row, ...] = tuple(zip(*columns, strict=True))
    return replace(table, rows=rows, notes=(*table.notes, _caption(groups, baseline)))


def _mark_column(cells: Sequence[Cell], groups: Sequence[Group], site: str, baseline: str) -> Iterator[Cell]:
    """A column of the table with marks. `site`: empty for the mean over sites."""
    competing = [group for group in groups if group.competes] or groups
    best = max(competing, key=lambda each: fmean(by_seed(each, site).values() or (-1.0,)))
    against = next((each for each in groups if each.label == baseline), best)
    for cell, group in zip(cells, groups, strict=True):
        found = paired_difference(by_seed(group, site), by_seed(against, site))
        clear = found is not None and found.clear and group is not against
        yield replace(cell, text=cell.text + MARK) if clear else cell


def _caption(groups: Sequence[Group], baseline: str) -> str:
    """What bold and marks mean."""
    bold = f"Bold: {BEST_RULE}."
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
