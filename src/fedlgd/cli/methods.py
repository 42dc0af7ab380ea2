"""`fedlgd methods` and `fedlgd nets`: what can be chosen, and its settings."""

import inspect
import json as jsonlib
import sys
from dataclasses import asdict
from typing import Any

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from fedlgd.methods import registry
from fedlgd.nets.registry import NETS, build_net, settings_of
from fedlgd.runs.config import described


def methods(name: str | None, json: bool) -> None:
    rows = [_describe(each) for each in ([name] if name else registry.names())]
    if json:
        typer.echo(jsonlib.dumps(rows[0] if name else rows))
    elif name:
        _print_method(name, rows[0])
    else:
        table = Table("name", "about", "presets")
        for row in rows:
            table.add_row(row["name"], escape(row["about"]), " ".join(row["presets"]))
        Console().print(table)
        typer.echo(f"Add parts to a method with +, as in scaffold+anchors: {', '.join(registry.stacks())}.")
        typer.echo("fedlgd methods NAME shows the settings of a method.")


def _describe(name: str) -> dict[str, Any]:
    cls, settings = registry.find(name), registry.recipe(name).settings
    details = [{**asdict(info), "allowed": info.allowed} for info in described(settings)]
    return {
        "name": name,
        "about": (inspect.getdoc(sys.modules[cls.__module__]) or "").partition("\n")[0],
        "presets": list(settings.presets),
        "settings": msgspec.to_builtins(settings()),
        "description": inspect.getdoc(cls) or "",
        "preset_settings": msgspec.to_builtins(settings.presets),
        "setting_details": details,
    }


def _print_method(name: str, row: dict[str, Any]) -> None:
    console = Console()
    typer.echo(f"{name}: {row['about']}\n\n{row['description']}\n")
    table = Table("setting", Column("default", max_width=24), "help", title="Settings: --set setting=value")
    for info in row["setting_details"]:
        allowed = f"({info['allowed']})" if info["allowed"] else ""
        table.add_row(
            info["path"], *map(escape, (jsonlib.dumps(info["default"]), f"{info['help']} {allowed}".strip()))
        )
    console.print(table)
    presets = Table("preset", "settings", title="Presets: --preset NAME", show_lines=True)
    for preset, settings in row["preset_settings"].items():
        lines = [f"{path} = {jsonlib.dumps(value)}" for path, value in settings.items()]
        presets.add_row(preset, escape("\n".join(lines) or "the defaults"))
    if presets.row_count:
        console.print(presets)


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
    table = Table(*rows[0], title="for 28x28 images, 10 classes", show_lines=True)
    for row in rows:
        settings = "\n".join(f"{key} = {value}" for key, value in row["settings"].items())
        size = f"{row['parameters']:,}".replace(",", " ")
        table.add_row(row["name"], settings, size, str(row["MFLOP per image"]))
    Console().print(table)
