"""The parts of docs/results/privacy.md about gradient inversion and about what epsilon costs.

python docs/results/inversion_page.py NAME RUN   adds RUN/invert.json to docs/results/privacy/invert.json as NAME
"""

import json
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from fedlgd.report.formats import Cell, Column, Row, Table, as_markdown, percent
from fedlgd.report.run import Attacked, Inversion

FILE = Path(__file__).parent / "privacy" / "invert.json"
NOISELESS = 100.0  # an epsilon with almost no noise
INTRO = """## Gradient inversion

Can the server compute the images of a site from its update? The attack is that of Geiping et al. (2020) on one
local step, with known labels: the worst case for a site. *Identified*: the true image is the nearest to its
reconstruction among up to 100 images of its class at the site, with a 95 % interval. For updates on virtual images
the true image is a virtual one: to find it is harmless unless it is nearer to training images than to held-out
images, which the last columns show. Distances are 1 - correlation of pixels; higher = safer. How to repeat it:
[invert](../invert.md).

"""
CAVEATS = """One seed, one site, short attacks. Longer attacks find more. Feature distances are those of random
networks, and cannot be compared with the LPIPS of the paper.
"""


def inversion() -> str:
    """A table for each stored run."""
    if not FILE.exists():
        return ""
    lines = [INTRO]
    for name, stored in json.loads(FILE.read_text()).items():
        found = msgspec.convert(stored, Inversion)
        attack = stored["settings"]["attack"]
        lines += [f"### {name}\n", f"{attack['iterations']} iterations, total variation {attack['tv']:g}.\n"]
        lines += [as_markdown(_table(tuple(found.cells.values()))), "", _memory(found), ""]
    return "\n".join([*lines, CAVEATS])


def _table(cells: tuple[Attacked, ...]) -> Table:
    names = ("round", "batch", "identified, %", "by chance, %", "aligned PSNR, dB", "feature distance ↑")
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
    return f"Memorisation, {'; '.join(parts)}." if parts else ""


def price() -> str:
    """Whether FedLGD loses at most two points at epsilon 4, and what the loss is due to."""
    file = FILE.with_name("epsilon.json")
    if not file.exists():
        return ""
    rows = json.loads(file.read_text())
    seeds = {row["seed"] for row in rows if (row["method"], row["epsilon"]) == ("FedLGD", 4.0)}
    plain, private = (_mean(rows, "FedLGD", epsilon, seeds) for epsilon in (0.0, 4.0))
    text = (
        f"At epsilon 4 FedLGD loses {100 * (plain - private):.1f} points against no privacy, mean over "
        f"{len(seeds)} seeds."
    )
    first = {min(seeds)}
    if any(row["epsilon"] == NOISELESS for row in rows):
        same, noisy, free = (_mean(rows, "FedLGD", epsilon, first) for epsilon in (NOISELESS, 4.0, 0.0))
        text += (
            f" Noise is not the reason: with the same releases and almost none of it (epsilon {NOISELESS:g}, seed "
            f"{min(first)}) the accuracy is {percent(same)} %, at epsilon 4 {percent(noisy)} % and without privacy "
            f"{percent(free)} %. The price is that of asking the images only through a few sums, each with one "
            "random network, where distillation without privacy draws new networks and images all the time."
        )
    more = [row for row in rows if row["method"] == "FedLGD, 120 releases"]
    if more:
        text += f" With 120 instead of 30 releases, epsilon 4 has {percent(fmean(more[0]['accuracy'].values()))} %."
    return f"{text}\n"


def _mean(rows: list[dict[str, Any]], method: str, epsilon: float, seeds: set[int]) -> float:
    chosen = [row for row in rows if row["method"] == method and row["epsilon"] == epsilon and row["seed"] in seeds]
    return fmean(fmean(row["accuracy"].values()) for row in chosen)


def store(name: str, run: Path) -> None:
    """Numbers only: pictures stay in the run folder."""
    stored = json.loads(FILE.read_text()) if FILE.exists() else {}
    stored[name] = json.loads((run / "invert.json").read_text())
    FILE.write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    store(sys.argv[1], Path(sys.argv[2]))
