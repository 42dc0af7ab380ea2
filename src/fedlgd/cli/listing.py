"""`fedlgd methods`, `fedlgd nets` and `fedlgd data list`: what can be chosen, and its settings."""

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

from fedlgd.cli.options import ListOptions, MethodsOptions, NetsOptions
from fedlgd.core.settings import SettingInfo, describe_settings
from fedlgd.core.text import plural
from fedlgd.data.suites import SUITES, Suite, data_home
from fedlgd.methods import registry
from fedlgd.nets.registry import NETS, build_net, describe_net, settings_of

MAX_LISTED = 6  # values of a list that are shown as a default
USUAL_PRESETS = ("paper", "quick", "strong")


def methods(given: MethodsOptions) -> None:
    if given.name is not None:
        _show_method(given.name, given.json)
        return
    rows = [describe_method(name) for name in registry.names()]
    if given.json:
        typer.echo(jsonlib.dumps(rows))
        return
    table = _table("method", "about")
    for row in rows:
        table.add_row(row["name"], escape(row["about"]))
    parts = _table("part", "about")
    for name, part in registry.stacks().items():
        parts.add_row(f"+{name}", escape(part.about))
    Console().print(table, "Parts are added to a method with +, as in scaffold+anchors:", parts, sep="\n")
    own = {row["name"]: [name for name in row["presets"] if name not in USUAL_PRESETS] for row in rows}
    more = [f"{name} also {', '.join(presets)}" for name, presets in own.items() if presets]
    typer.echo(f"Presets: {', '.join(USUAL_PRESETS)}; {'; '.join(more)}.")
    typer.echo("fedlgd methods NAME shows the settings of a method.")


def suites(given: ListOptions) -> None:
    if given.json:
        typer.echo(jsonlib.dumps([describe_suite(name) for name in SUITES]))
        return
    table = _table("name", "about", "state")
    for name, suite in SUITES.items():
        table.add_row(name, escape(suite.about), "ready" if not suite.missing else "missing")
    Console().print(table)
    for name, suite in SUITES.items():
        if suite.missing:
            typer.echo(f"{name}: " + (fetch_command(suite) or f"needs {', '.join(suite.missing)} in the data home"))
    typer.echo(f"data home: {data_home()}\nfedlgd data show NAME shows the settings and the sites of a federation.")


def describe_suite(name: str) -> dict[str, Any]:
    suite = SUITES[name]
    return {
        "name": name,
        "about": suite.about,
        "ready": not suite.missing,
        "missing": suite.missing,
        "fetch": fetch_command(suite),
        "settings": msgspec.to_builtins(suite.settings()),
    }


def fetch_command(suite: Suite) -> str:
    """The command that downloads missing files; empty if none are missing or none can be downloaded."""
    return f"fedlgd data fetch {suite.fetch}" if suite.missing and suite.fetch else ""


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=column != "about")
    return table


def describe_method(name: str) -> dict[str, Any]:
    cls, settings = registry.find_method(name), registry.recipe(name).settings
    about = vars(cls).get("about") or inspect.getdoc(sys.modules[cls.__module__]) or ""
    return {
        "name": name,
        "about": about.partition("\n")[0],
        "presets": list(settings.presets),
        "settings": msgspec.to_builtins(settings()),
        "description": inspect.getdoc(cls) or "",
        "preset_settings": msgspec.to_builtins(settings.presets),
        "setting_details": _plain(describe_settings(settings)),
    }


def _show_method(name: str, json: bool) -> None:
    row, console = describe_method(name), Console()
    if json:
        typer.echo(jsonlib.dumps(row))
        return
    console.print(f"{name}: {row['about']}\n\n{row['description']}\n", markup=False, highlight=False)
    console.print(settings_table(describe_settings(registry.recipe(name).settings)))
    presets = Table("preset", "settings", title="Presets: --preset NAME", show_lines=True)
    for preset, settings in row["preset_settings"].items():
        lines = [f"{path} = {jsonlib.dumps(value)}" for path, value in settings.items()]
        presets.add_row(preset, escape("\n".join(lines) or "the defaults"))
    if presets.row_count:
        console.print(presets)


def settings_table(settings: Iterable[SettingInfo], owner: str = "") -> Table:
    """Path, default, help line and allowed values."""
    table = Table(Column("setting", no_wrap=True), Column("default", max_width=20), "help", box=box.SIMPLE_HEAD)
    table.title = f"Settings of {owner}: --set setting=value" if owner else "Settings: --set setting=value"
    for info in settings:
        default, about = info.default, f"{info.help} ({info.allowed})" if info.allowed else info.help
        shown = jsonlib.dumps(default)
        if isinstance(default, tuple | list) and len(default) > MAX_LISTED:
            shown, about = plural(len(default), "value"), f"{about} Default: {', '.join(map(str, default))}"
        table.add_row(info.path, escape("not set" if default is None else shown), escape(about))
    return table


def _plain(settings: Iterable[SettingInfo]) -> list[dict[str, Any]]:
    """Settings as they are written to JSON."""
    return [{**asdict(info), "allowed": info.allowed} for info in settings]


def nets(given: NetsOptions) -> None:
    built = {name: build_net(name, (3, 28, 28), 10) for name in NETS}
    if given.json:
        rows = [
            {
                "name": name,
                "settings": settings_of(name),
                "parameters": net.size,
                "MFLOP per image": round(net.flops / 1e6, 1),
                "setting_details": _plain(describe_net(name)),
            }
            for name, net in built.items()
        ]
        typer.echo(jsonlib.dumps(rows))
        return
    table = Table("name", "parameters", "MFLOP per image", title="for 28x28 images, 10 classes")
    for name, net in built.items():
        table.add_row(name, f"{net.size:,}".replace(",", " "), f"{net.flops / 1e6:.1f}")
    Console().print(table, *(settings_table(describe_net(name), name) for name in NETS))
    typer.echo("Your own: --net package.module:Class")
