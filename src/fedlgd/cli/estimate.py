"""What is said before a run or a comparison starts: above all the estimated time."""

import json as jsonlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import typer

from fedlgd.cli.progress import duration
from fedlgd.cli.terminal import folded
from fedlgd.core.device import Place
from fedlgd.core.errors import FedlgdError
from fedlgd.core.records import committed_records
from fedlgd.data.federation import Federation
from fedlgd.engines.registry import Engine
from fedlgd.methods.cost import first_sets
from fedlgd.methods.rounds import promise
from fedlgd.runs.cache import shared_cache
from fedlgd.runs.config import Config
from fedlgd.runs.estimate import Estimate, estimate
from fedlgd.runs.manifest import extension
from fedlgd.runs.suite import Job

LONG = 60.0  # seconds; shorter estimates are not announced


def estimate_run(config: Config, folder: Path, federation: Federation, place: Place) -> Estimate | None:
    """Of the rounds not yet in `folder`; None if there are none left, or if the method cannot be estimated."""
    done = len(committed_records(folder)) - 1  # the first record is the enrolment
    if done >= config.plan.rounds:
        return None
    net = config.net_for(federation)
    return estimate(config, federation, net, None if done < 0 else done, shared_cache(place), place)


def estimate_jobs(jobs: Sequence[Job], federation: Federation, engine: Engine) -> float:
    """Seconds of a comparison. All seeds of an entry take equally long; shared virtual sets are counted once."""
    workers = engine.processes(federation)
    by_entry: dict[str, Estimate | None] = {}
    distilled: set[tuple[str, int]] = set()
    total = 0.0
    for job in jobs:
        if job.entry.spec not in by_entry:
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
    announce_copies(config, folder, federation)
    if text := promise(config.method):
        typer.echo(text, err=True)


def announce_copies(config: Config, folder: Path, federation: Federation) -> None:
    """Say that a user's own images will be in the run folder and its report, if so."""
    count = config.plan.real_samples
    if count and not federation.public:
        typer.echo(
            f"Copying {count} real training images per class of each site into {folder}, for the report; "
            "--set real_samples=0 leaves them out",
            err=True,
        )


def announce_jobs(jobs: Sequence[Job], federation: Federation, engine: Engine, parallel: int) -> None:
    """Print the estimate of a long comparison with `parallel` runs at a time."""
    with suppress(FedlgdError):
        _announce(estimate_jobs(jobs, federation, engine) / parallel, " in total")


def _announce(seconds: float, scope: str = "") -> None:
    if seconds >= LONG:
        typer.echo(f"Estimated time: {duration(seconds)}{scope}", err=True)


def print_estimate(config: Config, folder: Path, federation: Federation, engine: Engine, json: bool) -> None:
    """The result of `--estimate`."""
    found = estimate_run(config, folder, federation, engine.place)
    seconds = found.total(engine.processes(federation)) if found else None
    if json:
        phases, cpu = (found.seconds, found.cpu) if found else ({}, {})
        typer.echo(jsonlib.dumps({"seconds": seconds, "phases": phases, "cpu": cpu}))
    elif seconds is None:
        typer.echo("No estimate: the run is complete, or its method cannot be estimated.")
    else:
        typer.echo(duration(seconds))
