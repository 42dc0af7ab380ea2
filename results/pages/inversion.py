"""The part of docs/results/privacy.md about gradient inversion.

python -m results.pages.inversion NAME RUN   adds RUN/invert.json to results/measured/privacy/invert.json as NAME
"""

import json
import sys
from pathlib import Path

import msgspec

from fedlgd.report.tables import Cell, Column, Row, Table, as_markdown, percent
from fedlgd.rundir.results import Attacked, Inversion
from results import MEASURED

FOLDER = MEASURED / "privacy"
FILE = "invert.json"
INTRO = """## Gradient inversion

Can the server compute the images of a site from its update? The attack is that of Geiping et al. (2020) on one
local step, with known labels: the worst case for a site. *Identified*: the true image is the nearest to its
reconstruction among up to 100 images of its class at the site, with a 95 % interval. For updates on virtual images
the true image is a virtual one: to find it is harmless unless it is nearer to training images than to held-out
images, which the last columns show. Distances are 1 - correlation of pixels; higher = safer. How to repeat it:
[invert](../invert.md).

"""
SIGNIFICANT = 0.05
CAVEATS = """`python -m results.inversion`: a ConvNet of width 16, images of 16x16 pixels, at most 2 000 training
images at a site. One seed, one site, short attacks; the script now draws other targets. Longer attacks find more.
Feature distances are those of random networks, and cannot be compared with the LPIPS of the paper.
"""


def inversion(folder: Path = FOLDER) -> str:
    """A table for each stored run."""
    if not (folder / FILE).exists():
        return ""
    lines = [INTRO]
    for name, stored in json.loads((folder / FILE).read_text()).items():
        found = msgspec.convert(stored, Inversion)
        attack = stored["settings"]["attack"]
        lines += [f"### {name}\n", f"{attack['iterations']} iterations, total variation {attack['tv']:g}.\n"]
        lines += [as_markdown(_table(tuple(found.cells.values()))), "", _claim(found), "", _memory(found), ""]
    return "\n".join([*lines, CAVEATS])


def _table(cells: tuple[Attacked, ...]) -> Table:
    names = ("after round", "batch", "identified, %", "by chance, %", "aligned PSNR, dB", "feature distance ↑")
    near = ("to training image ↑", "to held-out image", "nearer to training, %", "by chance, %")
    columns = (Column("update", number=False), *map(Column, (*names, *near)))
    return Table(columns, tuple(map(_row, cells)))


def _row(cell: Attacked) -> Row:
    low, high = (percent(each) for each in cell.interval)
    near = (cell.nearer_training, cell.expected)
    numbers = (f"{percent(cell.identified)} [{low}, {high}]", percent(cell.chance), f"{cell.psnr_aligned:.1f}")
    apart = (cell.feature_distance, cell.distance_training, cell.distance_held_out)
    texts = (*numbers, *("–" if each is None else f"{each:.3f}" for each in apart))
    shares = ("–" if each is None else percent(each) for each in near)
    return (Cell(cell.title), *map(Cell, (str(cell.round), str(cell.batch), *texts, *shares)))


def _claim(found: Inversion) -> str:
    """The paper: training on virtual images alleviates gradient inversion."""
    real, other = (
        [c for c in found.cells.values() if ("on real" in c.title) is wanted] for wanted in (True, False)
    )
    exposed = any(cell.interval[0] > cell.chance for cell in real)
    near = [cell.title for cell in other if (cell.p_value or 1.0) < SIGNIFICANT / len(other)]
    if not exposed or not other:
        return ""
    images = sum(cell.images for cell in other)
    found_there = f"a leak was found in {', '.join(near)}" if near else "no leak found by this attack"
    return (
        "The paper says that virtual images alleviate gradient inversion. Private images are identified in\n"
        "updates on real images. Are reconstructions of virtual images nearer to training images than by\nchance? "
        f"**{'Not confirmed' if near else 'Not decidable'}**: {found_there} ({images} images, level "
        f"{SIGNIFICANT:g} for all {len(other)} tests together)."
    )


def _memory(found: Inversion) -> str:
    """The strongest sign that a virtual set, or the anchors, copy training images."""
    parts = []
    for what in dict.fromkeys(each.what for each in found.memorisation):
        first = min((each for each in found.memorisation if each.what == what), key=lambda each: each.p_value)
        parts.append(
            f"{what}: {percent(first.nearer_training)} % of {first.images} images are nearer to a training image "
            f"than to every held-out one, {percent(first.expected)} % by chance (p = {first.p_value:.2g}, the "
            "smallest of all sites and versions)"
        )
    note = "Virtual images of a class resemble one another, so p is too small."
    return f"Memorisation, {'; '.join(parts)}. {note}" if parts else ""


def store(name: str, run: Path) -> None:
    """Numbers only: pictures stay in the run folder."""
    file = FOLDER / FILE
    stored = json.loads(file.read_text()) if file.exists() else {}
    stored[name] = json.loads((run / FILE).read_text())
    file.write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    store(sys.argv[1], Path(sys.argv[2]))
