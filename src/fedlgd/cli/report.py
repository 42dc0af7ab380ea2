"""`fedlgd report` and `fedlgd watch`. Torch is not imported."""

import json as jsonlib
import threading
import webbrowser
from pathlib import Path

import typer

from fedlgd.core.errors import FedlgdError
from fedlgd.core.files import writing
from fedlgd.report.formats import copies
from fedlgd.report.groups import group_runs
from fedlgd.report.page import write_figures, write_report
from fedlgd.report.read import read_runs, run_folders
from fedlgd.report.tables import TABLES
from fedlgd.report.watch import HOST, Server, Watcher


def report(paths: list[Path], out: Path | None, figures: Path | None, json: bool) -> None:
    folders = _folders(paths)
    target = out or paths[0] / "report.html"
    with writing(target):
        page = write_report(folders, target)
    with writing(str(figures), "Choose another folder with --figures"):
        drawn = write_figures(folders, figures) if figures else []
    if json:
        typer.echo(jsonlib.dumps({"report": str(page), "runs": len(folders), "figures": [*map(str, drawn)]}))
        return
    typer.echo(f"Report: {page}")
    if figures:
        typer.echo(f"Figures: {len(drawn)} files in {figures}")


def print_table(paths: list[Path], name: str, forms: list[str], alone: bool) -> None:
    """Print one table of the report as CSV, LaTeX or Markdown; no page is written."""
    if len(forms) > 1 or not alone:
        raise FedlgdError(
            f"--{forms[0].lower()} prints one table and writes no file; use it without --out, --figures, --json "
            "and other formats"
        )
    runs, unreadable = read_runs(_folders(paths))
    table = TABLES[name](group_runs(runs))
    if table is None:
        raise FedlgdError(f"these runs have no table {name!r}: it is for data with two classes and a scored round")
    for error in unreadable:
        typer.echo(f"This run cannot be read: {error}", err=True)
    typer.echo(copies(table)[forms[0]].rstrip("\n"))


def _folders(paths: list[Path]) -> list[Path]:
    if missing := [repr(str(path)) for path in paths if not path.exists()]:
        raise FedlgdError(f"there is no folder {', '.join(missing)}; give a run folder, or a folder of run folders")
    folders = [run for path in paths for run in run_folders(path)]
    if not folders:
        raise FedlgdError(f"no run in {', '.join(map(str, paths))}; a run folder contains manifest.json")
    return folders


def watch(paths: list[Path], port: int, open_page: bool) -> None:
    for path in paths:
        if path.exists() and not path.is_dir():
            raise FedlgdError(f"{str(path)!r} is a file; give a run folder, or a folder that contains run folders")
    with _server(paths, port) as server:
        typer.echo(f"Watching {', '.join(map(str, paths))} at {server.url} (stop with Ctrl-C)")
        if missing := [repr(str(path)) for path in paths if not path.exists()]:
            typer.echo(f"fedlgd: there is no folder {', '.join(missing)} yet; waiting for a run in it", err=True)
        if open_page:
            threading.Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            typer.echo("\nStopped watching; the runs continue.", err=True)


def _server(paths: list[Path], port: int) -> Server:
    try:
        return Server(Watcher(paths), port)
    except OSError as error:
        raise FedlgdError(
            f"cannot listen on port {port} of {HOST}: {error.strerror}; use another --port, or --port 0 for any "
            "free port"
        ) from error
