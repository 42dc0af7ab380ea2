"""`fedlgd methods` and `fedlgd data list`: short lists from the catalogues. Torch is imported only for `--json`."""

import json as jsonlib

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedlgd.data.catalogue import SUITES
from fedlgd.data.home import data_home
from fedlgd.data.suite import Suite
from fedlgd.methods.catalogue import METHODS, PARTS


def list_methods(json: bool) -> None:
    if json:
        from fedlgd.cli.methods import describe

        typer.echo(jsonlib.dumps([describe(name) for name in METHODS]))
        return
    table = _table("method", "about")
    for name, about in METHODS.items():
        table.add_row(name, escape(about.line))
    parts = _table("part", "about")
    for name, part in PARTS.items():
        parts.add_row(f"+{name}", escape(part.line))
    Console().print(table, "Parts are added to a method with +, as in scaffold+anchors:", parts, sep="\n")
    more = [
        f"{name} also {', '.join(set(a.presets) - {'paper', 'quick', 'strong'})}"
        for name, a in METHODS.items()
        if a.presets[3:]
    ]
    typer.echo(f"Presets: paper, quick, strong; {'; '.join(more)}.")
    typer.echo("fedlgd methods NAME shows the settings of a method.")


def list_suites(json: bool) -> None:
    if json:
        from fedlgd.cli.data import describe

        typer.echo(jsonlib.dumps([describe(name) for name in SUITES]))
        return
    table = _table("name", "about", "state")
    for name, suite in SUITES.items():
        table.add_row(name, escape(suite.about), "ready" if not suite.missing else "missing")
    Console().print(table)
    for name, suite in SUITES.items():
        if suite.missing:
            typer.echo(f"{name}: " + (fetch_command(suite) or f"needs {', '.join(suite.missing)} in the data home"))
    typer.echo(f"data home: {data_home()}\nfedlgd data show NAME shows the settings and the sites of a federation.")


def fetch_command(suite: Suite) -> str:
    """The command that downloads missing files; empty if none are missing or none can be downloaded."""
    return f"fedlgd data fetch {suite.fetch}" if suite.missing and suite.fetch else ""


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=column != "about")
    return table
