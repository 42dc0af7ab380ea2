"""`fedlgd compare`: several methods and seeds under equal conditions; `fedlgd tune`: the best settings of methods.

The search of `tune` is scored on held-out training images.
"""

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import typer

from fedlgd.cli import common
from fedlgd.cli.command import ConfigOptions
from fedlgd.cli.options import CompareOptions, PaperOptions, TuneOptions
from fedlgd.cli.progress import Pace, progress
from fedlgd.cli.terminal import MAX_SITE_COLUMNS, complain, folded, print_json, show_table, table_text, two_classes
from fedlgd.core.errors import FedlgdError, SettingError
from fedlgd.core.text import duration, enumeration, plural, rough_duration
from fedlgd.core.train import Local
from fedlgd.data.federation import Federation, validation_of
from fedlgd.engines.registry import Engine
from fedlgd.report.accuracy import BEST_RULE, accuracy_table, best_of, without_sites
from fedlgd.report.claims import undeclared
from fedlgd.report.classes import class_facts
from fedlgd.report.cost import cost_table
from fedlgd.report.decision import decision_section
from fedlgd.report.groups import Group, group_runs
from fedlgd.report.page import write_report
from fedlgd.rundir.order import write_order
from fedlgd.rundir.read import read_runs
from fedlgd.rundir.records import RoundRecord, committed_records
from fedlgd.runs.compare import (
    as_upper_bound,
    equal_run,
    matched_steps,
    refuse_other_runs,
    run_job,
    set_aside_changed,
)
from fedlgd.runs.config import RunSettings
from fedlgd.runs.entries import Job, decision_entries, parse_entry, plan_jobs, sweep_entries
from fedlgd.runs.estimate import estimate
from fedlgd.runs.folder import locked_folder, shared_cache
from fedlgd.runs.jobs import Ended, RoundListener, check_jobs, run_jobs
from fedlgd.runs.parse import parse_axes
from fedlgd.runs.tune import SCORES_HEAD, Findings, Halving, Search, TrialLog, cpu_seconds, plan_search, search

Options = CompareOptions | PaperOptions

METRIC = "Accuracy (%) after the last round: mean over seeds ± standard deviation; `mean` is unweighted over sites."
DECIDING = (
    "No methods are named: these are what a decision to join needs, each site alone, FedAvg on real and on virtual "
    "data, FedLGD, and all images in one place. Choose others with --methods"
)
BEST = f" * marks {BEST_RULE}."


def compare(given: CompareOptions) -> None:
    common.check_tracking(given)
    check_jobs(given.jobs, given.threads, common.place_of(given))
    common.set_up(given.threads)
    settings = common.assignments(given, {})
    deciding = given.methods is None and not given.sweep and settings.get("data.name") == "folders"
    if deciding and "train_on" in settings:
        raise SettingError("decision-trains-on-both", value=settings["train_on"])
    parsed = [parse_entry(text) for text in (given.methods or "fedavg,fedlgd").split(",")]
    entries, skipped = sweep_entries(decision_entries() if deciding else parsed, parse_axes(given.sweep or ()))
    preset = given.preset or common.preset_of(settings, {}, [entry.name for entry in entries])
    first, *_ = plan_jobs(entries, 1, given.out, settings, preset)
    federation = common.open_data(first.config.data, given.silent)
    common.announce_preset(given, preset, first.config)
    for text in (skipped, DECIDING if deciding else ""):
        if text and not given.silent:
            typer.echo(folded(text), err=True)
    steps = _fedlgd_steps(settings, preset, len(federation.classes)) if given.match_steps else 0
    jobs = plan_jobs(entries, given.seeds, given.out, settings, preset, steps)
    jobs = [as_upper_bound(job, federation) for job in jobs] if deciding else jobs
    methods = f"{plural(len(entries), 'point' if given.sweep else 'method')} x {plural(given.seeds, 'seed')}"
    budget = budget_text(jobs, steps)
    announced = f"{plural(len(jobs), 'run')}: {methods} on {federation.name}; {budget}"
    ended = conduct(jobs, federation, given, given.out, announced)
    _print_comparison(ended, budget, given.out / "report.html", given.json)
    raise typer.Exit(1 if any(each.error for each in ended) else 0)


def conduct(
    jobs: Sequence[Job], federation: Federation, given: Options, out: Path, announced: str
) -> list[Ended[Job]]:
    """Run all jobs, with an estimate first, and write their report."""
    accept = isinstance(given, CompareOptions) and given.accept_changed_code
    with common.resumable():
        engine = common.choose_engine(given, federation, "loop" if given.jobs > 1 else None)
        for job in () if accept else jobs:
            set_aside_changed(job, federation)
        refuse_other_runs(jobs, federation)
        if isinstance(given, CompareOptions):
            write_order(out, [job.entry.folder for job in jobs])
        if not given.silent:
            typer.echo(folded(announced, "  "))
            common.announce_jobs(jobs, federation, engine, given.jobs)
            common.announce_copies(jobs[0].config, out, federation)
            common.announce_short((job.config.method for job in jobs), federation)
        ended = _run(jobs, federation, engine, given)
    if done := [each.job.folder for each in ended if not each.error and each.job.folder]:
        write_report(done, out / "report.html")
    return ended


def _fedlgd_steps(settings: Mapping[str, Any], preset: str, classes: int) -> int:
    """SGD steps per round of FedLGD under these settings."""
    ours = {k: v for k, v in settings.items() if k.split(".")[0] in ("distil", "local", "anchors")}
    (job,) = plan_jobs([parse_entry("fedlgd")], 1, Path(), ours, preset)
    method: Any = job.config.method
    local, pictures, anchors = method.local, method.distil.pictures, method.anchors.per_class
    return local.steps or matched_steps(pictures, anchors, classes, local.batch, local.epochs)


def budget_text(jobs: Sequence[Job], steps: int) -> str:
    """The budget of a comparison as text, for methods whose sites train; `steps`: those of all, if matched."""
    methods = {job.label: job.config.method for job in jobs}
    local = {label: getattr(each, "local", None) for label, each in methods.items() if each.train_on != "nothing"}
    idle = [label for label in methods if label not in local]
    known = {label: how for label, how in local.items() if isinstance(how, Local)}
    own = [label for label in local if label not in known]
    kinds = {label: (steps or how.steps, 0 if steps or how.steps else how.epochs) for label, how in known.items()}
    counts = {kind for label, kind in kinds.items() if not methods[label].pooled} or {*kinds.values()}
    pooled = {label: count for label, (count, epochs) in kinds.items() if (count, epochs) not in counts}
    whom = "for every other method" if idle or own or pooled else "for every method"
    parts = ["the numbers of SGD steps per round differ (local.steps, local.epochs)"] if len(counts) > 1 else []
    if len(counts) == 1:
        ((count, _),) = counts
        each = f"{plural(count, 'SGD step')} per round at each site" if count else "equal epochs"
        parts = [f"{each}, {whom}" if count else f"{each} {whom}; an epoch has more steps where images are added"]
    parts += [f"{plural(count, 'SGD step')} per round in {label}" for label, count in pooled.items() if count]
    parts += [f"the sites train no model in {enumeration(idle)}"] if idle else []
    parts += [f"the steps of {enumeration(own)} are not known"] if own else []
    return f"budget: {'; '.join(parts)}"


def _run(jobs: Sequence[Job], federation: Federation, engine: Engine, given: Options) -> list[Ended[Job]]:
    """Each job in turn, with its rounds; or `given.jobs` at a time, with one line for each that ends."""
    ended: list[Ended[Job]] = []
    began, in_turn = time.monotonic(), given.jobs == 1

    def work(job: Job, listen: RoundListener) -> float:
        known = _why_known(job, federation)
        if in_turn and not given.silent:
            typer.echo(folded(f"[{len(ended) + 1}/{len(jobs)}] {job.title}{known}", "  "))
        quiet = given.silent or bool(known) or not in_turn
        with progress(quiet, job.config.plan.rounds, folder=job.folder, sites=federation.names) as show:
            return run_tracked(job, federation, engine, given, show if in_turn else listen)

    with suppress(FedlgdError):  # imports that every process would repeat; the jobs report errors
        jobs[0].config.net_for(federation)
    with closing(run_jobs(jobs, given.jobs, work)) as running:
        for each in running:
            ended.append(each)
            if each.error:
                complain(f"{each.job.title} failed: {each.error}")
            elif not (given.silent or in_turn):
                rest = (time.monotonic() - began) / len(ended) * (len(jobs) - len(ended))
                accuracy = f"mean {100 * each.result:.1f} %" + (f"  {rough_duration(rest)} left" if rest else "")
                typer.echo(f"[{len(ended)}/{len(jobs)}] {each.job.title}: {accuracy}")
            if not given.silent:
                _print_answer_so_far(ended, jobs)
    order = [job.entry.folder for job in jobs]  # reports have the runs of a method together
    return sorted(ended, key=lambda each: (order.index(each.job.entry.folder), each.job.config.plan.seed))


def _print_answer_so_far(ended: Sequence[Ended[Job]], jobs: Sequence[Job]) -> None:
    """After the last run of a seed, if others follow: what the seeds until then say about joining."""
    done = {each.job for each in ended}
    left = {job.config.plan.seed for job in jobs if job not in done}
    if not left or ended[-1].job.config.plan.seed in left:
        return
    folders = [each.job.folder for each in ended if each.job.folder and not each.error]
    if section := decision_section(group_runs(read_runs(folders)[0])) if folders else None:
        seeds = plural(len({job.config.plan.seed for job in jobs} - left), "seed")
        typer.echo(folded(f"After {seeds}: {section['title']}", "  "))


def _why_known(job: Job, federation: Federation) -> str:
    """In parentheses why a job needs no computing: ` (finished)`, ` (a copy of ...)`; empty if it does."""
    if equal := equal_run(job, federation):
        return f" (a copy of {equal})"
    with suppress(FedlgdError):  # a damaged folder: the run itself says so
        if job.folder and len(committed_records(job.folder)) > job.config.plan.rounds:
            return " (finished)"
    return ""


def run_tracked(
    job: Job, federation: Federation, engine: Engine, given: Options | ConfigOptions, show: RoundListener
) -> float:
    """Run a job with its trackers; its mean accuracy after the last round."""
    assert job.folder
    accept = isinstance(given, CompareOptions) and given.accept_changed_code
    with common.tracking(given, job.folder, job.config) as track:

        def listen(record: RoundRecord) -> None:
            show(record)
            track(record)

        command = common.command_line()
        return run_job(job, federation, command, listen, engine, None, accept).records[-1].accuracy


def _print_comparison(ended: Sequence[Ended[Job]], budget: str, page: Path, json: bool) -> None:
    done = [each.job.folder for each in ended if not each.error and each.job.folder]
    failures = {str(each.job.folder): each.error for each in ended if each.error}
    groups = group_runs(read_runs(done)[0]) if done else ()
    decision = decision_section(groups)
    if json:
        rows = [
            {
                "method": g.label,
                "seeds": len(g.counted),
                "mean": g.accuracy.mean,
                "std": g.accuracy.std,
                "best": best_of(groups) is g,
                **class_facts(groups, g),
            }
            for g in groups
            if g.accuracy
        ]
        found = {"methods": rows, "budget": budget, "failed": failures, "report": str(page)}
        print_json({**found, "decision": decision["plain"] if decision else None})
        return
    if groups:
        for table in _tables(groups):
            typer.echo("\n" + table)
        typer.echo(f"\n{folded(METRIC + BEST if len(groups) > 1 else METRIC)}\n{folded(budget)}")
        for note in undeclared(groups):
            typer.echo(folded(str(note)))
    if decision:
        typer.echo(f"\n{folded(decision['title'])}\n\n{table_text(decision['table'])}\n")
        for sentence in decision["sentences"]:
            typer.echo(folded(f"- {sentence}", "  "))
        typer.echo()
    for folder, error in failures.items():
        typer.echo(f"failed: {folder}: {error}")
    if groups:
        typer.echo(f"Report: {page}")


def _tables(groups: Sequence[Group]) -> Iterator[str]:
    """Accuracy, what two classes need beyond it, and cost."""
    accuracy = without_sites(accuracy_table(groups), MAX_SITE_COLUMNS)
    yield table_text(accuracy)
    if two := two_classes(groups):
        yield two
    yield table_text(cost_table(groups))


HEDGE = (
    "From the {trials} candidates of each method after {rounds}, one seed: a small difference can be "
    "chance, and what pays late does not show. A candidate that diverges counts as 0."
)


def tune(given: TuneOptions) -> None:
    common.check_tracking(given)
    check_jobs(given.jobs, given.threads, common.place_of(given))
    common.set_up(given.threads)
    settings, methods = common.assignments(given, {}), given.methods.split(",")
    preset = given.preset or common.preset_of(settings, {}, [parse_entry(text).name for text in methods])
    how = plan_search(
        methods,
        Halving(rounds=settings.pop("rounds", RunSettings().rounds), rungs=given.rungs, eta=given.eta),
        given.candidates,
        given.out,
        given.space,
        settings=settings,
        preset=preset,
        seed=given.seed,
        validation=given.validation,
    )
    config = how.given(how.entries[0])
    whole = common.open_data(config.data, given.silent)
    common.announce_preset(given, preset, config)
    federation = validation_of(whole, given.validation, given.seed)
    engine = common.choose_engine(given, federation, "loop" if given.jobs > 1 else None)
    if given.estimate:
        _print_plan(how, _seconds(how, federation, engine, given), given)
        return
    with common.resumable(f" in {given.out}", "Finished trials"), locked_folder(given.out):
        log = TrialLog(how, federation)
        if not (log.trials or given.silent):
            _print_plan(how, _seconds(how, federation, engine, given), given)
        found = search(how, log, _Trials(how, log, federation, engine, given))
    _print_findings(how, found, given.json)


def _seconds(how: Search, federation: Federation, engine: Engine, given: TuneOptions) -> float | None:
    """The estimated time of the search if all candidates cost as much as the given settings; None: not known."""
    total, workers, place = 0.0, engine.processes(federation), replace(engine.place, compile="off")
    shares = sum(count * rounds for count, rounds in how.levels) / how.halving.rounds
    with progress(given.silent):
        for entry in how.entries:
            config = how.given(entry)
            cache, net = shared_cache(place), config.net_for(federation)
            if (one := estimate(config, federation, net, None, cache, place)) is None:
                return None
            enrolment = one.enrolment / workers
            total += enrolment + shares * (one.total(workers) - enrolment)
    return total / given.jobs


def _print_plan(how: Search, seconds: float | None, given: TuneOptions) -> None:
    if given.json:
        rungs = [{"candidates": count, "rounds": rounds} for count, rounds in how.levels]
        spaces = {entry.spec: msgspec.to_builtins(how.space_of(entry)) for entry in how.entries}
        print_json({"seconds": seconds, "rungs": rungs, "spaces": spaces})
        return
    (count, rounds), *rest = how.levels
    steps = [f"{count} candidates with {plural(rounds, 'round')}", *(f"the best {n} with {r}" for n, r in rest)]
    lines = [f"For each method: {', '.join(steps)}; scored on {how.validation:.0%} of the training images"]
    lines += [f"{entry.spec}: {', '.join(how.space_of(entry))}" for entry in how.entries]
    for line in lines:
        typer.echo(folded(line, "  "), err=True)
    if seconds is not None:
        typer.echo(f"Estimated time: {rough_duration(seconds)}", err=True)


class _Trials:
    """Runs trials and prints a line for each, with the time left."""

    def __init__(
        self, how: Search, log: TrialLog, federation: Federation, engine: Engine, given: TuneOptions
    ) -> None:
        self._federation, self._engine, self._given = federation, engine, given
        rounds = sum(n * rounds for n, rounds in how.levels)
        self._done, self._pace = 0, Pace()
        self._total = len(how.entries) * rounds - sum(trial.rounds for trial in log.trials)

    def __call__(self, jobs: Sequence[Job]) -> Generator[Ended[Job], None, None]:
        for number, ended in enumerate(run_jobs(jobs, self._given.jobs, self._work), 1):
            yield ended
            rounds = ended.job.config.plan.rounds
            self._done += rounds
            self._pace.update(self._done)
            left = self._pace.left(self._total) if self._done < self._total else None
            score = "diverged" if ended.error else f"{100 * ended.result:.1f} %"
            rest = "" if left is None else f"  {rough_duration(left)} left"
            if not self._given.silent:
                line = f"[{number}/{len(jobs)}] {ended.job.label}, {plural(rounds, 'round')}: {score}{rest}"
                typer.echo(line, err=True)

    def _work(self, job: Job, listen: RoundListener) -> float:
        with progress(self._given.silent or self._given.jobs > 1):
            return run_tracked(job, self._federation, self._engine, self._given, listen)


def _print_findings(how: Search, found: Findings, json: bool) -> None:
    files = {entry.spec: str(how.best_file(entry)) for entry in how.entries}
    cpu = cpu_seconds(found.trials)
    if json:
        best = {}
        for spec, trial in ((spec, each.trial) for spec, each in found.best.items()):
            told = {"accuracy": trial.accuracy, "rounds": trial.rounds, "settings": trial.settings}
            best[spec] = {**told, "file": files[spec]}
        counts = {"candidates": found.candidates, "rounds": found.rounds, "validation": found.validation}
        print_json({"best": best, **counts, "cpu_seconds": cpu})
        return
    show_table(SCORES_HEAD, found.scores(), "\nAccuracy (%) on the validation images")
    show_table(("setting", *found.best), found.settings(), "\nBest values", numbers=())
    note = HEDGE.format(trials=found.candidates, rounds=plural(found.rounds[0], "round"))
    typer.echo(f"\n{folded(note)}")
    typer.echo(f"CPU time of the search: {duration(cpu)}")
    typer.echo("Best settings: " + ", ".join(files.values()))
    typer.echo(f"Next: {common.program()} compare --methods {','.join(files.values())} --seeds 3")
