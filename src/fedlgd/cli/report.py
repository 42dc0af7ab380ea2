"""`fedlgd report` and `fedlgd watch`. Torch is not imported."""

import json as jsonlib
import threading
import webbrowser
from pathlib import Path

import typer

from fedlgd.core.errors import FedlgdError
from fedlgd.core.files import writing
from fedlgd.report.page import write_figures, write_report
from fedlgd.report.read import run_folders
from fedlgd.report.watch import HOST, Server, Watcher


def report(paths: list[Path], out: Path | None, figures: Path | None, json: bool) -> None:
    if missing := [repr(str(path)) for path in paths if not path.exists()]:
        raise FedlgdError(f"there is no folder {', '.join(missing)}; give a run folder, or a folder of run folders")
    folders = [run for path in paths for run in run_folders(path)]
    if not folders:
        raise FedlgdError(f"no run in {', '.join(map(str, paths))}; a run folder contains manifest.json")
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
