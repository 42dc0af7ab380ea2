"""`fedlgd open`, `fedlgd predict` and `fedlgd export`: what a run leads to."""

import json as jsonlib
import statistics
from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedlgd.cli.options import ExportOptions, PredictOptions
from fedlgd.core.files import read_json
from fedlgd.report.formats import number_of_bytes
from fedlgd.runs.open import how_to_go_on, open_run
from fedlgd.runs.result import Result

MOST_COLUMNS = 6  # classes with a column of their own in the table of predictions


def open_(folder: Path, json: bool) -> None:
    result = open_run(folder)
    spent, manifest = result.spent, read_json(folder / "manifest.json")
    if json:
        costs = {**spent._asdict(), "cpu": dict(spent.cpu), "seconds": dict(spent.seconds)}
        typer.echo(jsonlib.dumps({**_about(result), "cost": costs, "extended": manifest.get("extended", [])}))
        return
    typer.echo(f"{result.label} on {manifest['data']['name']}: {result.rounds} of {result.planned} rounds")
    for each in manifest.get("extended", []):
        before, after = each["rounds_before"], each["rounds"]
        typer.echo(f"Extended from {before} to {after} rounds after round {each['after_round']}")
    Console().print(_accuracy(result))
    cpu, wall = (", ".join(f"{phase} {_time(t)}" for phase, t in times.items()) for times in spent[1:3])
    typer.echo(f"CPU time: {_time(sum(spent.cpu.values()))} ({cpu})")
    typer.echo(f"Wall time: {_time(sum(spent.seconds.values()))} ({wall})")
    typer.echo(f"Sent: {number_of_bytes(spent.bytes_up)} by sites, {number_of_bytes(spent.bytes_down)} to sites")
    typer.echo(how_to_go_on(result, manifest["command"]))


def _about(result: Result) -> dict[str, object]:
    return {
        "method": result.label,
        "rounds": result.rounds,
        "planned": result.planned,
        "accuracy": result.accuracy,
        "mean": statistics.fmean(result.accuracy.values()) if result.accuracy else None,
        "classes": result.preparation.classes,
        "folder": str(result.folder),
    }


def _accuracy(result: Result) -> Table:
    table = Table("site", title="Accuracy (%)")
    table.add_column("accuracy", justify="right")
    for site, accuracy in result.accuracy.items():
        table.add_row(escape(site), f"{100 * accuracy:.1f}")
    if result.accuracy:
        table.add_row("mean", f"{100 * statistics.fmean(result.accuracy.values()):.1f}", style="bold")
    return table


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


def predict(given: PredictOptions) -> None:
    predictions = open_run(given.run).predict(given.images, given.site)
    if given.json:
        typer.echo(jsonlib.dumps(predictions.plain()))
        return
    classes = predictions.classes
    few = len(classes) <= MOST_COLUMNS
    table = Table("image", "class")
    for column in classes if few else ("probability", "next"):
        table.add_column(escape(column), justify="right")
    for row, values in zip(predictions.rows(), predictions.probabilities.tolist(), strict=True):
        cells = [f"{p:.3f}" for p in values] if few else list(row[2:])
        table.add_row(*map(escape, (row[0], row[1], *cells)))
    Console().print(table)


def export(given: ExportOptions) -> None:
    result = open_run(given.run)
    folder = given.out or given.run / "export"
    written = result.export(folder, given.site, given.onnx)
    if given.json:
        typer.echo(jsonlib.dumps([str(file) for file in written]))
        return
    for file in written:
        if file.parent == folder:
            typer.echo(file)
    if result.virtual:
        whose = f"{len(result.virtual)} sites, made from private images: each set belongs to its site"
        typer.echo(f"{folder / 'virtual'}: virtual images of {whose}")
    if not (folder / "model.onnx").exists():
        typer.echo("No ONNX: pip install 'fedlgd[export]' adds it", err=True)
    typer.echo(f"Use it without fedlgd: python {folder / 'predict.py'} IMAGE...")
