"""What gradient inversion found, whether virtual images copy training images, and the price of epsilon."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from fedlgd.core.text import plural
from fedlgd.report.figures import ACCURACY, Drawing
from fedlgd.report.formats import NONE, Cell, Column, Row, Table, percent
from fedlgd.report.grids import PageImage, picture_of
from fedlgd.report.groups import Group, SeedCurve, summarise
from fedlgd.report.plots import line_plot
from fedlgd.report.privacy.section import labels_of
from fedlgd.rundir.manifest import Promise
from fedlgd.rundir.read import Run
from fedlgd.rundir.results import Attacked, Inversion, Memorised
from fedlgd.rundir.sweep import with_note, without_note

SAFER = "↑ higher = safer"
LESS = "↓ lower = safer"
ROWS = ("original", "reconstruction", "nearest training image", "nearest held-out image")
ALONG = "1 / epsilon; 0: no noise"
BUDGETS = ("distil.private.", "dp.")
READING = (
    "Identified: the true image is the nearest of up to 100 images of its class at the site, in percent, with a "
    "95 % interval. For updates on virtual images the true image is a virtual one: to identify it is harmless "
    "unless it copies a training image.",
    "Distances to the nearest image ignore contrast and brightness, which networks with instance norm do not see. "
    "The last columns say how often a reconstruction is nearer to a training image than to every held-out image, "
    "and how often it would be by chance.",
    "An attack that fails is no proof: a longer one, or one that knows more, may succeed.",
)


@dataclass(frozen=True, slots=True, eq=False)
class Inverted:
    """The attacks on one run. `hidden`: why pictures are not shown; empty if they are."""

    heading: str
    headline: str
    table: Table
    pictures: tuple[PageImage, ...]
    memory: Table | None
    closest: tuple[PageImage, ...]
    hidden: str


def inversions(groups: Sequence[Group]) -> tuple[Inverted, ...]:
    return tuple(each for group in groups for run in group.runs for each in _all_of(run))


def _all_of(run: Run) -> Iterator[Inverted]:
    known = {name: found for name, found in run.inversions.items() if found.cells}
    labels = labels_of(
        {name: (f"site {each.settings.site}", asdict(each.settings)) for name, each in known.items()}
    )
    for name, found in known.items():
        yield _inverted(run, name, found, f"{run.label}, seed {run.seed}, {labels[name]}")


def _inverted(run: Run, name: str, found: Inversion, heading: str) -> Inverted:
    cells, show = tuple(found.cells.values()), found.settings.show
    memory = sorted(found.memorisation, key=lambda each: each.p_value)
    hidden = f"Pictures of private images are in {run.path}/{name} and not in this page; --show puts them here."
    names = [(f"{cell.title}, after round {cell.round}, batch {cell.batch}", cell.picture) for cell in cells]
    pairs = [(f"{each.what}, {each.site}", each.picture) for each in memory[:2]]
    return Inverted(
        heading=heading,
        headline=" ".join(filter(None, (headline(cells), found.promise))),
        table=inversion_table(cells),
        pictures=tuple(_pictures(run, name, names, ROWS)) if show else (),
        memory=memory_table(memory) if memory else None,
        closest=tuple(_pictures(run, name, pairs, ("virtual image", *ROWS[2:]))) if show else (),
        hidden="" if show else hidden,
    )


def headline(cells: Sequence[Attacked]) -> str:
    """The identification rate of each kind of update, over all its cells, beside chance."""
    rates = []
    for title in dict.fromkeys(cell.title for cell in cells):
        own = [cell for cell in cells if cell.title == title]
        images = sum(cell.images for cell in own)
        rate = sum(cell.images * cell.identified for cell in own) / images
        chance = sum(cell.images * cell.chance for cell in own) / images
        rates.append(f"{title}: {percent(rate)} % of {plural(images, 'image')}, by chance {percent(chance)} %")
    return f"Identified: {'; '.join(rates)}."


def inversion_table(cells: Sequence[Attacked]) -> Table:
    columns = (
        Column("update", number=False),
        *(Column(name) for name in ("after round", "batch", "identified, %", "by chance, %", "mean rank")),
        *(Column(f"{name} {LESS}") for name in ("PSNR, dB", "aligned PSNR, dB", "SSIM")),
        *(Column(f"{name} {SAFER}") for name in ("feature distance", "to nearest training image")),
        *(Column(name) for name in ("to nearest held-out image", "nearer to training, %", "by chance, %", "p")),
    )
    return Table(columns, tuple(map(_cell_row, cells)), READING)


def _cell_row(cell: Attacked) -> Row:
    low, high = cell.interval
    among = f"{percent(cell.identified)} [{percent(low)}, {percent(high)}]"
    return (
        Cell(cell.title),
        Cell(str(cell.round), cell.round),
        Cell(str(cell.batch), cell.batch),
        Cell(among, cell.identified),
        Cell(percent(cell.chance), cell.chance),
        Cell(f"{cell.rank:.1f} of {cell.candidates}", cell.rank),
        *(_number(value, 1) for value in (cell.psnr, cell.psnr_aligned)),
        *(_number(value, 3) for value in (cell.ssim, cell.feature_distance, cell.distance_training)),
        _number(cell.distance_held_out, 3),
        *_nearness(cell),
    )


def _number(value: float | None, places: int) -> Cell:
    return Cell(NONE) if value is None else Cell(f"{value:.{places}f}", value)


def _nearness(found: Attacked | Memorised) -> tuple[Cell, ...]:
    if found.nearer_training is None or found.expected is None or found.p_value is None:
        return (Cell(NONE),) * 3
    shares = (found.nearer_training, found.expected)
    return (*(Cell(percent(share), share) for share in shares), Cell(f"{found.p_value:.2g}", found.p_value))


def memory_table(found: Sequence[Memorised]) -> Table:
    columns = (
        *(Column(name, number=False) for name in ("images", "site")),
        *(Column(name) for name in ("after round", "number", f"closest distance {SAFER}")),
        *(Column(name) for name in ("nearer to training, %", "by chance, %", "p")),
    )
    rows = [
        (
            Cell(each.what),
            Cell(each.site),
            Cell(str(each.round + 1), each.round),
            Cell(str(each.images), each.images),
            _number(min(each.closest, default=None), 3),
            *_nearness(each),
        )
        for each in found
    ]
    note = (
        "Virtual images of a class resemble one another, so p is smaller than for independent images. Training and "
        "held-out images of published sets can differ by origin."
    )
    return Table(columns, tuple(rows), (note,))


def _pictures(
    run: Run, folder: str, named: Sequence[tuple[str, str]], rows: tuple[str, ...]
) -> Iterator[PageImage]:
    """The pictures of these names in this folder of the run; a path in a file cannot point elsewhere."""
    for caption, path in named:
        file = run.path / folder / path.rpartition("/")[2]
        shown = picture_of(file.read_bytes(), caption, run.manifest.data) if file.is_file() else None
        if shown:
            yield replace(shown, rows=rows)


def epsilon_drawing(groups: Sequence[Group]) -> Drawing | None:
    """Accuracy against 1 / epsilon, a line for runs that differ in it; None unless some have several values."""
    alike: dict[str, list[Group]] = {}
    for group in groups:
        alike.setdefault(_without_budget(group.label), []).append(group)
    curves = [_by_epsilon(label, same) for label, same in alike.items()]
    if not any(len(curve.x) > 1 for curve in curves):
        return None
    if (figure := line_plot(curves, ACCURACY, ALONG, {"": 1.0})) is None:
        return None
    return Drawing("accuracy-by-epsilon", "Accuracy against the privacy budget", figure)


def _without_budget(label: str) -> str:
    base, note = without_note(label)
    return with_note(base, {path: value for path, value in note.items() if not path.startswith(BUDGETS)})


def _epsilon(promised: Promise | None) -> float:
    """The epsilon that is promised to single images; 0 without a promise."""
    return promised.epsilon if promised and promised.protects == "image" else 0.0


def _by_epsilon(label: str, groups: Sequence[Group]) -> SeedCurve:
    runs = [run for group in groups for run in group.counted]
    finals = [(_epsilon(run.manifest.promise), run.final.accuracy) for run in runs if run.final]
    order = sorted({epsilon for epsilon, _ in finals}, key=lambda epsilon: 1 / epsilon if epsilon else 0.0)
    stats = [summarise(100 * accuracy for e, accuracy in finals if e == epsilon) for epsilon in order]
    x = tuple(1 / epsilon if epsilon else 0.0 for epsilon in order)
    return SeedCurve(label, x, tuple(stat for stat in stats if stat), groups[0].style)
