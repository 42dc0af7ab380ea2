"""`fedlgd data`: list, home, show, check, example and fetch."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
import typer

from fedlgd.cli import options
from fedlgd.cli.common import chosen_data
from fedlgd.cli.methods import show_settings
from fedlgd.cli.progress import progress
from fedlgd.cli.terminal import folded, plain_warnings, print_json, show_power, show_table
from fedlgd.core import homes
from fedlgd.core.errors import DataError
from fedlgd.core.files import writing
from fedlgd.core.settings import describe_settings
from fedlgd.core.text import plural
from fedlgd.data.describe import Statistics, sheet_of_sites, spark, statistics_of
from fedlgd.data.federation import Federation
from fedlgd.data.own.check import Checked, check_data
from fedlgd.data.own.layouts import Problem
from fedlgd.data.own.suite import Folders
from fedlgd.data.suites import SUITES, Suite
from fedlgd.rundir.intervals import detectable_gap
from fedlgd.runs.config import resolve
from fedlgd.runs.parse import parse_assignment
from fedlgd.runs.shift import ALL, Draws, Measured, measure_shift

if TYPE_CHECKING:
    from fedlgd.data.fetch.prepare import FetchOutcome

MAX_ALIKE = 3  # problems of one kind at one site in the table of `check`
MAX_MATRIX = 12  # sites; more are summarised
MAX_PAIRS = 5  # nearest and farthest pairs in a summary


def suites(given: options.ListOptions) -> None:
    if given.json:
        print_json([describe_suite(name) for name in SUITES])
        return
    rows = ((name, suite.about, "missing" if suite.missing else "ready") for name, suite in SUITES.items())
    show_table(("name", "about", "state"), rows, numbers=())
    for name, suite in SUITES.items():
        if suite.missing:
            typer.echo(f"{name}: " + (fetch_command(suite) or f"needs {', '.join(suite.missing)} in the data home"))
    typer.echo(
        f"data home: {homes.data_home()}\nfedlgd data show NAME shows the settings and the sites of a federation."
    )


def show_homes(given: options.HomeOptions) -> None:
    found = {"data": homes.data_home(), "cache": homes.cache_home(), "state": homes.state_home()}
    ledgers = [str(folder) for home in homes.earlier_state_homes() if (folder := home / "privacy").is_dir()]
    if given.json:
        print_json({**{name: str(home) for name, home in found.items()}, "earlier_ledgers": ledgers})
        return
    rows = (
        ("data", "data sets; runs only read them", homes.DATA_VARIABLE),
        ("cache", "prepared images and virtual sets; can be deleted", homes.CACHE_VARIABLE),
        ("state", "privacy ledgers and their secrets; keep a copy", homes.STATE_VARIABLE),
    )
    show_table(("home", "what", "set with"), rows, numbers=())
    for name, home in found.items():
        typer.echo(f"{name}: {home}{'' if home.exists() else ' (not made yet)'}")
    for earlier in ledgers:
        typer.echo(folded(f"{earlier} has ledgers of an earlier version. A private run takes them over."))


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


def show(given: options.ShowOptions) -> None:
    settings = {**chosen_data(given.name, None), **dict(map(parse_assignment, given.settings or ()))}
    chosen = resolve({}, settings).data
    if not given.json and (found := describe_settings(chosen.suite, "data.")):
        show_settings(found)
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
        print_json({**head, "shape": federation.shape, **body})
    else:
        _show_sites(federation, sites)
        _show_shifts(shifts)
    if given.sheet:
        with writing(given.sheet, "Choose another file with --sheet"):
            sheet_of_sites(federation).save(given.sheet, "PNG")
        typer.echo(f"Contact sheet: {given.sheet}", err=given.json)


def _show_sites(federation: Federation, sites: Sequence[Statistics]) -> None:
    """Numbers of images, and colours with half of the bins, so that three histograms fit 80 columns."""
    counts, colours = [], []
    for s in sites:
        equal = len(set(s.train_per_class)) == 1
        per_class = f"{s.train_per_class[0]} each" if equal else " ".join(map(str, s.train_per_class))
        counts.append((s.site, str(s.train), str(s.test), per_class, s.note))
        bins = (spark(tuple(map(sum, zip(each[::2], each[1::2], strict=True)))) for each in s.histogram)
        cells = zip(s.mean, s.std, bins, strict=True)
        colours.append((s.site, *(f"{mean:.2f} {std:.2f} {shares}" for mean, std, shares in cells)))
    size = f"{plural(len(sites), 'site')}, {plural(len(federation.classes), 'class')}, {federation.shape}"
    heads, numbers = ("site", "train", "test", "train per class", "note"), ("train", "test")
    notes = [federation.note] if federation.note else []
    show_table(heads, counts, f"\n{federation.name}: {size}", numbers, notes)
    title = "\nColours of the training images: mean, std, histogram"
    show_table(("site", "red", "green", "blue"), colours, title, numbers=())


def _show_shifts(found: Sequence[Measured]) -> None:
    """Between all images a matrix, or for many sites the extremes; then the extremes of each class."""
    for each in found:
        if each.among == ALL:
            (_show_matrix if len(each.shift.sites) <= MAX_MATRIX else _show_extremes)(each)
    if all(each.among == ALL for each in found):
        return
    rows = []
    for each in found:
        shift, ranked = each.shift, sorted(each.shift.pairs, key=itemgetter(2))
        pairs = [f"{a}, {b}: {mean:.3f}" for a, b, mean, _ in (ranked[0], ranked[-1])]
        numbers = (f"{shift.size} per site", f"{shift.average:.3f}", f"{shift.zero:.3f}")
        rows.append((each.space, each.among, *numbers, *pairs))
    averages = ("mean over pairs", "same site")
    heads = ("space", "among", "images", *averages, "nearest pair", "farthest pair")
    show_table(heads, rows, "\nshift among the images of each class", averages)


def _title(found: Measured) -> str:
    shift = found.shift
    estimator = f"squared RBF-MMD ({'unbiased' if shift.unbiased else 'biased'})"
    draws = plural(shift.draws, "draw")
    return f"\nshift in {found.space}: {estimator}, mean ± std of {draws} of {shift.size} images per site"


def _show_matrix(found: Measured) -> None:
    shift = found.shift
    note = f"mean over pairs {shift.average:.3f}; diagonal: two draws from the same site, the noise level"
    cells = (map("{:.3f} ± {:.3f}".format, *row) for row in zip(shift.mean, shift.std, strict=True))
    rows = [(name, *row) for name, row in zip(shift.sites, cells, strict=True)]
    show_table(("", *shift.sites), rows, _title(found), notes=[note])


def _show_extremes(found: Measured) -> None:
    shift, ranked = found.shift, sorted(found.shift.pairs, key=itemgetter(2))
    means = f"mean over pairs {shift.average:.3f}, two draws from the same site {shift.zero:.3f}"
    note = f"{plural(len(shift.sites), 'site')}; {means}; all pairs: --json"
    ends = (("nearest", ranked[:MAX_PAIRS]), ("farthest", ranked[-MAX_PAIRS:]))
    rows = [(word, a, b, f"{mean:.3f} ± {std:.3f}") for word, pairs in ends for a, b, mean, std in pairs]
    show_table(("", "site", "other site", "MMD²"), rows, _title(found), ["MMD²"], [note])


def check(given: options.CheckOptions) -> None:
    path = given.folder.expanduser()
    settings = dict(map(parse_assignment, given.settings or ()))
    how = _own_images(path, {"data.skip_bad": given.skip_bad, **settings})
    with progress(given.silent):
        checked = check_data(path, given.least, how=how)
    errors, warnings = checked.count("error"), checked.count("warning")
    if given.json:
        found = {"sites": checked.sites, "images": checked.images, "errors": errors, "warnings": warnings}
        gaps = {site: (count, detectable_gap(count)) for site, count in checked.tested.items()}
        power = {site: {"test": count, "gap": gap if gap < 1 else None} for site, (count, gap) in gaps.items()}
        print_json({**found, "problems": [asdict(problem) for problem in checked.problems], "power": power})
    else:
        print_checked(checked)
        show_power(checked.tested)
    raise typer.Exit(1 if errors or (given.strict and warnings) else 0)


def example(given: options.ExampleOptions) -> None:
    from fedlgd.data.example import CAMERAS, CLASSES, write_example  # here, because runs import this module too

    count = write_example(given.folder)
    if given.json:
        print_json({"folder": str(given.folder), "images": count, "sites": [*CAMERAS], "classes": CLASSES})
        return
    typer.echo(f"{given.folder}: {count} rendered images of {', '.join(CAMERAS)}; classes {', '.join(CLASSES)}")
    if not given.quiet:
        folder = shlex.quote(str(given.folder))
        typer.echo(folded("They are drawn, not photographed: try the commands with them, judge no method by them."))
        typer.echo(f"Next:\n  fedlgd data check {folder}\n  fedlgd compare {folder} --set data.size=32")


def checked_site(path: Path, site: str, settings: Mapping[str, Any], quiet: bool) -> Folders:
    """The images of one real site; its problems are printed, and errors end the command."""
    how = _own_images(path, settings)
    with progress(quiet):
        checked = check_data(path, only=site, how=how)
    if not quiet or checked.count("error"):
        print_checked(checked, err=True)
    if checked.count("error"):
        raise typer.Exit(1)
    return how


def _own_images(path: Path, settings: Mapping[str, Any]) -> Folders:
    how = resolve({}, {**settings, "data.name": "folders", "data.path": str(path)}).data.suite
    assert isinstance(how, Folders)
    return how


def explain(error: DataError, how: Folders) -> NoReturn:
    """Print all problems of a folder of images before the error, as `fedlgd data check` does."""
    with progress(quiet=False):
        problems = check_data(Path(how.path), how=how).problems
    if len(problems) < 2:
        raise error
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

    datasets, home = find_datasets(given.names), homes.data_home()
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
        print_json([asdict(outcome) for outcome in outcomes])
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
