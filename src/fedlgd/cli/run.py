"""`fedlgd run`, `fedlgd demo` and `fedlgd distil`."""

import json as jsonlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import typer

from fedlgd.cli import common
from fedlgd.cli.options import CompareOptions, DemoOptions, DistilOptions, RunOptions
from fedlgd.cli.progress import progress
from fedlgd.cli.terminal import folded, print_accuracy, print_json, show_table
from fedlgd.core.device import Compile
from fedlgd.core.errors import SettingError
from fedlgd.core.text import plural, rough_duration
from fedlgd.data.federation import Federation
from fedlgd.engines.process import usable_cores
from fedlgd.engines.registry import Engine
from fedlgd.report.claims import mismatches, undeclared
from fedlgd.report.classes import class_facts
from fedlgd.report.groups import group_runs
from fedlgd.report.page import write_report
from fedlgd.report.summary import headline, unequal_cost
from fedlgd.report.tables import percent
from fedlgd.rundir.manifest import read_manifest
from fedlgd.rundir.read import read_run, read_runs
from fedlgd.rundir.records import RoundRecord, committed_records
from fedlgd.runs.config import Config, resolve
from fedlgd.runs.distil import TRAINING, Distilled, distil_all, seconds_left
from fedlgd.runs.entries import Entry, for_run, plan_jobs
from fedlgd.runs.folder import locked_folder, shared_cache
from fedlgd.runs.parse import parse_assignment, read_toml
from fedlgd.runs.place import settle_place
from fedlgd.runs.resume import default_folder
from fedlgd.runs.run import Listener, execute

DEMO_PRESET = "strong"
DEMO_SETTINGS: dict[str, Any] = {
    "data.name": "builtin-digits",
    "net.width": 16,
    "distil.width": 16,
    "evaluate_every": 4,
}
DEMO_NOTE = (
    "Both methods start from the same virtual sets and take equally many SGD steps. FedLGD also refines the sets "
    "and trains on anchors, so it computes more. Networks are narrow, for a short demo. Differences are paired "
    "over seeds, and one method is called better only if their 95 % interval excludes 0."
)
DEMO_NEXT = (
    "open {out}/fedlgd/seed0",
    "export {out}/fedlgd/seed0",
    "run builtin-digits --method fedlgd --preset strong --rounds 60",
)


def run(given: RunOptions) -> None:
    common.check_tracking(given)
    common.place_of(given)
    file = read_toml(given.config) if given.config else {}
    chosen = {}
    if given.anchors:
        chosen["method"] = f"{given.method or file.get('method', 'fedlgd')}+anchors"
    if remote := given.engine == "flower" or given.kit is not None:
        from fedlgd.cli import deploy

        deploy.check_remote_options(given)
        chosen["data.name"] = "real-sites"
    values = common.assignments(given, chosen)
    method = values.get("method") or file.get("method") or "fedlgd"
    values = for_run(method, values)
    preset = given.preset or common.preset_of(values, file, [method])
    config = resolve(file, values, preset)
    label = given.label or config.method.label
    folder = given.out or default_folder(config)
    if given.estimate:
        federation, engine = _prepare(config, given, given.json, preset)
        common.print_estimate(config, folder, federation, engine, given.json)
        return
    title = f"{label} on {config.data.name}, seed {config.plan.seed}"
    if remote:
        common.set_up(given.threads)
        with common.resumable(f" in {folder}"):
            asking, shown = progress(given.silent, plain=True), _shown(config, folder, given, title)
            deploy.run_at_sites(config, folder, given, common.command_line(), asking, shown)
    else:
        with _prepared(config, folder, given, title, preset) as (federation, engine, listen):
            accept, command = given.accept_changed_code, common.command_line()
            execute(config, federation, folder, listen, command, given.label, engine, None, accept)
    page = write_report([folder], folder / "report.html")
    if given.json:
        print_json(_summary(config, folder, page, label))
        return
    _print_result([folder])
    typer.echo(f"Report: {page}")


def demo(given: DemoOptions) -> None:
    from fedlgd.cli.compare import conduct

    entries = [Entry("fedavg", "fedavg", {"train_on": "virtual"}), Entry("fedlgd", "fedlgd")]
    planned = plan_jobs(entries, given.seeds, given.out, {**DEMO_SETTINGS, "rounds": given.rounds}, DEMO_PRESET)
    at_once = min(given.jobs, usable_cores()) if sys.platform == "linux" else 1
    how = CompareOptions(out=given.out, jobs=at_once, json=given.json, quiet=given.quiet)
    common.set_up(how.threads)
    federation = common.open_data(planned[0].config.data, given.silent)
    said = f"{plural(len(planned), 'run')}: FedAvg and FedLGD x {plural(given.seeds, 'seed')} on {federation.name}"
    ended = conduct(planned, federation, how, given.out, said)
    failures = {str(each.job.folder): each.error for each in ended if each.error}
    done = [(each.job.config, each.job.folder) for each in ended if each.job.folder and not each.error]
    page, folders = given.out / "report.html", [folder for _, folder in done]
    groups = group_runs(read_runs(folders)[0]) if folders else ()
    found = headline(groups)
    if given.json:
        runs = [_summary(config, folder, page) for config, folder in done]
        gap = asdict(found.gap) if found.gap else None
        result = {"headline": found.title, "winner": found.winner, "difference": gap, "failed": failures}
        print_json({"runs": runs, **result, "report": str(page)})
    else:
        _print_result(folders)
        typer.echo(f"\n{folded(found.title)}\n\n{folded(DEMO_NOTE)}\nReport: {page}")
    if not given.silent:
        lines = (f"\n  {common.program()} {line.format(out=given.out)}" for line in DEMO_NEXT)
        typer.echo(f"Next:{''.join(lines)}")
    raise typer.Exit(1 if failures else 0)


def _prepare(config: Config, given: RunOptions, quiet: bool, preset: str) -> tuple[Federation, Engine]:
    common.set_up(given.threads)
    federation = common.open_data(config.data, quiet)
    common.announce_preset(given, preset, config)
    return federation, common.choose_engine(given, federation, given.engine, given.workers)


@contextmanager
def _shown(
    config: Config,
    folder: Path,
    given: RunOptions,
    title: str,
    begin: Callable[[], str] | None = None,
    sites: Sequence[str] = (),
) -> Iterator[Listener]:
    """Progress and trackers for the rounds given to the listener; what `begin` says is printed before the first."""
    heard = 0

    def listen(record: RoundRecord) -> None:
        nonlocal heard
        if begin and not (heard or given.silent):
            typer.echo(begin(), err=True)
        heard += 1
        show(record)
        track(record)

    with (
        progress(given.silent, config.plan.rounds, title, folder, lasting=True, sites=sites) as show,
        common.tracking(given, folder, config) as track,
    ):
        yield listen
    if not (heard or given.silent):
        typer.echo(f"{folder} is already complete; nothing to run", err=True)


@contextmanager
def _prepared(
    config: Config, folder: Path, given: RunOptions, title: str = "", preset: str = ""
) -> Iterator[tuple[Federation, Engine, Listener]]:
    """The data, the engine and a listener with progress and trackers, for a run that Ctrl-C can interrupt."""
    with common.resumable(f" in {folder}"):
        federation, engine = _prepare(config, given, given.silent, preset)
        if not given.silent:
            common.announce_run(config, folder, federation, engine)
        begin = partial(_describe_engine, engine, federation, folder)
        with _shown(config, folder, given, title, begin, federation.names) as listen:
            yield federation, engine, listen


def _describe_engine(engine: Engine, federation: Federation, folder: Path) -> str:
    """The engine of a run that has started: then `--compile auto` is decided, and a compiler may have failed."""
    if engine.place.compile == "auto" or len(committed_records(folder)) == 1:  # a resumed run can have another mode
        mode: Compile = "on" if read_manifest(folder).engine.compile else "off"
        engine = replace(engine, place=replace(engine.place, compile=mode))
    return engine.describe(federation)


def _summary(config: Config, folder: Path, page: Path, label: str = "") -> dict[str, Any]:
    run = read_run(folder)
    (group,) = group_runs([run])
    scores = run.final.scores if run.final else {}
    accuracy = {site.name: scores[site.name].accuracy for site in run.manifest.data.sites if site.name in scores}
    return {
        "method": label or config.method.label,
        "seed": run.seed,
        "rounds": config.plan.rounds,
        "accuracy": accuracy,
        "mean": fmean(accuracy.values()) if accuracy else None,
        **class_facts([group], group),
        "mismatches": [asdict(each) for each in mismatches(run)],
        "folder": str(folder),
        "report": str(page),
    }


def _print_result(folders: Sequence[Path]) -> None:
    """The table with its notes, whether methods cost the same, and what is not declared."""
    groups = group_runs(read_runs(folders)[0])
    if any(group.accuracy for group in groups):
        print_accuracy(groups)
    for note in (*unequal_cost(groups), *undeclared(groups)):
        typer.echo(folded(str(note)))


SECTIONS = ("data", "net", "distil")  # whose settings the sets depend on


def distil(given: DistilOptions) -> None:
    place, config = common.place_of(given), _config(given)
    method: Any = config.method
    common.set_up(given.threads)
    with common.resumable(f" in {given.out}", "Finished sets"):
        with progress(given.silent):
            federation = config.data.open()
            net = config.net_for(federation)
            place = replace(place, compile="off" if given.estimate else place.compile)
            place = settle_place(place, config, federation, net)
            federation = federation.with_cache(shared_cache(place))
        seconds = seconds_left(config, method.distil, federation, net, place)
        if given.estimate:
            typer.echo(jsonlib.dumps({"seconds": seconds}) if given.json else rough_duration(seconds))
            return
        if not given.silent:
            sites = plural(len(federation.sites), "site")
            typer.echo(f"{sites}; estimated time: {rough_duration(seconds)}", err=True)
            common.announce_short([method], federation)
        with locked_folder(given.out), progress(given.silent):
            steps = given.score_steps if given.score else 0
            made = list(distil_all(config, method.distil, federation, net, given.out, steps, place))
            made.sort(key=lambda each: federation.names.index(each.site))
    if given.json:
        print_json([asdict(each) for each in made])
    else:
        _print_sets(made, given, method.distil.per_class)


def _print_sets(made: Sequence[Distilled], given: DistilOptions, per_class: int) -> None:
    """The scores of the sets, where they are, and how to start a run from them."""
    scores = {each.site: (each.scores.virtual, each.scores.picks, each.scores.real) for each in made if each.scores}
    sizes = {each.site: (each.site, str(each.images)) for each in made}
    if scores:
        heads = ("site", "images", "virtual", "as many real", "all real")
        rows = [(*size, *map(percent, scores[site])) for site, size in sizes.items()]
        rows.append(("mean", "", *(percent(fmean(column)) for column in zip(*scores.values(), strict=True))))
        show_table(heads, rows, "Test accuracy (%) of a network trained on ...", line=len(made))
    else:
        show_table(("site", "images"), sizes.values())
    if given.score:
        steps = plural(given.score_steps, "SGD step")
        typer.echo(f"Each network: {steps} of batch {TRAINING.batch}, one seed, no augmentation")
    where = f"{given.out}/"
    start = f"distil.start={where if '/' in where.rstrip('/') else './' + where}"
    made_from = "made from private images, so each belongs to its site"
    typer.echo(folded(f"Sets and pictures: {where}<site>.npz, .png; {made_from}", "  "))
    typer.echo(f"To start a run from them: --set {start} --set distil.per_class={per_class} --set distil.steps=0")


def _config(given: DistilOptions) -> Config:
    for path, _ in map(parse_assignment, given.settings or ()):
        if path.partition(".")[0] not in SECTIONS:
            raise SettingError("setting-of-no-set", path=path)
    return resolve({}, common.assignments(given, {"method": "fedavg", "train_on": "virtual", "seed": given.seed}))
