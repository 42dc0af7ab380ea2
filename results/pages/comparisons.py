"""The page of each stored comparison, and its rows on the pages of methods."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from fedlgd.core.text import plural
from fedlgd.report.accuracy import accuracy_table
from fedlgd.report.cost import cost_table
from fedlgd.report.groups import Group, Stat, group_runs, site_names
from fedlgd.report.summary import caveats, difference, unequal_cost
from fedlgd.report.tables import Cell, Column, Table, percent_stat
from fedlgd.rundir.read import read_runs
from results import RECORDS
from results.pages.figures import Interval, dots
from results.pages.settings import classes_of

TITLES = {
    "accuracy-100": "Accuracy: four sites, 100 rounds, a small network",
    "accuracy-count": "Accuracy: 1 and 50 images per class",
    "accuracy-five": "Accuracy: five sites, 60 rounds",
    "accuracy-four": "Accuracy: four sites, 30 rounds",
    "accuracy-long": "Accuracy: four sites, 40 rounds",
    "accuracy-longer": "Accuracy: four sites, 60 rounds",
    "strong-builtin": "The preset `strong` on built-in digits",
    "strong-longer": "The preset `strong` on four digit sites, 60 rounds",
    "strong-digits": "The preset `strong` on four digit sites",
    "strong-fifty": "The preset `strong` with 50 images per class",
    "parts-builtin": "What parts are worth: built-in digits",
    "parts-cifar10c": "What parts are worth: CIFAR10C",
    "parts-retina": "What parts are worth: two clinics",
    "parts-split": "What parts are worth: CIFAR-10 with label shift",
    "demo": "The demo",
    "speed-accuracy": "Accuracy of the faster procedure: 30 rounds",
    "speed-trade": "What the faster options cost: 10 rounds",
    "speed-seeds": "Accuracy of the faster procedure: 10 rounds, more seeds",
}
"""Of stored comparisons. One without a title has its name."""
PAGE = """# {title}

{answer}

![Accuracy of each method at each site](../images/sites-{name}.svg)

Accuracy (%) after the last round, mean over seeds ± standard deviation. `mean` is the unweighted mean over
sites, `spread` the best site minus the worst.

{table}

## How it was measured

    {command}

The settings of each run are in its `config.toml` in `results/records/{name}`. The current defaults and presets
can differ. Terms: [glossary](../glossary.md).

## Cautions

{caveats}
- Bold marks the best method of a column, if it is better than all others by more than the noise, and better
  than answering the largest class always. The noise is the 95 % interval over seeds, or, with fewer than three
  seeds, over test images.
- Methods with one model per site, and pooled training, are never marked.

## Details

### Cost

Total of all sites, mean over seeds. Setup is the first distillation.

{cost}
"""
PAPER = "paper/full/table-digits/C10"  # the stored comparison of all methods
REACH = "reach"  # stored runs that are shown in speed.md, not in a page of their own
FAMILY = ("family-digits", "family-cifar10c")  # stored comparisons of all methods; all `family-*` are in family.md


def stored() -> list[Path]:
    """The stored comparisons; those of the paper have pages of their own."""
    return sorted(
        folder
        for folder in RECORDS.glob("*")
        if folder.is_dir() and folder.name != REACH and not folder.name.startswith(("family-", "paper"))
    )


@cache
def groups_of(folder: Path) -> tuple[Group, ...]:
    runs = sorted({file.parent for file in folder.rglob("manifest.json")})
    return group_runs(read_runs(runs)[0])


def title_of(folder: Path) -> str:
    return TITLES.get(folder.name, folder.name)


def page(folder: Path) -> str:
    """The tables of one stored comparison and the command that reproduces them."""
    groups = groups_of(folder)
    run = groups[0].runs[0]
    said = [each for each in caveats(groups) if each.kind != "cost"]
    data = f"The data are [`{run.manifest.data.name}`](../data.md): {run.manifest.data.note}."
    notes = [*map(str, said), data]
    if len(groups) > 1 and len(said) < len(caveats(groups)):
        notes.append("The methods do not cost the same: see the details.")
    return PAGE.format(
        title=title_of(folder),
        name=folder.name,
        answer=answer(groups),
        table=markdown(accuracy_table(groups)),
        command=run.manifest.command.replace("python -m bench.", "python -m results."),  # where the script was then
        caveats="\n".join(f"- {note}" for note in notes),
        cost=markdown(cost_table(groups)),
    )


def answer(groups: Sequence[Group]) -> str:
    """The best method, and by how much it is above the next."""
    first, *others = sorted(groups, key=lambda group: -group.mean)
    sites, seeds = (
        plural(len(each), noun)
        for each, noun in ((first.runs[0].manifest.data.sites, "site"), (first.counted, "seed"))
    )
    label = first.label[0].upper() + first.label[1:]
    text = f"{label} reaches {percent_stat(first.accuracy)} %, the mean over {sites} and {seeds}."
    if not others:
        return text
    text += f" Next is {others[0].label} with {percent_stat(others[0].accuracy)} %"
    gap = difference(first, others[0])
    if gap is None or gap.interval is None:
        return f"{text}; there are too few seeds for an interval of the difference."
    low, high = (f"{100 * end:.1f}" for end in gap.interval)
    noise = "more than" if gap.interval[0] > 0 else "within"
    points = f"{100 * gap.mean:.1f} points (95 % interval {low} to {high})"
    return f"{text}. The difference, {points}, is {noise} the noise."


def figures() -> dict[str, str]:
    """SVG texts by file name: the accuracy of each method at each site, with one standard deviation."""
    return {f"sites-{folder.name}.svg": drawn(groups_of(folder), folder.name) for folder in stored()}


def drawn(groups: Sequence[Group], name: str) -> str:
    rows = {
        site: {group.label: ends_of(stat) for group in groups if (stat := group.accuracy_at(site))}
        for site in site_names(groups)
    }
    rows["mean over sites"] = {group.label: ends_of(group.accuracy) for group in groups if group.accuracy}
    return dots(rows, "accuracy, %", f"sites-{name}")


def ends_of(stat: Stat) -> Interval:
    """Mean ± one standard deviation, in percent."""
    half = stat.std or 0.0
    return 100 * (stat.mean - half), 100 * stat.mean, 100 * (stat.mean + half)


def markdown(table: Table) -> str:
    heads = [column.name for column in table.columns]
    rule = ["--:" if column.number else ":--" for column in table.columns]
    rows = [[f"**{cell.text}**" if cell.best else cell.text for cell in row] for row in table.rows]
    lines = ["| " + " | ".join(line) + " |" for line in (heads, rule, *rows)]
    return "\n".join((*lines, *(f"\n{note}" for note in table.notes)))


def own_results(name: str) -> str:
    """The rows of a method in all stored comparisons, but those of ways to compute one method."""
    folders = (folder for folder in stored() if not folder.name.startswith("speed-"))
    pages = {folder: f"[{title_of(folder)}](../results/{folder.name}.md)" for folder in folders}
    for family, where in zip(FAMILY, ("", ", CIFAR10C"), strict=True):
        pages[RECORDS / family] = f"[Methods side by side{where}](../results/family.md)"
    pages[RECORDS / PAPER] = "[Table DIGITS of the paper](../results/paper/table-digits.md)"
    names = {cls.name for cls in classes_of(name)}
    rows = [
        (Cell(link), Cell(group.label), Cell(str(len(group.counted))), Cell(percent_stat(group.accuracy)))
        for folder, link in pages.items()
        if folder.exists()
        for group in groups_of(folder)
        if group.runs[0].manifest.method.name.partition("+")[0] in names
    ]
    heads = (Column("comparison", number=False), Column("method", number=False), Column("seeds"))
    table = markdown(Table((*heads, Column("mean over sites, %")), tuple(rows)))
    return table if rows else "No stored runs."


def demo(name: str) -> str:
    """The table of `fedlgd demo`, from stored runs."""
    groups = groups_of(RECORDS / name)
    table, rounds = accuracy_table(groups), groups[0].runs[0].planned
    kept = [i for i, column in enumerate(table.columns) if column.name not in ("rounds", "spread")]
    rows = tuple(tuple(row[i] for i in kept) for row in table.rows)
    rule = f"Accuracy (%) after round {rounds}; the main result is the mean over sites."
    shown = markdown(Table(tuple(table.columns[i] for i in kept), rows))
    return "\n".join((shown, "", rule, *map(str, unequal_cost(groups))))
