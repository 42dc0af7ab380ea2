"""What a command says before long work: how long it will take."""

import json as jsonlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import typer

from fedlgd.cli.pace import about
from fedlgd.core.device import Place
from fedlgd.core.errors import FedlgdError
from fedlgd.core.records import committed_records as committed
from fedlgd.data.federation import Federation
from fedlgd.engines.registry import Engine
from fedlgd.nets.registry import build_net
from fedlgd.runs.cache import shared_cache
from fedlgd.runs.config import Config
from fedlgd.runs.estimate import Estimate, estimate
from fedlgd.runs.suite import Job

LONG = 60.0  # seconds worth a word


def estimated(config: Config, folder: Path, federation: Federation, place: Place) -> Estimate | None:
    """Of what is not committed in `folder`; None where nobody can tell, or where nothing is left to do."""
    done = len(committed(folder)) - 1  # the first record is the enrolment
    if done >= config.plan.rounds:
        return None
    net = build_net(config.net["name"], federation.shape, len(federation.classes), config.net_settings)
    return estimate(config, federation, net, None if done < 0 else done, shared_cache(place), place)


def foretell(config: Config, folder: Path, federation: Federation, engine: Engine) -> None:
    """A line about a run that takes a minute or more. What is wrong with it, the run itself will say."""
    with suppress(FedlgdError):
        found, workers = estimated(config, folder, federation, engine.place), engine.processes(federation)
        if found and found.total(workers) >= LONG:
            typer.echo(about(found.total(workers)), err=True)


def foretell_all(jobs: Sequence[Job], federation: Federation, engine: Engine, at_once: int) -> None:
    """The same of a comparison, by workers at the sites of one run or by so many runs at once."""
    with suppress(FedlgdError):
        seconds = all_seconds(jobs, federation, engine.processes(federation), engine.place) / at_once
        if seconds >= LONG:
            typer.echo(f"{about(seconds)} in all", err=True)


def all_seconds(jobs: Sequence[Job], federation: Federation, workers: int, place: Place) -> float:
    """One job of every entry is tried; other seeds take as long. Methods that distil alike share virtual sets."""
    tried: dict[str, Estimate | None] = {}
    made: set[tuple[str, int]] = set()
    total = 0.0
    for job in jobs:
        if job.entry.spec not in tried:
            tried[job.entry.spec] = estimated(job.config, job.folder, federation, place)
        found = tried[job.entry.spec]
        if found:
            key = repr(getattr(job.config.method, "distil", "")), job.config.plan.seed
            shared = found.enrolment / workers if key in made else 0.0
            total += found.total(workers) - shared
            made.add(key)
    return total


def tell(found: Estimate | None, workers: int, json: bool) -> None:
    """The answer to `--estimate`."""
    seconds = found.total(workers) if found else None
    if json:
        phases = found.seconds if found else {}
        typer.echo(jsonlib.dumps({"seconds": seconds, "phases": phases}))
    elif seconds is None:
        typer.echo("nobody can tell: the run is complete, or its method is not made of the usual parts")
    else:
        typer.echo(about(seconds))
