"""The tables of a report: cells and columns, how a table is written, and those of accuracy, data and presence.

A table is written for the page, a spreadsheet, a paper or a README; names of sites and methods are escaped in every
format. The tables of cost are in `cost`.
"""

import csv
import io
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from fedlgd.core.intervals import wilson
from fedlgd.core.text import counted, plural, scaled
from fedlgd.report.groups import Group, Stat, site_names, summarise
from fedlgd.rundir.manifest import DataInfo
from fedlgd.rundir.read import Run
from fedlgd.rundir.records import RoundRecord

NONE = "–"
FLOPS = {f"{prefix}FLOP": 1000.0**power for power, prefix in enumerate(("", "k", "M", "G", "T", "P", "E"))}
_LATEX = {letter: f"\\{letter}" for letter in "&%$#_{}"}
_LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_LATEX |= {"±": r"$\pm$", "−": "$-$", "–": "--", "†": r"$\dagger$", "∗": "$^{*}$"}
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of the page, and the kind of fact that it states, for programs."""

    kind: str
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Cell:
    """The text, its number (if any), whether it is the best of its column, and its standard deviation."""

    text: str
    value: float | None = None
    best: bool = False
    std: float | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """A heading. Numbers are aligned to the right, words to the left. Shares are shown in percent."""

    name: str
    number: bool = True
    percent: bool = False


METHOD = Column("method", number=False)
Row = tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under columns; every row has one cell for each column. Notes stand below the rows.

    line: the number of rows above a line; 0: no line.
    """

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    line: int = 0

    def pick(self, columns: Sequence[int]) -> "Table":
        """These columns in this order."""
        rows = tuple(tuple(row[at] for at in columns) for row in self.rows)
        return Table(tuple(self.columns[at] for at in columns), rows, self.notes)


def percent(share: float) -> str:
    """0.9123 -> "91.2"."""
    return f"{100 * share:.1f}"


def percent_stat(stat: Stat | None) -> str:
    """A mean with its standard deviation over seeds, in percent; a dash if it is not known."""
    return f"{percent(stat.mean)}{'' if stat.std is None else f' ± {percent(stat.std)}'}" if stat else NONE


def share_cell(stat: Stat | None) -> Cell:
    return Cell(percent_stat(stat), stat.mean if stat else None, std=stat.std if stat else None)


def percentage_points(difference: float) -> str:
    """A signed difference of two shares in percentage points; zero has no sign."""
    written = f"{100 * difference:+.1f}".replace("-", "−")
    return "0.0" if written in {"+0.0", "−0.0"} else written


def operations(value: float) -> str:
    return scaled(value, FLOPS)


def table_formats(table: Table) -> dict[str, str]:
    """The table in each format that the page offers for copying."""
    return {"CSV": as_csv(table), "LaTeX": as_latex(table), "Markdown": as_markdown(table)}


def as_csv(table: Table) -> str:
    """Numbers as numbers, shares in percent; a standard deviation has its own column."""
    with_std = [any(row[at].std is not None for row in table.rows) for at in range(len(table.columns))]
    writer = csv.writer(out := io.StringIO(), lineterminator="\n")
    names = zip((column.name for column in table.columns), with_std, strict=True)
    writer.writerow(_no_formula(each) for name, std in names for each in (name, f"{name} std")[: 1 + std])
    for row in table.rows:
        cells = zip(row, table.columns, with_std, strict=True)
        writer.writerow(value for cell, column, std in cells for value in _csv_values(cell, column, std))
    return out.getvalue()


def _csv_values(cell: Cell, column: Column, with_std: bool) -> Iterator[str]:
    def number(value: float | None) -> str:
        return "" if value is None else f"{100 * value:.4f}" if column.percent else f"{value:g}"

    yield number(cell.value) if column.number else _no_formula(cell.text)
    if with_std:
        yield number(cell.std)


def _no_formula(text: str) -> str:
    """A name that a spreadsheet would evaluate as a formula gets a leading quote."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def as_latex(table: Table) -> str:
    """A `tabular` for the package booktabs; the best of a column is bold. Notes are a paragraph below it."""
    sides = "".join("r" if column.number else "l" for column in table.columns)
    heading = [_latex(column.name) for column in table.columns]
    rows = ([_latex(c.text, c.best) for c in row] for row in table.rows)
    top, *lines = (f"{' & '.join(cells)} \\\\" for cells in (heading, *rows))
    begin, end = (f"\\begin{{tabular}}{{{sides}}}", r"\toprule"), (r"\bottomrule", r"\end{tabular}")
    notes = (f"\n{_latex(note)}" for note in table.notes)
    return "\n".join((*begin, top, r"\midrule", *lines, *end, *notes, ""))


def _latex(text: str, bold: bool = False) -> str:
    escaped = "".join(_LATEX.get(letter, letter) for letter in " ".join(text.split()))
    return f"\\textbf{{{escaped}}}" if bold else escaped


def as_markdown(table: Table) -> str:
    heading = [_markdown(column.name) for column in table.columns]
    sides = ["---:" if column.number else "---" for column in table.columns]
    rows = ([f"**{_markdown(c.text)}**" if c.best else _markdown(c.text) for c in row] for row in table.rows)
    lines = (f"| {' | '.join(line)} |\n" for line in (heading, sides, *rows))
    return "".join((*lines, *(f"\n{_markdown(note)}\n" for note in table.notes)))


def _markdown(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|#&~])", r"\\\1", " ".join(text.split()))


MISSING_CLASS_MARK = "†"
TWO_CLASS_NOTE = "The balanced accuracy there is the accuracy on the other class alone, and there is no AUC."
MANY_CLASS_NOTE = "The accuracy there says nothing about these classes."
MEAN_NOTE = "The mean over sites counts such a site like any other."
MAX_SITES_IN_NOTE = 5  # sites that a note lists

Missing = Mapping[str, tuple[str, ...]]
"""Names of classes by site."""


def accuracy_table(groups: Sequence[Group]) -> Table:
    """Methods by sites, with the mean over sites and the spread between the best and the worst site."""
    sites = site_names(groups)
    lead = (METHOD, Column("seeds"), Column("rounds"))
    scores = range(len(lead), len(lead) + len(sites) + 1)
    rows = [_accuracy_row(group, sites) for group in groups]
    competing = [at for at, group in enumerate(groups) if group.competes]
    if len(groups) > 1:
        for at, row in zip(competing, mark_best([rows[at] for at in competing], scores), strict=True):
            rows[at] = row
    missing = missing_classes(groups)
    names = (*(marked(site, missing) for site in sites), "mean", "spread")
    columns = (*lead, *(Column(name, percent=True) for name in names))
    return Table(columns, tuple(rows), (*missing_notes(groups), *unscored_notes(groups)))


def _accuracy_row(group: Group, sites: Sequence[str]) -> Row:
    at_sites = [group.accuracy_at(site) for site in sites]
    means = [stat.mean for stat in at_sites if stat]
    spread = max(means) - min(means) if means else None
    least = min(group.counted, key=lambda run: run.done)
    rounds = str(least.done) if group.finished else f"{least.done} of {least.planned}"
    return (
        Cell(group.label),
        _count(len(group.counted)),
        Cell(rounds, least.done),
        *map(share_cell, at_sites),
        share_cell(group.accuracy),
        Cell(NONE) if spread is None else Cell(percent(spread), spread),
    )


def mark_best(rows: Sequence[Row], columns: Collection[int]) -> tuple[Row, ...]:
    """Marks the highest share of each of these columns; shares that are equal as shown are all marked."""
    marked = [_mark(cells) if at in columns else cells for at, cells in enumerate(zip(*rows, strict=True))]
    return tuple(zip(*marked, strict=True))


def _mark(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    known = [cell.value for cell in cells if cell.value is not None]
    best = percent(max(known, default=0.0))
    return tuple(replace(c, best=c.value is not None and percent(c.value) == best) for c in cells)


def without_sites(table: Table, most: int) -> Table:
    """An accuracy table without its site columns if there are more than `most` sites."""
    kept = (0, 1, 2, -2, -1)
    return table if len(table.columns) - len(kept) <= most else table.pick(kept)


def mean_first(table: Table) -> Table:
    """An accuracy table for a page: the mean beside the method, seeds and rounds at the end."""
    *sites, mean, spread = range(3, len(table.columns))
    return table.pick((0, mean, *sites, spread, 1, 2))


def binary_table(groups: Sequence[Group]) -> Table | None:
    """A row for each method at each site if all data has two classes: few test images need more than accuracy."""
    if any(len(run.manifest.data.classes) != 2 for group in groups for run in group.runs):
        return None
    pairs, missing = ((group, site) for group in groups for site in site_names(groups)), missing_classes(groups)
    rows = tuple(_binary_row(group, site, missing) for group, site in pairs if group.scores_at(site))
    lead = (METHOD, Column("site", number=False), Column("test images"), Column("accuracy", percent=True))
    shares = (Column(name, percent=True) for name in ("balanced accuracy", "AUC"))
    columns = (*lead, Column("95 % interval", number=False), *shares)
    return Table(columns, rows, missing_notes(groups)) if rows else None


def _binary_row(group: Group, site: str, missing: Missing) -> Row:
    """The interval is at the mean over seeds: they share their test images, so more seeds do not narrow it."""
    scores, accuracy = group.scores_at(site), group.accuracy_at(site)
    size = min(sum(score.total) for score in scores)
    interval = wilson(accuracy.mean, size) if accuracy and size else None
    balanced = _stat_if_complete(score.balanced if any(score.total) else None for score in scores)
    auc, mark = _stat_if_complete(score.auc for score in scores), MISSING_CLASS_MARK if site in missing else ""
    return (
        Cell(group.label),
        Cell(marked(site, missing)),
        _count(size),
        share_cell(accuracy),
        Cell(" to ".join(map(percent, interval))) if interval else Cell(NONE),
        *(replace(cell, text=cell.text + mark) for cell in map(share_cell, (balanced, auc))),
    )


def _stat_if_complete(values: Iterable[float | None]) -> Stat | None:
    seen = list(values)
    known = [value for value in seen if value is not None]
    return summarise(known) if len(known) == len(seen) else None


def missing_classes(groups: Sequence[Group]) -> Missing:
    """The classes of which a site has no test image, by the counts of its last evaluation."""
    found: dict[str, tuple[str, ...]] = {}
    for run in (run for group in groups for run in group.counted):
        names = run.manifest.data.classes
        for site, score in run.final.scores.items() if run.final else ():
            if len(score.total) == len(names) and any(score.total) and not all(score.total):
                found[site] = tuple(name for name, count in zip(names, score.total, strict=True) if not count)
    return found


def marked(site: str, missing: Missing) -> str:
    """The site's name, with a mark if a note below the table is about it."""
    return site + MISSING_CLASS_MARK if site in missing else site


def missing_notes(groups: Sequence[Group]) -> tuple[str, ...]:
    """Which site lacks which classes, and what that does to its numbers; nothing if none lacks any."""
    missing = missing_classes(groups)
    if not missing:
        return ()
    some = list(missing.items())[:MAX_SITES_IN_NOTE]
    listed = [f"{site} of {counted(len(gone), 'class')} {', '.join(map(repr, gone))}" for site, gone in some]
    if len(missing) > MAX_SITES_IN_NOTE:
        listed.append(f"and {plural(len(missing) - MAX_SITES_IN_NOTE, 'more site')}")
    effect = TWO_CLASS_NOTE if len(groups[0].runs[0].manifest.data.classes) == 2 else MANY_CLASS_NOTE
    return (f"{MISSING_CLASS_MARK} No test images: {'; '.join(listed)}. {effect} {MEAN_NOTE}",)


def data_table(data: DataInfo) -> Table:
    """The sites, their numbers of training and test images if known, and the origin of these images."""
    columns = (Column("site", number=False), Column("train"), Column("test"), Column("note", number=False))
    rows = ((Cell(site.name), _count(site.train), _count(site.test), Cell(site.note)) for site in data.sites)
    return Table(columns, tuple(rows))


def _count(number: int) -> Cell:
    """A dash for none."""
    return Cell(str(number), number) if number else Cell(NONE)


MAX_ROUNDS_SHOWN = 60  # rounds shown one by one
VALID, MISSED, JOINED, IDLE = "■", "□", "+", "·"
PRESENCE_LEGEND = f"{VALID} valid update, {MISSED} none, {JOINED} enrolled late or again, {IDLE} not sampled"


def presence_tables(groups: Sequence[Group]) -> Iterator[tuple[str, int, Table]]:
    """Label, seed and table of every run in which a site was absent or refused, or enrolled late or again."""
    for run in (run for group in groups for run in group.runs):
        if not any(record.refused or record.unscored or record.joined for record in run.records):
            continue
        hidden = max(0, run.done - MAX_ROUNDS_SHOWN)
        head = f"rounds {hidden + 1} to {run.done}" if hidden else "rounds"
        names = ("site", "valid updates", head, "without an update or a score")
        rounds = [record for record in run.records if record.round >= 0]
        rows = []
        for site in (site.name for site in run.manifest.data.sites):
            sampled = [record for record in rounds if site in record.sampled]
            valid = sum(site not in record.refused for record in sampled)
            marks = "".join(_presence_mark(record, site) for record in rounds[-MAX_ROUNDS_SHOWN:])
            texts = (site, f"{valid} of {len(sampled)}", marks, "; ".join(_reasons(run, site)))
            rows.append(tuple(map(Cell, texts)))
        columns = tuple(Column(name, number=False) for name in names)
        yield run.label, run.seed, Table(columns, tuple(rows), (PRESENCE_LEGEND,))


def _presence_mark(record: RoundRecord, site: str) -> str:
    if site not in record.sampled:
        return IDLE
    if site in record.refused:
        return MISSED
    return JOINED if site in record.joined else VALID


def _reasons(run: Run, site: str) -> Iterator[str]:
    """rounds 3 to 5: it is not connected; round 9 (score): it sent no score"""
    for kind, word in (("refused", ""), ("unscored", " (score)")):
        found = [(r.round, getattr(r, kind)[site]) for r in run.records if site in getattr(r, kind)]
        for (reason, _), same in groupby(enumerate(found), lambda each: (each[1][1], each[1][0] - each[0])):
            numbers = [t for _, (t, _) in same]
            yield f"{_span(numbers[0], numbers[-1])}{word}: {reason}"


def _span(first: int, last: int) -> str:
    if last < 0:
        return "enrolment"
    start = "enrolment" if first < 0 else str(first + 1)
    return f"round {last + 1}" if first == last else f"rounds {start} to {last + 1}"


def unscored_notes(groups: Sequence[Group]) -> tuple[str, ...]:
    """Runs whose last evaluation lacks sites: their mean is over fewer sites."""
    finals = [(run, run.final) for group in groups for run in group.counted]
    return tuple(
        f"{run.label}, seed {run.seed}: no score from {', '.join(final.unscored)} in round {final.round + 1}; "
        "the mean is over the other sites."
        for run, final in finals
        if final and final.unscored
    )
