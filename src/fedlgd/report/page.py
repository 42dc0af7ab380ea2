"""One self-contained HTML page from any number of run folders. It needs neither a network nor torch.

The content security policy of the page allows only its own script, by hash.
"""

import base64
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedlgd.core.files import write_atomic
from fedlgd.core.text import plural
from fedlgd.report import tables
from fedlgd.report.cost import break_even_table, break_evens, clock, cost_table
from fedlgd.report.figures import draw
from fedlgd.report.formats import copies
from fedlgd.report.grids import pictures
from fedlgd.report.groups import Group, group_runs, site_names, told_apart
from fedlgd.report.plots import save
from fedlgd.report.privacy.inversion import epsilon_drawing, inversions
from fedlgd.report.privacy.section import audit_drawings, privacy_of, spent_together
from fedlgd.report.summary import RULE, WINNER, caveats, headline, progress
from fedlgd.report.sweeps import find_sweeps, sweep_tables
from fedlgd.report.tables import presence_tables
from fedlgd.rundir.read import Run, read_runs

TEMPLATES = Environment(
    loader=PackageLoader("fedlgd.report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def tied(text: str) -> str:
    """The text without a line break between a number and its unit."""
    return re.sub(r"(?<=\d) (?=(?:%|s|min|h|B|[kMGT]B|points?)(?:\W|$))", "\u00a0", text)


TEMPLATES.filters["tied"] = tied
TEMPLATES.globals["plural"] = plural


def write_report(run_dirs: Sequence[Path], out: Path) -> Path:
    """Reads the runs and writes the page to `out`; a failed write leaves an old page as it is.

    Only this user can read it: it shows virtual images, and real ones where a run copied some.
    """
    write_atomic(out, render(*read_runs(run_dirs)).encode(), private=True)
    return out


def write_figures(run_dirs: Sequence[Path], folder: Path) -> list[Path]:
    """Writes the figures of the page as PDF and PNG."""
    groups = group_runs(read_runs(run_dirs)[0])
    folder.mkdir(parents=True, exist_ok=True)
    audits = (drawing for group in groups for run in group.runs for drawing in audit_drawings(run))
    return [file for each in (*draw(groups).all, *audits) for file in save(each.figure, folder / each.name)]


def render(runs: Sequence[Run], unreadable: Sequence[str] = ()) -> str:
    """The page as text. The same runs give the same bytes."""
    runs = told_apart(runs)
    groups = group_runs(runs)
    accuracy, binary = tables.accuracy_table(groups), tables.binary_table(groups)
    cost, even = cost_table(groups), break_evens(groups)
    data = {run.manifest.data.digest: run.manifest.data for run in runs}
    script = TEMPLATES.get_template("report.js").render()
    return TEMPLATES.get_template("report.html").render(
        headline=headline(groups),
        scope=_scope(groups),
        rule=RULE + WINNER if len(groups) > 1 else RULE,
        caveats=caveats(groups),
        unreadable=unreadable,
        accuracy=tables.mean_first(accuracy),
        accuracy_copies=copies(accuracy),
        binary=binary,
        binary_copies=copies(binary) if binary else {},
        figures=draw(groups),
        sweeps=sweep_tables(find_sweeps(groups)),
        pictures=pictures(groups),
        time=clock(groups),
        cost=cost,
        cost_copies=copies(cost),
        break_even=break_even_table(even) if even else None,
        privacy=privacy_of(groups),
        spent_together=spent_together(groups),
        inversions=inversions(groups),
        by_epsilon=epsilon_drawing(groups),
        presence=presence_tables(groups),
        data=[(each, tables.data_table(each)) for each in data.values()],
        runs=runs,
        progress=progress,
        script=script,
        script_hash=script_hash(script),
    )


def _scope(groups: Sequence[Group]) -> str:
    """5 sites · 100 rounds · 3 seeds · 6 runs; rounds and seeds only if they are the same for all."""
    runs = [run for group in groups for run in group.runs]
    parts = [plural(len(site_names(groups)), "site")]
    if len({run.planned for run in runs}) == 1:
        parts.append(plural(runs[0].planned, "round"))
    if len({len(group.runs) for group in groups}) == 1:
        parts.append(plural(len(groups[0].runs), "seed"))
    return " · ".join((*parts, plural(len(runs), "run")))


def script_hash(script: str) -> str:
    """The hash of an inline script, as a content security policy names it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
