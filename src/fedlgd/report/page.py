"""One self-contained HTML page from any number of run directories: no network, no torch.

The one script of the page is the one whose hash stands in its own policy; a browser runs no other.
"""

import base64
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedlgd.report.audit import audits
from fedlgd.report.binary import binary_table
from fedlgd.report.breakeven import break_evens
from fedlgd.report.caveats import caveats, progress
from fedlgd.report.figures import draw, save_all
from fedlgd.report.format import plural
from fedlgd.report.grids import pictures
from fedlgd.report.groups import Group, group_runs, site_names
from fedlgd.report.headline import RULE, headline
from fedlgd.report.read import read_runs
from fedlgd.report.run import DataInfo, Run, Unreadable
from fedlgd.report.tables import accuracy_table, break_even_table, cost_table, data_table, flops_table
from fedlgd.report.texts import copies


def write_report(run_dirs: Sequence[Path], out: Path) -> Path:
    """Reads the runs and writes the page to `out`, whole or not at all."""
    runs, unreadable = read_runs(run_dirs)
    _write_atomically(out, render(runs, unreadable))
    return out


def write_figures(run_dirs: Sequence[Path], folder: Path) -> list[Path]:
    """The figures of the page as PDF and PNG."""
    runs, _ = read_runs(run_dirs)
    return save_all(group_runs(runs), folder)


def render(runs: Sequence[Run], unreadable: Sequence[Unreadable] = ()) -> str:
    """The page as text. The same runs give the same bytes."""
    groups = group_runs(runs)
    environment = _environment()
    accuracy, binary, even = accuracy_table(groups), binary_table(groups), break_evens(groups)
    script = environment.get_template("report.js").render()
    return environment.get_template("report.html").render(
        headline=headline(groups),
        setting=_setting(groups),
        rule=RULE,
        caveats=caveats(groups),
        unreadable=unreadable,
        accuracy=accuracy,
        accuracy_copies=copies(accuracy),
        binary=binary,
        binary_copies=copies(binary) if binary else (),
        figures=draw(groups),
        pictures=pictures(groups),
        cost=cost_table(groups),
        flops=flops_table(groups),
        break_even=break_even_table(even) if even else None,
        audits=audits(groups),
        data=[(data, data_table(data)) for data in _distinct_data(runs)],
        runs=runs,
        progress=progress,
        script=script,
        script_hash=_hash(script),
    )


def _setting(groups: Sequence[Group]) -> str:
    """5 sites · 100 rounds · 3 seeds · 6 runs, as far as it is the same for all."""
    runs = [run for group in groups for run in group.runs]
    parts = [plural(len(site_names(groups)), "site")]
    if len({run.planned for run in runs}) == 1:
        parts.append(plural(runs[0].planned, "round"))
    if len({len(group.runs) for group in groups}) == 1:
        parts.append(plural(len(groups[0].runs), "seed"))
    return " · ".join((*parts, plural(len(runs), "run")))


def _distinct_data(runs: Sequence[Run]) -> list[DataInfo]:
    return list({run.manifest.data.digest: run.manifest.data for run in runs}.values())


def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("fedlgd.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _hash(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")


def _write_atomically(out: Path, text: str) -> None:
    """Beside, then renamed: a reader sees the old page or the new one, never half of one."""
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(out)
    finally:
        beside.unlink(missing_ok=True)
