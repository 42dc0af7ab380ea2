"""`fedlgd audit` and `fedlgd invert`: attacks on stored runs."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import typer

from fedlgd.attacks.audit import AuditPlan, AuditRequest, plan_audit
from fedlgd.attacks.gradient_inversion import QUICK_ATTACK, THOROUGH_ATTACK, Attack
from fedlgd.attacks.inversion import (
    InversionPlan,
    StoredInversion,
    attack_cells,
    cells_of,
    estimate_seconds,
    moments_of,
    stored_in,
)
from fedlgd.attacks.target import Replay, open_replay, open_target
from fedlgd.cli.common import resumable, set_up
from fedlgd.cli.options import AuditOptions, InvertOptions
from fedlgd.cli.progress import progress
from fedlgd.cli.report import folders_of
from fedlgd.cli.terminal import folded, print_json, show_table, table_text
from fedlgd.core.errors import SettingError
from fedlgd.core.text import plural, rough_duration
from fedlgd.engines.process import usable_cores
from fedlgd.report.attacks import audit_caveats, audit_table, verdict
from fedlgd.rundir.results import results_of
from fedlgd.runs.folder import locked_folder

MAX_SECONDS_UNASKED = 3600.0  # a longer audit needs --yes


def audit(given: AuditOptions) -> None:
    set_up(1)
    request, jobs = _request(given), given.jobs or usable_cores()
    done: dict[str, dict[str, Any]] = {}
    for folder in folders_of(given.runs):
        with resumable(f" of {folder}", "Finished federations"):
            with progress(given.silent):
                target = open_target(folder)
                plan = plan_audit(target, request)
                seconds = plan.seconds(jobs)
            _announce(plan, seconds, jobs, given)
            with progress(given.silent):
                found = plan.run(jobs)
        done[str(folder)] = {**asdict(found), "verdict": str(verdict(found)), "file": str(plan.file)}
        if not given.json:
            table = table_text(audit_table(found))
            lines = [table, *(folded(str(each)) for each in (*audit_caveats(found), verdict(found)))]
            written = f"Written: {plan.file}{_beside(plan.file)}; report: fedlgd report {folder}"
            typer.echo("\n".join((*lines, written)))
    if given.json:
        print_json(done)


def _beside(file: Path) -> str:
    """The earlier results with other settings, which stay."""
    others = [each.name for each in results_of(file.parent, file.stem.partition("-")[0]) if each != file]
    return f" (with other settings: {', '.join(others)})" if others else ""


def _request(given: AuditOptions) -> AuditRequest:
    return AuditRequest(
        attack="lira" if given.thorough and given.attack == "rmia" else given.attack,
        site=given.site,
        thorough=given.thorough,
        in_sample=given.in_sample,
        canaries=given.canaries,
        all_layers=given.all_layers,
    )


def _announce(plan: AuditPlan, seconds: float, jobs: int, given: AuditOptions) -> None:
    """The estimated time; more than an hour needs a decision."""
    shadows = [shadow for arm in plan.shadows.values() for shadow in arm]
    left = sum(not shadow.file.exists() for shadow in shadows)
    if seconds > MAX_SECONDS_UNASKED and not given.yes:
        raise SettingError("audit-too-long", time=rough_duration(seconds), federations=left, jobs=jobs)
    if not given.silent:
        label, site = plan.target.config.method.label, plan.site
        work = f"{left} of {plural(len(shadows), 'federation')} to run, {jobs} at a time"
        typer.echo(f"Audit of {label} at site {site}: {work}; estimated time: {rough_duration(seconds)}", err=True)


INVERSION_COLUMNS = ("update", "after round", "batch", "identified", "by chance", "aligned PSNR")


def invert(given: InvertOptions) -> None:
    plan = _plan(given)
    set_up(given.threads)
    results = [_one(open_replay(folder), plan, given) for folder in given.runs]
    if given.json:
        print_json(results)


def _plan(given: InvertOptions) -> InversionPlan:
    if given.quick and given.thorough:
        raise SettingError("quick-and-thorough")
    effort = QUICK_ATTACK if given.quick else THOROUGH_ATTACK if given.thorough else Attack()
    return InversionPlan(
        attack=replace(effort, tv=given.tv, loss=given.loss),
        batches=tuple(given.batch or (1, 4)),
        targets=max(1, given.targets // 2) if given.quick else given.targets,
        rounds=tuple(given.at_round or ()),
        site=given.site,
        seed=given.seed,
        show=given.show,
    )


def _one(run: Replay, plan: InversionPlan, given: InvertOptions) -> dict[str, Any]:
    with resumable(f" in {run.folder}", "Finished attacks"), locked_folder(run.folder):
        with progress(given.silent):
            moments = moments_of(run, plan)
            cells = cells_of(run, plan, moments)
        stored = stored_in(run, plan)
        left = stored.left(cells)
        seconds = estimate_seconds(run, plan, left)
        if given.estimate:
            if not given.json:
                typer.echo(rough_duration(seconds))
            return {"run": str(run.folder), "seconds": seconds}
        if not given.silent:
            work, time = f"{len(left)} of {plural(len(cells), 'attack')}", rough_duration(seconds)
            typer.echo(f"{run.folder}: {work} to run; estimated time: {time}", err=True)
            typer.echo(
                f"Writing pictures of private images to {stored.pictures}: keep them as you keep the images",
                err=True,
            )
        with progress(given.silent, announced=True):
            stored = attack_cells(run, plan, cells, moments)
    if not given.json:
        _print(stored)
    return {"run": str(run.folder), "file": str(stored.file), **stored.content}


def _print(stored: StoredInversion) -> None:
    rows, found = [], stored.content
    for cell in found["cells"].values():
        hits, chance = f"{100 * cell['identified']:.0f} % of {cell['images']}", f"{100 * cell['chance']:.0f} %"
        counts = str(cell["round"]), str(cell["batch"])
        rows.append((cell["title"], *counts, hits, chance, f"{cell['psnr_aligned']:.1f}"))
    show_table(INVERSION_COLUMNS, rows, "Images that the attack identifies among others of their class at the site")
    memory, attacked = found["memorisation"], found["settings"]["site"]
    worst = max(memory, key=lambda each: each["nearer_training"] - each["expected"], default=None)
    for each in (one for one in memory if one is worst or one["site"] == attacked):
        share, chance = (f"{100 * each[key]:.0f} %" for key in ("nearer_training", "expected"))
        what = f"{each['what']} after round {each['round'] + 1} at {each['site']}"
        text = f"{what}: {share} nearer to a training image ({chance} by chance, p = {each['p_value']:.2g})"
        mark = f"; the worst of {len(memory)} sets at all sites" if each is worst and len(memory) > 1 else ""
        typer.echo(folded(text + mark, "  "))
    typer.echo(f"All numbers: {stored.file}{_beside(stored.file)}; pictures: {stored.pictures}")
