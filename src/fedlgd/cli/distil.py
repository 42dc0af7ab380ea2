"""`fedlgd distil`: virtual sets without a federated run."""

import json as jsonlib
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedlgd.cli.data import chosen_data
from fedlgd.cli.options import DistilOptions
from fedlgd.cli.progress import duration, progress
from fedlgd.cli.run import place_of, resumable, set_up
from fedlgd.core.errors import SettingError
from fedlgd.distill.cache import caching
from fedlgd.runs.cache import shared_cache
from fedlgd.runs.config import Config, resolve
from fedlgd.runs.distilled import TRAINING, Distilled, distil_all, seconds_left
from fedlgd.runs.literals import parse_assignment
from fedlgd.runs.store import locked

SECTIONS = ("data", "net", "distil")  # whose settings the sets depend on


def distil(given: DistilOptions) -> None:
    place, config = place_of(given), _config(given)
    method: Any = config.method
    set_up(given.threads)
    with resumable(f" in {given.out}", "Finished sets"), caching(shared_cache(place)):
        with progress(given.silent):
            federation = config.data.open()
        net = config.net_for(federation)
        seconds = seconds_left(config, method.distil, federation, net, place)
        if given.estimate:
            typer.echo(jsonlib.dumps({"seconds": seconds}) if given.json else duration(seconds))
            return
        if not given.silent:
            typer.echo(f"{len(federation.sites)} sites; estimated time: {duration(seconds)}", err=True)
        with locked(given.out), progress(given.silent):
            steps = given.score_steps if given.score else 0
            made = list(distil_all(config, method.distil, federation, net, given.out, steps, place))
            made.sort(key=lambda each: federation.names.index(each.site))
    if given.json:
        typer.echo(jsonlib.dumps([asdict(each) for each in made]))
        return
    Console().print(_table(made))
    if given.score:
        typer.echo(
            f"Each network: {given.score_steps} SGD steps of batch {TRAINING.batch}, one seed, no augmentation"
        )
    where, per_class = f"{given.out}/", method.distil.per_class
    start = f"distil.start={where if '/' in where.rstrip('/') else './' + where}"
    typer.echo(f"Sets and pictures: {where}<site>.npz, .png; made from private images, so each belongs to its site")
    typer.echo(f"To start a run from them: --set {start} --set distil.per_class={per_class} --set distil.steps=0")


def _config(given: DistilOptions) -> Config:
    chosen = dict(map(parse_assignment, given.settings or ()))
    for path in chosen:
        if path.partition(".")[0] not in SECTIONS:
            raise SettingError(f"setting {path!r} does not change a virtual set; use data.*, net.* or distil.*")
    flags = {**chosen_data(given.data, given.folder), "net.name": given.net, "distil.per_class": given.per_class}
    flags |= {"method": "fedavg", "train_on": "virtual", "seed": given.seed}
    return resolve({}, {path: value for path, value in flags.items() if value is not None} | chosen)


def _table(made: Sequence[Distilled]) -> Table:
    table = Table("site", title="Test accuracy (%) of a network trained on ...")
    for column in ("images", "virtual", "as many real", "all real"):
        table.add_column(column, justify="right")
    rows = [(each.scores.virtual, each.scores.picks, each.scores.real) for each in made if each.scores]
    for each in made:
        scores = each.scores
        cells = (scores.virtual, scores.picks, scores.real) if scores else ()
        table.add_row(escape(each.site), str(each.images), *(f"{100 * value:.1f}" for value in cells))
    if rows:
        means = (statistics.fmean(column) for column in zip(*rows, strict=True))
        table.add_row("mean", "", *(f"{100 * value:.1f}" for value in means), style="bold")
    return table
