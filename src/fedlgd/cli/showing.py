"""The commands that show what there is."""

import json as jsonlib
import sys
from pathlib import Path
from typing import Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from fedlgd.core.errors import FedlgdError
from fedlgd.methods import registry
from fedlgd.nets.registry import NETS, build_net, settings_of
from fedlgd.report.page import write_figures, write_report
from fedlgd.report.read import run_folders
from fedlgd.runs.files import saving


def methods(json: bool) -> None:
    rows = []
    for name in registry.names():
        cls = registry.find(name)
        about = (sys.modules[cls.__module__].__doc__ or "").strip().split("\n")[0]
        rows.append(
            {
                "name": name,
                "about": about,
                "presets": list(cls.presets),
                "settings": msgspec.to_builtins(cls()),
            }
        )
    _print(rows, json, ("name", "about", "presets"))


def nets(json: bool) -> None:
    rows = [
        {
            "name": name,
            "settings": settings_of(name),
            "parameters": (net := build_net(name, (3, 28, 28), 10)).size,
            "MFLOP per image": round(net.flops / 1e6, 1),
        }
        for name in NETS
    ]
    _print(rows, json, ("name", "settings", "parameters", "MFLOP per image"), "for 28x28 images, 10 classes")


def report(paths: list[Path], out: Path | None, figures: Path | None, json: bool) -> None:
    folders = [run for path in paths for run in run_folders(path)]
    if not folders:
        raise FedlgdError(f"no run in {', '.join(map(str, paths))}; a run folder holds manifest.json")
    target = out or paths[0] / "report.html"
    with saving(str(target)):
        page = write_report(folders, target)
    with saving(str(figures)):
        drawn = write_figures(folders, figures) if figures else []
    if json:
        typer.echo(jsonlib.dumps({"report": str(page), "runs": len(folders), "figures": [*map(str, drawn)]}))
        return
    typer.echo(f"Report: {page}")
    if figures:
        typer.echo(f"Figures: {len(drawn)} files in {figures}")


def _print(rows: list[dict[str, Any]], json: bool, columns: tuple[str, ...], title: str = "") -> None:
    if json:
        typer.echo(jsonlib.dumps(rows))
        return
    table = Table(title=title or None, show_lines=True)
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*(_cell(row[column]) for column in columns))
    Console().print(table)


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{key} = {item}" for key, item in value.items())
    if isinstance(value, list):
        return " ".join(map(str, value))
    return f"{value:,}".replace(",", " ") if isinstance(value, int) else str(value)
