"""The command that shows a report while runs go."""

import threading
import webbrowser
from pathlib import Path

import typer

from fedlgd.core.errors import FedlgdError
from fedlgd.report.watch import HOST, Server, Watcher


def watch(paths: list[Path], port: int, open_page: bool) -> None:
    for path in paths:
        if path.exists() and not path.is_dir():
            raise FedlgdError(f"{str(path)!r} is a file; give the folder of a run, or one that holds runs")
    with _listen(paths, port) as server:
        typer.echo(f"Watching {', '.join(map(str, paths))} at {server.url} (Ctrl-C ends it)")
        if open_page:
            threading.Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            typer.echo("\nStopped watching; runs go on.", err=True)


def _listen(paths: list[Path], port: int) -> Server:
    try:
        return Server(Watcher(paths), port)
    except OSError as error:
        raise FedlgdError(
            f"cannot listen on port {port} of {HOST}: {error.strerror}; choose another with --port, or --port 0 "
            "for any free one"
        ) from error
