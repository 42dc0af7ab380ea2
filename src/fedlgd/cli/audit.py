"""`fedlgd audit`: membership inference against stored runs."""

import json as jsonlib
from dataclasses import asdict

import typer

from fedlgd.cli.options import AuditOptions
from fedlgd.cli.progress import duration, progress
from fedlgd.cli.run import resumable, set_up
from fedlgd.cli.terminal import fitted, folded, terminal_width
from fedlgd.core.audits import AUDIT, Audit
from fedlgd.core.errors import RunError, SettingError
from fedlgd.engines.process import usable_cores
from fedlgd.privacy.audit import Plan, Wish
from fedlgd.privacy.subject import chosen_site, open_subject
from fedlgd.report.privacy import audit_caveats, audit_table, verdict
from fedlgd.report.read import run_folders

LONG = 3600.0  # seconds above which an audit needs --yes


def audit(given: AuditOptions) -> None:
    set_up(1)
    wish = Wish(
        attack="lira" if given.thorough and given.attack == "rmia" else given.attack,
        site=given.site,
        thorough=given.thorough,
        in_sample=given.in_sample,
        canaries=given.canaries,
        all_layers=given.all_layers,
    )
    folders = [folder for path in given.runs for folder in run_folders(path)]
    if not folders:
        raise RunError(f"{str(given.runs[0])!r} is not a run folder and contains none")
    jobs = given.jobs or usable_cores()
    done: dict[str, Audit] = {}
    for folder in folders:
        with resumable(f" of {folder}", "Finished federations"):
            with progress(given.silent):
                subject = open_subject(folder)
                plan = Plan(subject, wish, chosen_site(subject.federation, wish.site))
                seconds = plan.seconds(jobs)
            _announce(plan, seconds, jobs, given)
            with progress(given.silent):
                found = plan.run(jobs)
        done[str(folder)] = found
        if not given.json:
            table = fitted(audit_table(found), terminal_width(), ("accuracy, %", "epsilon ≥"))
            lines = [table, *map(folded, (*audit_caveats(found), verdict(found)))]
            typer.echo("\n".join((*lines, f"Written: {folder / AUDIT}; report: fedlgd report {folder}")))
    if given.json:
        typer.echo(jsonlib.dumps({folder: asdict(found) for folder, found in done.items()}))


def _announce(plan: Plan, seconds: float, jobs: int, given: AuditOptions) -> None:
    """The estimated time; more than an hour needs a decision."""
    shadows = [shadow for arm in plan.shadows.values() for shadow in arm]
    left = sum(not shadow.file.exists() for shadow in shadows)
    if seconds > LONG and not given.yes:
        raise SettingError(
            f"this audit would take {duration(seconds)} ({left} federations, {jobs} at a time); add --yes to start "
            "it, or audit a run with fewer rounds, a smaller net or fewer images (data.limit)"
        )
    if not given.silent:
        label, site = plan.subject.config.method.label, plan.site
        work = f"{left} of {len(shadows)} federations to run, {jobs} at a time; estimated time: {duration(seconds)}"
        typer.echo(f"Audit of {label} at site {site}: {work}", err=True)
