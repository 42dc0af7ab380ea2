"""What all commands that compute share: settings from options, data, the engine, estimates, and resuming."""

import difflib
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
import typer

from fedlgd.cli.command import ComputeOptions, ConfigOptions, settings_given
from fedlgd.cli.options import CompareOptions, DistilOptions, JoinOptions, PaperOptions, RunOptions, TuneOptions
from fedlgd.cli.progress import progress
from fedlgd.cli.terminal import folded, plain_warnings, print_json
from fedlgd.core.device import Compile, Place, Precision
from fedlgd.core.errors import DataError, FedlgdError, SettingError
from fedlgd.core.text import plural, rough_duration
from fedlgd.data.federation import Federation
from fedlgd.data.own.suite import Folders
from fedlgd.data.suites import SUITES, DataChoice
from fedlgd.engines.registry import Engine, choose
from fedlgd.methods.protocol import Method
from fedlgd.methods.registry import recipe
from fedlgd.report.summary import short_classes_text
from fedlgd.rundir.records import RoundRecord, committed_records
from fedlgd.runs import trackers
from fedlgd.runs.compare import equal_run
from fedlgd.runs.config import Config
from fedlgd.runs.distil import short_at
from fedlgd.runs.entries import Job
from fedlgd.runs.estimate import Estimate, estimate, first_sets
from fedlgd.runs.folder import shared_cache
from fedlgd.runs.parse import parse_assignment
from fedlgd.runs.resume import extension

WIDTHS = (
    (2_000, 32),
    (20_000, 64),
)  # of the default network for fewer images of a user's own than the first number
MAX_WIDTH = 128


def assignments(given: ConfigOptions | DistilOptions, more: Mapping[str, Any]) -> dict[str, Any]:
    """The settings given by options, by their path; `more` replaces some, and `--set` wins."""
    flags = {**chosen_data(given.data, given.folder), **settings_given(given), **more}
    chosen = {path: value for path, value in flags.items() if value is not None}
    chosen |= dict(parse_assignment(text) for text in given.settings or ())
    return {**_own_net(chosen), **chosen} if not getattr(given, "config", None) else chosen


def _own_net(values: Mapping[str, Any]) -> dict[str, int]:
    """The width of the default network for a user's own images; nothing if a setting of the network is given.

    One of WIDTHS, by the number of images of all sites: a network of 300 000 parameters learns no more from a few
    hundred images, and each of its messages is ten times as large.
    """
    if values.get("data.name") != "folders" or any(path.split(".")[0] == "net" for path in values):
        return {}
    try:
        tree = Folders(path=str(values["data.path"]), columns=str(values.get("data.columns", ""))).survey()
    except FedlgdError:
        return {}  # opening the images says what is wrong
    images = sum(len(site.images) for site in tree.sites)
    return {"net.width": next((width for most, width in WIDTHS if images < most), MAX_WIDTH)}


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


LEAK_OF_DEFAULT = (
    "In an audit of a site with 20 images per class, its model and virtual images told attackers who was in the "
    "training set, no more than those of quick; fedlgd audit RUN attacks yours"
)
"""What audits in `results` measured about the default preset: tests/results/test_claims_by_measurement.py."""


def preset_of(values: Mapping[str, Any], file: Mapping[str, Any], methods: Iterable[str]) -> str:
    """The default preset: `strong` for a user's own images, if all methods have it.

    Not with private distillation, which it excludes.
    """
    own = values.get("data.name") == "folders" and not file and "distil.private.epsilon" not in values
    return "strong" if own and all("strong" in recipe(name).settings.presets for name in methods) else ""


def announce_preset(given: RunOptions | CompareOptions | TuneOptions, preset: str, config: Config) -> None:
    """Say which network and preset were chosen for the user's own images, why, and how to choose others."""
    if config.data.name == "folders" and "width" in config.net and not given.silent:
        typer.echo(f"Network: {config.net['name']} of width {config.net['width']} (--set net.width)", err=True)
    if preset and not (given.preset or given.silent):
        why = "the default for your own images: the most accurate one"
        other = "Choose another with --preset, e.g. --preset quick"
        typer.echo(folded(f"Preset {preset}, {why}. {LEAK_OF_DEFAULT}. {other}"), err=True)


def place_of(given: ComputeOptions | JoinOptions) -> Place:
    precision, mode = cast(Precision, given.precision), cast(Compile, given.compile)
    return Place(device=given.device, precision=precision, compile=mode)


def choose_engine(
    given: ComputeOptions, federation: Federation, name: str | None = None, workers: int = 0
) -> Engine:
    return choose(name, workers, federation, given.threads, place_of(given))


def check_tracking(given: ConfigOptions | CompareOptions | PaperOptions) -> None:
    if given.track:
        trackers.check_trackers(given.track)


def tracking(
    given: ConfigOptions | CompareOptions | PaperOptions, folder: Path, config: Config
) -> AbstractContextManager[Callable[[RoundRecord], None]]:
    """A listener that logs the rounds, if it is asked for."""
    return trackers.Tracking(folder, config) if given.track else nullcontext(lambda _: None)


def set_up(threads: int) -> None:
    """Set the number of threads, and print warnings without the line of code that they come from."""
    torch.set_num_threads(threads)
    plain_warnings()


def open_data(chosen: DataChoice, quiet: bool) -> Federation:
    """The federation; if a folder of images has errors, all its problems are printed first."""
    try:
        with progress(quiet):
            return chosen.open()
    except DataError as error:
        if quiet or not isinstance(chosen.suite, Folders) or not Path(chosen.suite.path).exists():
            raise
        from fedlgd.cli.data import explain  # here, because other runs need nothing of it

        explain(error, chosen.suite)


@contextmanager
def resumable(where: str = "", what: str = "Finished rounds") -> Iterator[None]:
    """On Ctrl-C, print the command that resumes."""
    try:
        yield
    except KeyboardInterrupt:
        message = f"\nInterrupted. {what} are saved{where}. To resume: {program()} {shlex.join(sys.argv[1:])}"
        typer.echo(message, err=True)
        raise typer.Exit(130) from None


def command_line() -> str:
    return shlex.join(["fedlgd", *sys.argv[1:]])


def program() -> str:
    """The command as it can be typed here: `fedlgd` if it is found, else its path."""
    ours, here = Path(sys.executable).with_name("fedlgd"), Path.cwd()
    if shutil.which("fedlgd") or not ours.exists():
        return "fedlgd"
    return str(ours.relative_to(here) if ours.is_relative_to(here) else ours)


LONG = 60.0  # seconds; shorter estimates are not announced


def estimate_run(config: Config, folder: Path, federation: Federation, place: Place) -> Estimate | None:
    """Of the rounds not yet in `folder`; None if there are none left, or if the method cannot be estimated."""
    done = len(committed_records(folder)) - 1  # the first record is the enrolment
    if done >= config.plan.rounds:
        return None
    net = config.net_for(federation)
    place = replace(place, compile="off")  # compiling would take longer than the steps that it makes faster
    return estimate(config, federation, net, None if done < 0 else done, shared_cache(place), place)


def estimate_jobs(jobs: Sequence[Job], federation: Federation, engine: Engine) -> float:
    """Seconds of a comparison. All seeds of an entry take equally long; shared virtual sets are counted once.

    A job whose run exists elsewhere, to be copied, takes no time.
    """
    workers = engine.processes(federation)
    by_entry: dict[str, Estimate | None] = {}
    distilled: set[tuple[str, int]] = set()
    total = 0.0
    for job in jobs:
        assert job.folder
        if equal_run(job, federation):
            continue
        if by_entry.get(job.entry.spec) is None:  # none yet, or of a seed that is finished
            by_entry[job.entry.spec] = estimate_run(job.config, job.folder, federation, engine.place)
        found = by_entry[job.entry.spec]
        if found:
            key = repr(first_sets(job.config.method)), job.config.plan.seed
            total += found.total(workers) - (found.enrolment / workers if key in distilled else 0.0)
            distilled.add(key)
    return total


def announce_run(config: Config, folder: Path, federation: Federation, engine: Engine) -> None:
    """Say what a run extends, how long it takes, which real images it copies, and what it promises about them.

    Errors of the estimate are left for the run itself to report.
    """
    if text := extension(folder, config):
        typer.echo(folded(text), err=True)
    with suppress(FedlgdError):
        found = estimate_run(config, folder, federation, engine.place)
        _announce(found.total(engine.processes(federation)) if found else 0.0)
        announce_short([config.method], federation)
    announce_copies(config, folder, federation)
    if budget := config.method.budget:
        typer.echo(budget.statement, err=True)


def announce_short(methods: Iterable[Method], federation: Federation) -> None:
    """Say which sites have too few images of a class for `distil.per_class` virtual ones, if any has."""
    found: dict[str, dict[str, int]] = {site.name: {} for site in federation.sites}
    for method in methods:
        for site in federation.sites:
            found[site.name].update(short_at(method, site))
    if text := short_classes_text(found):
        typer.echo(folded(text, "  "), err=True)


def announce_copies(config: Config, folder: Path, federation: Federation) -> None:
    """Say that a user's own images will be in the run folder and its report, if so."""
    count = config.plan.real_samples
    if count and not federation.public:
        typer.echo(
            f"Copying {plural(count, 'real training image')} per class of each site into {folder}, for the report; "
            "--set real_samples=0 leaves them out",
            err=True,
        )


def announce_jobs(jobs: Sequence[Job], federation: Federation, engine: Engine, parallel: int) -> None:
    """Print the estimate of a long comparison with `parallel` runs at a time."""
    with suppress(FedlgdError):
        _announce(estimate_jobs(jobs, federation, engine) / parallel, " in total")


def _announce(seconds: float, scope: str = "") -> None:
    if seconds >= LONG:
        typer.echo(f"Estimated time: {rough_duration(seconds)}{scope}", err=True)


def print_estimate(config: Config, folder: Path, federation: Federation, engine: Engine, json: bool) -> None:
    """The result of `--estimate`."""
    found = estimate_run(config, folder, federation, engine.place)
    seconds = found.total(engine.processes(federation)) if found else None
    if json:
        phases, cpu = (found.seconds, found.cpu) if found else ({}, {})
        print_json({"seconds": seconds, "phases": phases, "cpu": cpu})
    elif seconds is None:
        typer.echo("No estimate: the run is complete, or its method cannot be estimated.")
    else:
        typer.echo(rough_duration(seconds))
