"""`fedlgd run --engine flower`: a run at real sites."""

import logging
from pathlib import Path

import typer

from fedlgd.cli.options import RunOptions
from fedlgd.cli.progress import progress
from fedlgd.cli.run import command_line, resumable, set_up
from fedlgd.core.errors import SettingError
from fedlgd.core.records import RoundRecord
from fedlgd.core.suggest import check_flower
from fedlgd.runs.config import Config
from fedlgd.runs.result import Result
from fedlgd.runs.track import Tracked, Tracking


def data_of(given: RunOptions) -> str:
    """The name of the data of a run at real sites; refuses options that have no meaning there."""
    check_flower()
    if given.engine not in (None, "flower") or given.kit is None:
        raise SettingError("real sites need both: --engine flower --kit KIT, with the kit of the server")
    chosen = {
        "a federation": given.data,
        "--data": given.folder,
        "--estimate": given.estimate,
        "--workers": given.workers > 0,
        "--device": given.device != "cpu",
        "--autocast": given.autocast,
    }
    if wrong := [name for name, value in chosen.items() if value]:
        raise SettingError(f"{wrong[0]} is given, but images and computers are at the sites; leave it out")
    return "real-sites"


def execute_real(config: Config, folder: Path, given: RunOptions, title: str) -> Result:
    """Run at the sites that are connected to the server of the kit, with progress and trackers."""
    from fedlgd.deploy import kit as kits
    from fedlgd.deploy import processes

    assert given.kit is not None
    kit, heard = kits.read_kit(given.kit, "server"), 0
    processes.be_quiet(kit.state)
    from fedlgd.deploy.coordinator import Operator
    from fedlgd.deploy.server import Request, coordinate

    def listen(record: RoundRecord) -> None:
        nonlocal heard
        heard += 1
        show(record)
        track(record)

    set_up(given.threads)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    with (
        resumable(f" in {folder}"),
        Operator(kit) as operator,
        operator.grid() as grid,
        progress(given.silent, config.plan.rounds, title, folder, lasting=True) as show,
        Tracking(given.track or (), Tracked(title, folder, config)) as track,
    ):
        how = {"timeout": given.timeout, "threads": given.threads, "command": command_line()}
        request = Request(config=config.toml(), out=str(folder), sites=grid.nodes, **how)  # type: ignore[arg-type]
        result = coordinate(grid, request, listen)
    if not (heard or given.silent):
        typer.echo(f"{folder} is already complete; nothing to run", err=True)
    return result
