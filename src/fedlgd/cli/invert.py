"""`fedlgd invert`: how much of its images a site's update gives away."""

import json as jsonlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import typer

from fedlgd.cli.options import InvertOptions
from fedlgd.cli.progress import duration, progress
from fedlgd.cli.run import resumable, set_up
from fedlgd.cli.terminal import fitted, folded, terminal_width
from fedlgd.core.errors import SettingError
from fedlgd.privacy.inversion import QUICK, THOROUGH, Attack
from fedlgd.privacy.invert import FILE, Inversion, attack, cells_of, estimate, moments_of
from fedlgd.privacy.memorisation import FOLDER
from fedlgd.privacy.replay import Replay, reopened
from fedlgd.report.formats import Cell, Column, Table
from fedlgd.runs.store import locked

COLUMNS = ("update", "after round", "batch", "identified", "by chance", "PSNR")


def invert(given: InvertOptions) -> None:
    how = _plan(given)
    set_up(given.threads)
    results = [_one(reopened(folder), how, given) for folder in given.runs]
    if given.json:
        typer.echo(jsonlib.dumps(results))


def _plan(given: InvertOptions) -> Inversion:
    if given.quick and given.thorough:
        raise SettingError("--quick and --thorough exclude each other; give one of them, or none")
    effort = QUICK if given.quick else THOROUGH if given.thorough else Attack()
    return Inversion(
        attack=replace(effort, tv=given.tv, loss=given.loss),
        batches=tuple(given.batch or (1, 4)),
        targets=max(1, given.targets // 2) if given.quick else given.targets,
        rounds=tuple(given.at_round or ()),
        site=given.site,
        seed=given.seed,
        show=given.show,
    )


def _one(run: Replay, how: Inversion, given: InvertOptions) -> dict[str, Any]:
    with resumable(f" in {run.folder}", "Finished attacks"), locked(run.folder):
        with progress(given.silent):
            moments = moments_of(run, how)
            cells = cells_of(run, how, moments)
        seconds = estimate(run, how, cells)
        if given.estimate:
            if not given.json:
                typer.echo(duration(seconds))
            return {"run": str(run.folder), "seconds": seconds}
        if not given.silent:
            typer.echo(f"{run.folder}: {len(cells)} attacks; estimated time: {duration(seconds)}", err=True)
            typer.echo(
                f"Writing pictures of private images to {run.folder / FOLDER}: keep them as you keep the images",
                err=True,
            )
        with progress(given.silent):
            found = attack(run, how, cells, moments)
    if not given.json:
        _print(run, found)
    return {"run": str(run.folder), **found}


def _print(run: Replay, found: Mapping[str, Any]) -> None:
    rows = []
    for cell in found["cells"].values():
        hits, chance = f"{100 * cell['identified']:.0f} % of {cell['images']}", f"{100 * cell['chance']:.0f} %"
        numbers = (cell["round"], cell["batch"], hits, chance, f"{cell['psnr_aligned']:.1f}")
        rows.append((Cell(cell["title"]), *(Cell(str(number)) for number in numbers)))
    table = Table(tuple(Column(name, number=at > 0) for at, name in enumerate(COLUMNS)), tuple(rows))
    typer.echo("Images that the attack identifies among others of their class at the site")
    typer.echo(fitted(table, terminal_width(), ("PSNR",)))
    for each in found["memorisation"]:
        if each["site"] == found["settings"]["site"]:
            share, chance = (f"{100 * each[key]:.0f} %" for key in ("nearer_training", "expected"))
            what = f"{each['what']} after round {each['round'] + 1} at {each['site']}"
            text = f"{what}: {share} nearer to a training image ({chance} by chance, p = {each['p_value']:.2g})"
            typer.echo(folded(text, "  "))
    typer.echo(f"All numbers: {run.folder / FILE}; pictures: {run.folder / FOLDER}")
