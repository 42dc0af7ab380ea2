"""What a run leads to: `fedlgd report`, `watch`, `open`, `predict`, `export`. The first two do not import torch."""

import statistics
import threading
import webbrowser
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedlgd.cli.options import ExportOptions, OpenOptions, PredictOptions, ReportOptions, WatchOptions
from fedlgd.cli.terminal import complain, folded, print_accuracy, print_json, show_table
from fedlgd.core.errors import DataError, FedlgdError, message, similar_path
from fedlgd.core.files import writing
from fedlgd.core.text import duration, number_of_bytes, plural
from fedlgd.report.accuracy import marked_accuracy
from fedlgd.report.claims import mismatches, undeclared
from fedlgd.report.classes import class_facts
from fedlgd.report.groups import group_runs
from fedlgd.report.page import TABLES, find_runs, write_figures, write_report
from fedlgd.report.privacy import promise_sentence
from fedlgd.report.tables import table_formats
from fedlgd.report.watch import HOST, Watcher, WatchServer
from fedlgd.rundir.read import read_run, read_runs

if TYPE_CHECKING:
    from fedlgd.runs.result import Predictions, Result

MAX_CLASS_COLUMNS = 6  # classes with a column of their own in the table of predictions


def report(given: ReportOptions) -> None:
    wanted = (("CSV", given.csv), ("LaTeX", given.latex), ("Markdown", given.markdown))
    forms = [form for form, chosen in wanted if chosen] or (["CSV"] if given.table else [])
    if given.baseline and forms != ["LaTeX"]:
        raise FedlgdError("baseline-without-latex", baseline=given.baseline)
    if forms:
        print_table(given, forms, alone=not (given.out or given.figures or given.json))
        return
    folders = folders_of(given.runs)
    target, figures = given.out or given.runs[0] / "report.html", given.figures
    page = write_report(folders, target)
    with writing(str(figures), "Choose another folder with --figures"):
        drawn = write_figures(folders, figures) if figures else []
    if given.json:
        print_json({"report": str(page), "runs": len(folders), "figures": [*map(str, drawn)]})
        return
    typer.echo(f"Report: {page}")
    if figures:
        typer.echo(f"Figures: {plural(len(drawn), 'file')} in {figures}")


def print_table(given: ReportOptions, forms: list[str], alone: bool) -> None:
    """Print one table of the report as CSV, LaTeX or Markdown; no page is written. Marks are in LaTeX only."""
    if len(forms) > 1 or not alone:
        raise FedlgdError("table-alone", form=forms[0].lower())
    runs, unreadable = read_runs(folders_of(given.runs))
    name, groups = given.table or "accuracy", group_runs(runs)
    marked = name == "accuracy" and forms == ["LaTeX"]
    table = marked_accuracy(groups, given.baseline) if marked else TABLES[name](groups)
    if table is None:
        raise FedlgdError("no-such-table", table=name)
    for error in unreadable:
        typer.echo(f"This run cannot be read: {error}", err=True)
    typer.echo(table_formats(table)[forms[0]].rstrip("\n"))


def folders_of(paths: list[Path]) -> list[Path]:
    if missing := [path for path in paths if not path.exists()]:
        hint = similar_path(missing[0], folders_only=True) or "; give a run folder, or a folder of run folders"
        raise FedlgdError("no-run-folder", folders=[str(path) for path in missing], hint=hint)
    return find_runs(paths)


def watch(given: WatchOptions) -> None:
    paths = given.runs
    for path in paths:
        if path.exists() and not path.is_dir():
            raise FedlgdError("run-folder-is-file", path=str(path))
    with _server(paths, given.port) as server:
        typer.echo(f"Watching {', '.join(map(str, paths))} at {server.url} (stop with Ctrl-C)")
        if missing := [str(path) for path in paths if not path.exists()]:
            complain(message("no-run-folder", folders=missing, hint=" yet; waiting for a run in it"))
        if given.open_page:
            threading.Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            typer.echo("\nStopped watching; the runs continue.", err=True)


def _server(paths: list[Path], port: int) -> WatchServer:
    try:
        return WatchServer(Watcher(paths), port)
    except OSError as error:
        raise FedlgdError("port-taken", port=port, host=HOST, reason=error.strerror) from error


def open_(given: OpenOptions) -> None:
    from fedlgd.runs.result import how_to_go_on, open_run

    result = open_run(given.run)
    spent, run = result.spent, read_run(given.run)
    manifest = run.manifest
    if given.json:
        costs = {**spent._asdict(), "cpu": dict(spent.cpu), "seconds": dict(spent.seconds)}
        (group,) = group_runs([run])
        told = {
            "extended": [asdict(each) for each in manifest.extended],
            "code_changed": [asdict(each) for each in manifest.code_changed],
            "mismatches": [asdict(each) for each in mismatches(run)],
            "promise": asdict(manifest.promise) if manifest.promise else None,
        }
        print_json({**_about(result), **class_facts([group], group), "cost": costs, **told})
        return
    typer.echo(f"{result.label} on {manifest.data.name}: {result.rounds} of {plural(result.planned, 'round')}")
    for each in manifest.extended:
        typer.echo(f"Extended from {each.rounds_before} to {each.rounds} rounds after round {each.after_round}")
    for change in manifest.code_changed:
        typer.echo(f"Went on with changed code after round {change.after_round}: {change.file}")
    if result.when:
        typer.echo(f"The accuracy is that{result.when}, the last one that was evaluated")
    if result.accuracy:
        print_accuracy(group_runs([run]), "Accuracy (%)")
    else:
        typer.echo("No round has been evaluated yet.")
    cpu, busy = (", ".join(f"{phase} {duration(t)}" for phase, t in times.items()) for times in spent[1:3])
    typer.echo(f"CPU time: {duration(sum(spent.cpu.values()))} ({cpu})")
    if spent.wall is None:
        typer.echo(
            f"Wall time: not recorded; added up over sites: {duration(sum(spent.seconds.values()))} ({busy})"
        )
    else:
        typer.echo(f"Wall time: {duration(spent.wall)}")
    typer.echo(f"Sent: {number_of_bytes(spent.bytes_up)} by sites, {number_of_bytes(spent.bytes_down)} to sites")
    if promised := promise_sentence(run):
        typer.echo(folded(f"Privacy: {promised}"))
    for note in undeclared(group_runs([run])):
        typer.echo(folded(str(note)))
    typer.echo(how_to_go_on(result, manifest.command))


def _about(result: "Result") -> dict[str, object]:
    return {
        "method": result.label,
        "rounds": result.rounds,
        "planned": result.planned,
        "evaluated": result.evaluated,
        "accuracy": result.accuracy,
        "mean": statistics.fmean(result.accuracy.values()) if result.accuracy else None,
        "classes": result.preparation.classes,
        "folder": str(result.folder),
    }


def predict(given: PredictOptions) -> None:
    from fedlgd.runs.result import open_run

    unreadable = list[DataError]()
    predictions = open_run(given.run).predict(given.images, given.site, unreadable)
    if given.json:
        print_json(predictions.plain())
    else:
        _show_predictions(predictions)
    for error in unreadable:
        complain(f"not classified: {error}")
    if unreadable:
        raise typer.Exit(2)


def _show_predictions(predictions: "Predictions") -> None:
    classes = predictions.classes
    few = len(classes) <= MAX_CLASS_COLUMNS
    names = predictions.rows()
    shares = ([f"{p:.3f}" for p in values] for values in predictions.probabilities.tolist())
    rows = [(*row[:2], *all_shares) if few else row for row, all_shares in zip(names, shares, strict=True)]
    numbers = classes if few else ("probability", "next")
    show_table(("image", "class", *numbers), rows, numbers=numbers)


def export(given: ExportOptions) -> None:
    from fedlgd.runs.result import open_run

    result = open_run(given.run)
    folder = given.out or given.run / "export"
    written = result.export(folder, given.site, given.onnx)
    if given.json:
        print_json([str(file) for file in written])
        return
    for file in written:
        if file.parent == folder:
            typer.echo(file)
    if result.virtual:
        whose = f"{plural(len(result.virtual), 'site')}, made from private images: each set belongs to its site"
        typer.echo(f"{folder / 'virtual'}: virtual images of {whose}")
    if not (folder / "model.onnx").exists():
        typer.echo("No ONNX: pip install 'fedlgd[export]' adds it", err=True)
    typer.echo(f"Use it without fedlgd: python {folder / 'predict.py'} IMAGE...")
