"""The commands that show federations: what there is, what it looks like, and how far apart its sites are."""

import json as jsonlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedlgd.cli.checking import chosen_data, progress
from fedlgd.core.rng import Stream
from fedlgd.data.federation import Federation
from fedlgd.data.registry import SUITES
from fedlgd.data.sheet import contact_sheet
from fedlgd.data.statistics import Statistics, spark, statistics_of
from fedlgd.data.store import data_home
from fedlgd.data.suite import Suite
from fedlgd.distill.shift import Draws, Shift, Space, measure, measure_class, pixels, random_features
from fedlgd.nets.registry import build_net
from fedlgd.runs.config import parse_assignment, resolve
from fedlgd.runs.files import saving

WIDTH = 64  # of the untrained ConvNets whose features are compared
MATRIX = 12  # sites; of more, the terminal shows a summary
LISTED = 3  # values of a setting that are shown one by one
EXTREMES = 5  # nearest and farthest pairs in a summary
CHANNELS = ("red", "green", "blue")


class Asked(NamedTuple):
    """What to measure of the shift: over all images, and perhaps class by class."""

    how: Draws
    per_class: bool
    seed: int


def asked(size: int, draws: int, biased: bool, per_class: bool, seed: int) -> Asked:
    return Asked(Draws(size=size, draws=draws, unbiased=not biased), per_class, seed)


class Found(NamedTuple):
    """One measurement: in which space, among which images."""

    space: str
    among: str
    shift: Shift


def data_list(json: bool) -> None:
    rows = [
        {
            "name": name,
            "about": suite.about,
            "ready": not suite.missing,
            "missing": suite.missing,
            "fetch": _fetch(suite),
            "settings": msgspec.to_builtins(suite.settings()),
        }
        for name, suite in SUITES.items()
    ]
    if json:
        typer.echo(jsonlib.dumps(rows))
        return
    table = Table("name", "about", "state", "settings", title=f"data home: {data_home()}", show_lines=True)
    for row, suite in zip(rows, SUITES.values(), strict=True):
        settings = "\n".join(f"{key} = {_value(value)}" for key, value in row["settings"].items())
        table.add_row(row["name"], row["about"], _state(suite), escape(settings))
    Console().print(table)


def _value(value: Any) -> str:
    """As in TOML; of a long list the beginning."""
    if isinstance(value, list) and len(value) > LISTED:
        return f"[{jsonlib.dumps(value[0])}, ... {len(value)} in all]"
    return jsonlib.dumps(value)


def _fetch(suite: Suite) -> str:
    """The command that gets what is missing; nothing where nothing is, or where there is none."""
    return f"fedlgd data fetch {suite.fetch}" if suite.missing and suite.fetch else ""


def _state(suite: Suite) -> str:
    if not suite.missing:
        return "ready"
    return f"fetch: {_fetch(suite)}" if suite.fetch else f"missing: {', '.join(suite.missing)}"


def data_show(
    name: str, settings: Sequence[str], sheet: Path | None, wanted: Asked | None, json: bool, quiet: bool
) -> None:
    assignments = {**chosen_data(name, None), **dict(map(parse_assignment, settings))}
    with progress(quiet or json):
        federation = resolve({}, assignments).data.open()
        sites = [statistics_of(site) for site in federation.sites]
        found = _measured(federation, wanted) if wanted else []
    if json:
        typer.echo(jsonlib.dumps(_plain(federation, sites, found)))
    else:
        _print(federation, sites, found)
    if sheet:
        with saving(str(sheet)):
            contact_sheet(federation).save(sheet, "PNG")
        typer.echo(f"Contact sheet: {sheet}", err=json)


def _measured(federation: Federation, wanted: Asked) -> list[Found]:
    net = build_net("convnet", federation.shape, len(federation.classes), {"width": WIDTH})
    rng = Stream(wanted.seed).at("shift")
    sites = {site.name: site.train for site in federation.sites}
    spaces: dict[str, Space] = {"pixels": pixels, "random features": random_features(net, rng)}
    found = []
    for name, space in spaces.items():
        found.append(Found(name, "all images", measure(sites, space, wanted.how, rng, name)))
        for k, title in enumerate(federation.classes if wanted.per_class else ()):
            shift = measure_class(sites, k, space, wanted.how, rng, f"{name}, class {title}")
            found += [Found(name, title, shift)] if shift else []
    return found


def _plain(federation: Federation, sites: Sequence[Statistics], found: Sequence[Found]) -> dict[str, Any]:
    shifts = [
        {"space": f.space, "among": f.among, **asdict(f.shift), "average": f.shift.average, "zero": f.shift.zero}
        for f in found
    ]
    head = {"name": federation.name, "note": federation.note, "classes": federation.classes}
    return {**head, "shape": federation.shape, "sites": [asdict(s) for s in sites], "shift": shifts}


def _print(federation: Federation, sites: Sequence[Statistics], found: Sequence[Found]) -> None:
    console = Console()
    console.print(_counts(federation, sites), _colours(sites))
    for each in found:
        if each.among != "all images":
            continue
        small = len(each.shift.sites) <= MATRIX
        console.print(_matrix(each) if small else _summary(each))
    if any(each.among != "all images" for each in found):
        console.print(_by_class(found))


def _counts(federation: Federation, sites: Sequence[Statistics]) -> Table:
    title = f"{federation.name}: {len(sites)} sites, {len(federation.classes)} classes, {federation.shape}"
    table = Table(title=escape(title), caption=escape(federation.note))
    for column in ("site", "train", "test", "training images per class", "note"):
        table.add_column(column, justify="right" if column in ("train", "test") else "left")
    for s in sites:
        numbers = " ".join(map(str, s.train_per_class))
        table.add_row(escape(s.site), str(s.train), str(s.test), numbers, escape(s.note))
    return table


def _colours(sites: Sequence[Statistics]) -> Table:
    table = Table("site", *(f"{c}: mean, std, 0 to 1" for c in CHANNELS), title="colours of the training images")
    for s in sites:
        cells = [
            f"{mean:.2f} {std:.2f} [{colour}]{spark(shares)}[/]"
            for colour, mean, std, shares in zip(CHANNELS, s.mean, s.std, s.histogram, strict=True)
        ]
        table.add_row(escape(s.site), *cells)
    return table


def _title(found: Found) -> str:
    shift = found.shift
    estimator = "unbiased" if shift.unbiased else "biased"
    return (
        f"shift in {found.space}: squared RBF-MMD ({estimator}), mean ± std of {shift.draws} draws of "
        f"{shift.size} images a site"
    )


def _matrix(found: Found) -> Table:
    shift = found.shift
    caption = f"mean over pairs {shift.average:.3f}; diagonal: two draws of one site, what zero looks like"
    table = Table("", *map(escape, shift.sites), title=_title(found), caption=caption)
    for i, name in enumerate(shift.sites):
        row = [f"{m:.3f} ± {s:.3f}" for m, s in zip(shift.mean[i], shift.std[i], strict=True)]
        row[i] = f"[dim]{row[i]}[/]"
        table.add_row(escape(name), *row)
    return table


def _summary(found: Found) -> Table:
    shift = found.shift
    caption = (
        f"{len(shift.sites)} sites; mean over pairs {shift.average:.3f}, two draws of one site {shift.zero:.3f}"
    )
    table = Table("", "site", "site", "MMD²", title=_title(found), caption=f"{caption}; all pairs: --json")
    ranked = sorted(shift.pairs, key=lambda pair: pair[2])
    for word, pairs in (("nearest", ranked[:EXTREMES]), ("farthest", ranked[-EXTREMES:])):
        for a, b, mean, std in pairs:
            table.add_row(word, escape(a), escape(b), f"{mean:.3f} ± {std:.3f}")
    return table


def _by_class(found: Sequence[Found]) -> Table:
    table = Table("space", "among", "images", "mean over pairs", "one site", "nearest pair", "farthest pair")
    for f in found:
        nearest, farthest = _extremes(f.shift)
        size = f"{f.shift.size} a site"
        table.add_row(
            f.space, escape(f.among), size, f"{f.shift.average:.3f}", f"{f.shift.zero:.3f}", nearest, farthest
        )
    return table


def _extremes(shift: Shift) -> Iterator[str]:
    ranked = sorted(shift.pairs, key=lambda pair: pair[2])
    for a, b, mean, _ in (ranked[0], ranked[-1]):
        yield escape(f"{a}, {b}: {mean:.3f}")
