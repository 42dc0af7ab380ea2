"""`fedlgd methods` and `fedlgd nets`: what can be chosen, and its settings."""

import inspect
import json as jsonlib
import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from fedlgd.methods import registry
from fedlgd.methods.catalogue import METHODS
from fedlgd.nets.registry import NETS, build_net, settings_of
from fedlgd.runs.config import SettingInfo, described, described_net

MAX_LISTED = 6  # values of a list that are shown as a default


def show(name: str, json: bool) -> None:
    row = describe(name)
    if json:
        typer.echo(jsonlib.dumps(row))
    else:
        _print_method(name, row)


def describe(name: str) -> dict[str, Any]:
    cls, settings = registry.find(name), registry.recipe(name).settings
    details = [{**asdict(info), "allowed": info.allowed} for info in described(settings)]
    return {
        "name": name,
        "about": METHODS[name].line if name in METHODS else _first_line(sys.modules[cls.__module__]),
        "presets": list(settings.presets),
        "settings": msgspec.to_builtins(settings()),
        "description": inspect.getdoc(cls) or "",
        "preset_settings": msgspec.to_builtins(settings.presets),
        "setting_details": details,
    }


def _first_line(documented: Any) -> str:
    return (inspect.getdoc(documented) or "").partition("\n")[0]


def _print_method(name: str, row: dict[str, Any]) -> None:
    console = Console()
    console.print(f"{name}: {row['about']}\n\n{row['description']}\n", markup=False, highlight=False)
    console.print(settings_table(described(registry.recipe(name).settings)))
    presets = Table("preset", "settings", title="Presets: --preset NAME", show_lines=True)
    for preset, settings in row["preset_settings"].items():
        lines = [f"{path} = {jsonlib.dumps(value)}" for path, value in settings.items()]
        presets.add_row(preset, escape("\n".join(lines) or "the defaults"))
    if presets.row_count:
        console.print(presets)


def settings_table(settings: Iterable[SettingInfo]) -> Table:
    """Path, default, help line and allowed values."""
    table = Table(Column("setting", no_wrap=True), Column("default", max_width=20), "help", box=box.SIMPLE_HEAD)
    table.title = "Settings: --set setting=value"
    for info in settings:
        default, about = jsonlib.dumps(info.default), f"{info.help} ({info.allowed})" if info.allowed else info.help
        if isinstance(info.default, tuple | list) and len(info.default) > MAX_LISTED:
            default, about = f"{len(info.default)} values", f"{about} Default: {', '.join(map(str, info.default))}"
        table.add_row(info.path, escape(default), escape(about))
    return table


def nets(json: bool) -> None:
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
    Console().print(table, *(settings_table(described_net(name)) for name in NETS))
