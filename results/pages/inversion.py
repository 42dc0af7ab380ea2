"""The generated parts of the page about gradient inversion.

python -m results.pages.inversion NAME RUN   adds RUN/invert.json to results/measured/privacy/invert.json as NAME
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from fedlgd.report.tables import Cell, Column, Row, Table, as_markdown, percent
from fedlgd.rundir.results import Attacked, Inversion
from results import MEASURED
from results.pages.figures import dots

FOLDER = MEASURED / "privacy"
FILE = "invert.json"
SIGNIFICANT = 0.05


def inversion(part: str) -> str:
    """A part of the page about gradient inversion: its answer, or the tables of all stored attacks."""
    found = stored_attacks(FOLDER)
    return answer(found) if part == "answer" else tables(found)


def stored_attacks(folder: Path) -> dict[str, tuple[dict[str, Any], Inversion]]:
    """Settings and results of the attack on each data set."""
    stored = json.loads((folder / FILE).read_text())
    return {name: (each["settings"], msgspec.convert(each, Inversion)) for name, each in stored.items()}


def answer(stored: Mapping[str, tuple[dict[str, Any], Inversion]]) -> str:
    """How many private images updates on real images give away, and what was found in other updates."""
    cells = [cell for _, found in stored.values() for cell in found.cells.values()]
    real = [100 * cell.identified for cell in cells if "on real" in cell.title]
    chance = max(100 * cell.chance for cell in cells if "on real" in cell.title)
    near = [name for name, (_, found) in stored.items() if leaking(found)]
    other = (
        f"a leak was found at {', '.join(near)}"
        if near
        else "no leak was found, which does not prove that there is none"
    )
    return (
        "From an update on real images, the attack reconstructs images so well that the original is identified in "
        f"{min(real):.0f} to {max(real):.0f} % of the cases ({chance:.0f} % by chance). From updates on virtual "
        f"images it reconstructs virtual images; whether these show private ones is not decided: {other}."
    )


def tables(stored: Mapping[str, tuple[dict[str, Any], Inversion]]) -> str:
    """A table for each stored run."""
    lines = []
    for name, (settings, found) in stored.items():
        attack = settings["attack"]
        lines += [f"### {name}\n", f"{attack['iterations']} iterations, total variation {attack['tv']:g}.\n"]
        lines += [as_markdown(_table(tuple(found.cells.values()))), "", _claim(found), "", _memory(found), ""]
    return "\n".join(lines).rstrip()


def figures() -> dict[str, str]:
    """SVG texts by file name."""
    cells = [(name, cell) for name, (_, found) in stored_attacks(FOLDER).items() for cell in found.cells.values()]
    rows: dict[str, dict[str, tuple[float, float, float]]] = {}
    for name, cell in cells:
        low, high = cell.interval
        row = rows.setdefault(cell.title, {})
        row[f"{name}, batch {cell.batch}"] = (100 * low, 100 * cell.identified, 100 * high)
    return {"privacy-inversion.svg": dots(rows, "identified, %", "privacy-inversion")}


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


def leaking(found: Inversion) -> list[str]:
    """The updates on virtual images whose reconstructions are nearer to training images than by chance."""
    other = [cell for cell in found.cells.values() if "on real" not in cell.title]
    return [cell.title for cell in other if (cell.p_value or 1.0) < SIGNIFICANT / len(other)]


def _claim(found: Inversion) -> str:
    """The paper: training on virtual images alleviates gradient inversion."""
    real, other = (
        [c for c in found.cells.values() if ("on real" in c.title) is wanted] for wanted in (True, False)
    )
    if not other or not any(cell.interval[0] > cell.chance for cell in real):
        return ""
    near = leaking(found)
    where = f"a leak was found in {', '.join(near)}" if near else "no leak found by this attack"
    return (
        "Are reconstructions of virtual images nearer to training images than by chance? "
        f"**{'Not confirmed' if near else 'Not decidable'}**: {where} ({sum(cell.images for cell in other)} "
        f"images, level {SIGNIFICANT:g} for all {len(other)} tests together)."
    )


def _memory(found: Inversion) -> str:
    """The strongest sign that a virtual set, or the anchors, copy training images."""
    lines = []
    for what in dict.fromkeys(each.what for each in found.memorisation):
        first = min((each for each in found.memorisation if each.what == what), key=lambda each: each.p_value)
        lines.append(
            f"- Memorisation, {what}: {percent(first.nearer_training)} % of {first.images} images are nearer to a "
            f"training image than to every held-out one. By chance it is {percent(first.expected)} % "
            f"(p = {first.p_value:.2g}, the smallest of all sites and versions)."
        )
    note = "- Virtual images of a class resemble one another, so p is too small."
    return "\n".join([*lines, note]) if lines else ""


def store(name: str, run: Path) -> None:
    """Numbers only: pictures stay in the run folder."""
    file = FOLDER / FILE
    stored = json.loads(file.read_text()) if file.exists() else {}
    stored[name] = json.loads((run / FILE).read_text())
    file.write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    store(sys.argv[1], Path(sys.argv[2]))
