"""The section on gradient inversion: what was seen in updates, and whether virtual images copy training images."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from fedlgd.core.text import plural
from fedlgd.report.formats import NONE, Cell, Column, Row, Table, percent
from fedlgd.report.grids import PageImage, picture_of
from fedlgd.report.groups import Group
from fedlgd.report.privacy import label_results
from fedlgd.rundir.read import Run
from fedlgd.rundir.results import Attacked, Inversion, Memorised

SAFER = "↑ higher = safer"
LESS_SAFE = "↓ lower = safer"
PICTURE_ROWS = ("original", "reconstruction", "nearest training image", "nearest held-out image")
MAX_CLOSEST_PICTURES = 2
READING_NOTES = (
    "Identified: the true image is the nearest of up to 100 images of its class at the site, in percent, with a "
    "95 % interval. For updates on virtual images the true image is a virtual one: to identify it is harmless "
    "unless it copies a training image.",
    "Distances to the nearest image ignore contrast and brightness, which networks with instance norm do not see. "
    "The last columns say how often a reconstruction is nearer to a training image than to every held-out image, "
    "and how often it would be by chance.",
    "An attack that fails is no proof: a longer one, or one that knows more, may succeed.",
)
MEMORY_NOTE = (
    "Virtual images of a class resemble one another, so p is smaller than for independent images. Training and "
    "held-out images of published sets can differ by origin."
)


@dataclass(frozen=True, slots=True, eq=False)
class InversionPart:
    """The attacks on one run. `hidden`: where pictures are that are not shown; empty if they are shown."""

    heading: str
    headline: str
    table: Table
    pictures: tuple[PageImage, ...]
    hidden: str
    memory: Table | None
    closest: tuple[PageImage, ...]


def inversion_section(groups: Sequence[Group]) -> Iterator[InversionPart]:
    """Every inversion of every run, with the settings in which it differs from others of the same run."""
    for run in (run for group in groups for run in group.runs):
        known = {name: found for name, found in run.inversions.items() if found.cells}
        settings = {name: each.settings for name, each in known.items()}
        labels = label_results({name: (f"site {each.site}", asdict(each)) for name, each in settings.items()})
        for name, found in known.items():
            yield _part(run, name, found, f"{run.label}, seed {run.seed}, {labels[name]}")


def _part(run: Run, name: str, found: Inversion, heading: str) -> InversionPart:
    cells, show = tuple(found.cells.values()), found.settings.show
    memory = sorted(found.memorisation, key=lambda each: each.p_value)
    attacked = [(f"{cell.title}, after round {cell.round}, batch {cell.batch}", cell.picture) for cell in cells]
    nearest = [(f"{each.what}, {each.site}", each.picture) for each in memory[:MAX_CLOSEST_PICTURES]]
    hidden = f"Pictures of private images are in {run.path}/{name} and not in this page; --show puts them here."
    return InversionPart(
        heading=heading,
        headline=f"{identified(cells)} {found.promise}".rstrip(),
        table=inversion_table(cells),
        pictures=tuple(_pictures(run, name, attacked, PICTURE_ROWS)) if show else (),
        hidden="" if show else hidden,
        memory=memory_table(memory) if memory else None,
        closest=tuple(_pictures(run, name, nearest, ("virtual image", *PICTURE_ROWS[2:]))) if show else (),
    )


def _pictures(
    run: Run, folder: str, named: Sequence[tuple[str, str]], rows: tuple[str, ...]
) -> Iterator[PageImage]:
    """The pictures of these names in this folder of the run; a path in a file cannot point elsewhere."""
    for caption, path in named:
        file = run.path / folder / path.rpartition("/")[2]
        shown = picture_of(file.read_bytes(), caption, run.manifest.data) if file.is_file() else None
        if shown:
            yield replace(shown, rows=rows)


def identified(cells: Sequence[Attacked]) -> str:
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
    """A row for each kind of update, round and size of batch; arrows say which direction is safer."""
    columns = (
        Column("update", number=False),
        *(Column(name) for name in ("after round", "batch", "identified, %", "by chance, %", "mean rank")),
        *(Column(f"{name} {LESS_SAFE}") for name in ("PSNR, dB", "aligned PSNR, dB", "SSIM")),
        *(Column(f"{name} {SAFER}") for name in ("feature distance", "to nearest training image")),
        *(Column(name) for name in ("to nearest held-out image", "nearer to training, %", "by chance, %", "p")),
    )
    return Table(columns, tuple(map(_row, cells)), READING_NOTES)


def _row(cell: Attacked) -> Row:
    low, high = map(percent, cell.interval)
    return (
        Cell(cell.title),
        Cell(str(cell.round), cell.round),
        Cell(str(cell.batch), cell.batch),
        Cell(f"{percent(cell.identified)} [{low}, {high}]", cell.identified),
        Cell(percent(cell.chance), cell.chance),
        Cell(f"{cell.rank:.1f} of {cell.candidates}", cell.rank),
        *(_number(value, 1) for value in (cell.psnr, cell.psnr_aligned)),
        *(_number(value, 3) for value in (cell.ssim, cell.feature_distance, cell.distance_training)),
        _number(cell.distance_held_out, 3),
        *_nearness(cell),
    )


def memory_table(found: Sequence[Memorised]) -> Table:
    """How near virtual images and anchors are to training images."""
    columns = (
        *(Column(name, number=False) for name in ("images", "site")),
        *(Column(name) for name in ("after round", "number", f"closest distance {SAFER}")),
        *(Column(name) for name in ("nearer to training, %", "by chance, %", "p")),
    )

    def row(each: Memorised) -> Row:
        numbers = (Cell(str(each.round + 1), each.round), Cell(str(each.images), each.images))
        closest = _number(min(each.closest, default=None), 3)
        return (Cell(each.what), Cell(each.site), *numbers, closest, *_nearness(each))

    return Table(columns, tuple(map(row, found)), (MEMORY_NOTE,))


def _number(value: float | None, places: int) -> Cell:
    return Cell(NONE) if value is None else Cell(f"{value:.{places}f}", value)


def _nearness(found: Attacked | Memorised) -> tuple[Cell, ...]:
    if found.nearer_training is None or found.expected is None or found.p_value is None:
        return (Cell(NONE),) * 3
    shares = (found.nearer_training, found.expected)
    return (*(Cell(percent(share), share) for share in shares), Cell(f"{found.p_value:.2g}", found.p_value))
