"""`fedlgd methods`, `nets` and `data list`: what can be chosen; `fedlgd data show`, `check` and `fetch`."""

import difflib
import inspect
import json as jsonlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from fedlgd.cli import options
from fedlgd.cli.progress import progress
from fedlgd.cli.terminal import folded, plain_warnings
from fedlgd.core.errors import DataError, SettingError
from fedlgd.core.files import writing
from fedlgd.core.settings import SettingInfo, describe_settings
from fedlgd.core.text import plural
from fedlgd.data.describe import Statistics, sheet_of_sites, spark, statistics_of
from fedlgd.data.federation import Federation
from fedlgd.data.own.check import Checked, check_data
from fedlgd.data.own.sites import Problem
from fedlgd.data.own.suite import Folders
from fedlgd.data.suites import SUITES, DataChoice, Suite, data_home
from fedlgd.methods import registry
from fedlgd.nets.registry import NETS, build_net, describe_net, settings_of
from fedlgd.runs.config import resolve
from fedlgd.runs.parse import parse_assignment
from fedlgd.runs.shift import ALL, Draws, Measured, measure_shift

if TYPE_CHECKING:
    from fedlgd.data.fetch.prepare import FetchOutcome

MAX_LISTED = 6  # values of a list that are shown as a default
USUAL_PRESETS = ("paper", "quick", "strong")
MAX_ALIKE = 3  # problems of one kind at one site in the table of `check`
MAX_MATRIX = 12  # sites; more are summarised
MAX_PAIRS = 5  # nearest and farthest pairs in a summary
CHANNELS = ("red", "green", "blue")


def methods(given: options.MethodsOptions) -> None:
    if given.name is not None:
        _show_method(given.name, given.json)
        return
    rows = [describe_method(name) for name in registry.names()]
    if given.json:
        typer.echo(jsonlib.dumps(rows))
        return
    table = _listing("method", "about")
    for row in rows:
        table.add_row(row["name"], escape(row["about"]))
    parts = _listing("part", "about")
    for name, part in registry.stacks().items():
        parts.add_row(f"+{name}", escape(part.about))
    Console().print(table, "Parts are added to a method with +, as in scaffold+anchors:", parts, sep="\n")
    own = {row["name"]: [name for name in row["presets"] if name not in USUAL_PRESETS] for row in rows}
    more = [f"{name} also {', '.join(presets)}" for name, presets in own.items() if presets]
    typer.echo(f"Presets: {', '.join(USUAL_PRESETS)}; {'; '.join(more)}.")
    typer.echo("fedlgd methods NAME shows the settings of a method.")


def suites(given: options.ListOptions) -> None:
    if given.json:
        typer.echo(jsonlib.dumps([describe_suite(name) for name in SUITES]))
        return
    table = _listing("name", "about", "state")
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


def _listing(*columns: str) -> Table:
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


def nets(given: options.NetsOptions) -> None:
    built = {name: build_net(name, (3, 28, 28), 10) for name in NETS}
    if given.json:
        rows = []
        for name, net in built.items():
            row = {"name": name, "settings": settings_of(name), "parameters": net.size}
            row |= {"MFLOP per image": round(net.flops / 1e6, 1), "setting_details": _plain(describe_net(name))}
            rows.append(row)
        typer.echo(jsonlib.dumps(rows))
        return
    table = Table("name", "parameters", "MFLOP per image", title="for 28x28 images, 10 classes")
    for name, net in built.items():
        table.add_row(name, f"{net.size:,}".replace(",", " "), f"{net.flops / 1e6:.1f}")
    Console().print(table, *(settings_table(describe_net(name), name) for name in NETS))
    typer.echo("Your own: --net package.module:Class")


def chosen_data(name: str | None, folder: Path | None) -> dict[str, str | None]:
    """The data settings for a federation's name, or for a path given as `--data` or instead of a name."""
    if folder is not None and name is not None:
        raise SettingError("data-given-twice", name=name, folder=folder)
    if name is not None and name not in SUITES and (os.sep in name or Path(name).exists()):
        folder = Path(name)
    if folder is not None:
        return {"data.name": "folders", "data.path": str(folder.expanduser().absolute())}
    if name is not None and name not in SUITES and ":" not in name:
        folders = [each.name for each in Path().iterdir() if each.is_dir()]
        near = difflib.get_close_matches(name, [*folders, *SUITES], 1)
        if near and near[0] in folders:  # a misspelled folder rather than a misspelled federation
            raise DataError("no-such-folder", name=name, near=near[0])
    return {"data.name": name}


def show(given: options.ShowOptions) -> None:
    settings = {**chosen_data(given.name, None), **dict(map(parse_assignment, given.settings or ()))}
    chosen = resolve({}, settings).data
    if not given.json and (found := describe_settings(chosen.suite, "data.")):
        Console().print(settings_table(found))
    plain_warnings()
    with progress(given.silent):
        federation = chosen.open()
        sites = [statistics_of(site) for site in federation.sites]
        how = Draws(size=given.size, draws=given.draws, unbiased=not given.biased)
        wanted = given.shift or given.per_class
        shifts = measure_shift(federation, how, given.seed, given.per_class) if wanted else []
    if given.json:
        head = {"name": federation.name, "note": federation.note, "classes": federation.classes}
        body = {"sites": [asdict(site) for site in sites], "shift": [shift.plain() for shift in shifts]}
        typer.echo(jsonlib.dumps({**head, "shape": federation.shape, **body}))
    else:
        Console().print(_counts(federation, sites), _colours(sites), *shift_tables(shifts))
    if given.sheet:
        with writing(given.sheet, "Choose another file with --sheet"):
            sheet_of_sites(federation).save(given.sheet, "PNG")
        typer.echo(f"Contact sheet: {given.sheet}", err=given.json)


def _counts(federation: Federation, sites: Sequence[Statistics]) -> Table:
    size = f"{plural(len(sites), 'site')}, {plural(len(federation.classes), 'class')}, {federation.shape}"
    table = Table(title=escape(f"{federation.name}: {size}"), caption=escape(federation.note))
    for column in ("site", "train", "test", "train per class", "note"):
        table.add_column(column, justify="right" if column in ("train", "test") else "left")
    for s in sites:
        numbers = " ".join(map(str, s.train_per_class))
        if len(set(s.train_per_class)) == 1:
            numbers = f"{s.train_per_class[0]} each"
        table.add_row(escape(s.site), str(s.train), str(s.test), numbers, escape(s.note))
    return table


def _colours(sites: Sequence[Statistics]) -> Table:
    table = Table(title="colours of the training images: mean, std, histogram", box=box.SIMPLE_HEAD)
    for column in ("site", *CHANNELS):
        table.add_column(column, no_wrap=column != "site")
    for s in sites:
        cells = []
        for colour, mean, std, shares in zip(CHANNELS, s.mean, s.std, s.histogram, strict=True):
            pairs = zip(shares[::2], shares[1::2], strict=True)  # half the bins, so that three fit 80 columns
            cells.append(f"{mean:.2f} {std:.2f} [{colour}]{spark(tuple(a + b for a, b in pairs))}[/]")
        table.add_row(escape(s.site), *cells)
    return table


def shift_tables(found: Sequence[Measured]) -> Iterator[Table]:
    for each in found:
        if each.among == ALL:
            yield _matrix(each) if len(each.shift.sites) <= MAX_MATRIX else _summary(each)
    if any(each.among != ALL for each in found):
        yield _by_class(found)


def _title(found: Measured) -> str:
    shift = found.shift
    estimator = f"squared RBF-MMD ({'unbiased' if shift.unbiased else 'biased'})"
    draws = plural(shift.draws, "draw")
    return f"shift in {found.space}: {estimator}, mean ± std of {draws} of {shift.size} images per site"


def _matrix(found: Measured) -> Table:
    shift = found.shift
    caption = f"mean over pairs {shift.average:.3f}; diagonal: two draws from the same site, the noise level"
    table = Table("", *map(escape, shift.sites), title=_title(found), caption=caption)
    for i, name in enumerate(shift.sites):
        row = [f"{m:.3f} ± {s:.3f}" for m, s in zip(shift.mean[i], shift.std[i], strict=True)]
        row[i] = f"[dim]{row[i]}[/]"
        table.add_row(escape(name), *row)
    return table


def _summary(found: Measured) -> Table:
    shift = found.shift
    means = f"mean over pairs {shift.average:.3f}, two draws from the same site {shift.zero:.3f}"
    caption = f"{plural(len(shift.sites), 'site')}; {means}; all pairs: --json"
    table = Table("", "site", "site", "MMD²", title=_title(found), caption=caption)
    ranked = sorted(shift.pairs, key=lambda pair: pair[2])
    for word, pairs in (("nearest", ranked[:MAX_PAIRS]), ("farthest", ranked[-MAX_PAIRS:])):
        for a, b, mean, std in pairs:
            table.add_row(word, escape(a), escape(b), f"{mean:.3f} ± {std:.3f}")
    return table


def _by_class(found: Sequence[Measured]) -> Table:
    table = Table("space", "among", "images", "mean over pairs", "same site", "nearest pair", "farthest pair")
    for each in found:
        shift = each.shift
        ranked = sorted(shift.pairs, key=lambda pair: pair[2])
        pairs = [escape(f"{a}, {b}: {mean:.3f}") for a, b, mean, _ in (ranked[0], ranked[-1])]
        numbers = (f"{shift.size} per site", f"{shift.average:.3f}", f"{shift.zero:.3f}")
        table.add_row(each.space, escape(each.among), *numbers, *pairs)
    return table


def check(given: options.CheckOptions) -> None:
    settings = {"data.name": "folders", **dict(map(parse_assignment, given.settings or ()))}
    how = resolve({}, settings).data.suite
    assert isinstance(how, Folders)
    with progress(given.silent):
        checked = check_data(given.folder.expanduser(), given.least, how=how)
    errors, warnings = checked.count("error"), checked.count("warning")
    if given.json:
        found = {"sites": checked.sites, "images": checked.images, "errors": errors, "warnings": warnings}
        typer.echo(jsonlib.dumps({**found, "problems": [asdict(problem) for problem in checked.problems]}))
    else:
        print_checked(checked)
    raise typer.Exit(1 if errors or (given.strict and warnings) else 0)


def checked_site(path: Path, site: str, settings: Mapping[str, Any], quiet: bool) -> Folders:
    """The images of one real site; its problems are printed, and errors end the command."""
    how = resolve({}, {**settings, "data.name": "folders", "data.path": str(path)}).data.suite
    assert isinstance(how, Folders)
    with progress(quiet):
        checked = check_data(path, only=site, how=how)
    if not quiet or checked.count("error"):
        print_checked(checked, err=True)
    if checked.count("error"):
        raise typer.Exit(1)
    return how


@contextmanager
def explained(chosen: DataChoice, quiet: bool) -> Iterator[None]:
    """After an error in a folder of images, print all its problems, as `fedlgd data check` does."""
    try:
        yield
    except DataError as error:
        how = chosen.suite
        if quiet or not isinstance(how, Folders) or not Path(how.path).exists():
            raise
        with progress(quiet):
            problems = check_data(Path(how.path), how=how).problems
        if len(problems) < 2:
            raise
        typer.echo("\n".join(_listed(problems)), err=True)
        raise DataError("problems-above", error=error) from error


def print_checked(checked: Checked, err: bool = False) -> None:
    """The problems, and their number."""
    for line in _listed(checked.problems):
        typer.echo(line, err=err)
    found = ", ".join(plural(checked.count(kind), kind) for kind in ("error", "warning"))
    typer.echo(f"{plural(checked.sites, 'site')}, {plural(checked.images, 'readable image')}: {found}", err=err)


def _listed(problems: Sequence[Problem]) -> Iterator[str]:
    """For each kind at each site: the first problems, the number of the others, and what to do."""
    kinds: dict[tuple[str, str, str], list[Problem]] = {}
    for problem in problems:
        kinds.setdefault((problem.severity, problem.site, problem.way_out), []).append(problem)
    for (severity, site, way_out), found in kinds.items():
        first, *others = (f"{each.file} {each.problem}".strip() for each in found[:MAX_ALIKE])
        yield folded(f"{severity}{f' at {site}' if site else ''}: {first}", "  ")
        for text in others:
            yield folded(f"  {text}", "    ")
        if len(found) > MAX_ALIKE:
            yield f"  and {len(found) - MAX_ALIKE} more of this kind (--json lists all)"
        if way_out:
            yield folded(f"  What to do: {way_out}", "    ")


def fetch(given: options.FetchOptions) -> None:
    """Print the terms of use first; a data set that fails does not stop the others."""
    from fedlgd.data.fetch.prepare import attempt, find_datasets  # here, because runs import this module too

    datasets, home = find_datasets(given.names), data_home()
    if given.originals and not given.originals.is_dir():
        raise DataError("not-a-folder-of-originals", folder=given.originals)
    for dataset in datasets:
        typer.echo(f"{dataset.name}: {dataset.what}. Terms: {dataset.terms}; {dataset.page}", err=True)
    outcomes = []
    how = {"given": given.originals, "again": given.again, "keep": given.keep}
    try:
        for dataset in datasets:
            with progress(given.quiet, in_bytes=True):
                outcomes.append(attempt(dataset, home, named=dataset.name in given.names, **how))
            _print_outcome(outcomes[-1], given.json)
    except KeyboardInterrupt:
        typer.echo("Interrupted. Re-run the same command to resume.", err=True)
        raise typer.Exit(130) from None
    if given.json:
        typer.echo(jsonlib.dumps([asdict(outcome) for outcome in outcomes]))
    if not all(outcome.ready or outcome.optional for outcome in outcomes):
        raise typer.Exit(2)


def _print_outcome(outcome: "FetchOutcome", json: bool) -> None:
    """The path of a ready data set to stdout; what remains to be done to stderr."""
    if outcome.ready:
        state = "prepared" if outcome.state == "prepared" else "already there (--again prepares it again)"
        if not json:
            typer.echo(f"{outcome.name}: {state}: {', '.join(outcome.paths)}")
        return
    state = "manual download needed" if outcome.state == "by hand" else "failed"
    optional = " (optional: the suite renders a substitute)" if outcome.optional else ""
    typer.echo(f"{outcome.name}: {state}{optional}: {outcome.note}", err=True)
