"""`fedlgd methods`, `fedlgd nets` and `fedlgd data list`: what can be chosen, and its settings.

The short lists come from the catalogues; torch is imported only to show settings.
"""

import inspect
import json as jsonlib
import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from fedlgd.data.catalogue import SUITES, Suite, data_home
from fedlgd.methods.catalogue import METHODS, PARTS

if TYPE_CHECKING:
    from fedlgd.runs.described import SettingInfo

MAX_LISTED = 6  # values of a list that are shown as a default


def list_methods(json: bool) -> None:
    if json:
        typer.echo(jsonlib.dumps([describe_method(name) for name in METHODS]))
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


def show_method(name: str, json: bool) -> None:
    row = describe_method(name)
    if json:
        typer.echo(jsonlib.dumps(row))
    else:
        _print_method(name, row)


def describe_method(name: str) -> dict[str, Any]:
    from fedlgd.methods import registry
    from fedlgd.runs.described import described

    cls, settings = registry.find(name), registry.recipe(name).settings
    about = inspect.getdoc(sys.modules[cls.__module__]) or ""
    details = [{**asdict(info), "allowed": info.allowed} for info in described(settings)]
    return {
        "name": name,
        "about": METHODS[name].line if name in METHODS else about.partition("\n")[0],
        "presets": list(settings.presets),
        "settings": msgspec.to_builtins(settings()),
        "description": inspect.getdoc(cls) or "",
        "preset_settings": msgspec.to_builtins(settings.presets),
        "setting_details": details,
    }


def _print_method(name: str, row: dict[str, Any]) -> None:
    from fedlgd.methods import registry
    from fedlgd.runs.described import described

    console = Console()
    console.print(f"{name}: {row['about']}\n\n{row['description']}\n", markup=False, highlight=False)
    console.print(settings_table(described(registry.recipe(name).settings)))
    presets = Table("preset", "settings", title="Presets: --preset NAME", show_lines=True)
    for preset, settings in row["preset_settings"].items():
        lines = [f"{path} = {jsonlib.dumps(value)}" for path, value in settings.items()]
        presets.add_row(preset, escape("\n".join(lines) or "the defaults"))
    if presets.row_count:
        console.print(presets)


def settings_table(settings: Iterable["SettingInfo"], owner: str = "") -> Table:
    """Path, default, help line and allowed values."""
    table = Table(Column("setting", no_wrap=True), Column("default", max_width=20), "help", box=box.SIMPLE_HEAD)
    table.title = f"Settings of {owner}: --set setting=value" if owner else "Settings: --set setting=value"
    for info in settings:
        default, about = jsonlib.dumps(info.default), f"{info.help} ({info.allowed})" if info.allowed else info.help
        if isinstance(info.default, tuple | list) and len(info.default) > MAX_LISTED:
            default, about = f"{len(info.default)} values", f"{about} Default: {', '.join(map(str, info.default))}"
        table.add_row(info.path, escape(default), escape(about))
    return table


def list_nets(json: bool) -> None:
    from fedlgd.nets.registry import NETS, build_net, settings_of
    from fedlgd.runs.described import described_net

    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "settings": settings_of(name),
            "parameters": (net := build_net(name, (3, 28, 28), 10)).size,
            "MFLOP per image": round(net.flops / 1e6, 1),
        }
        for name in NETS
    ]
    if json:
        typer.echo(jsonlib.dumps(rows))
        return
    table = Table("name", "parameters", "MFLOP per image", title="for 28x28 images, 10 classes")
    for row in rows:
        table.add_row(row["name"], f"{row['parameters']:,}".replace(",", " "), str(row["MFLOP per image"]))
    Console().print(table, *(settings_table(described_net(name), name) for name in NETS))
