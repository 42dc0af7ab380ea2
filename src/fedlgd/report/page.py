"""One self-contained HTML page from any number of run folders. It needs neither a network nor torch.

The content security policy of the page allows only its own script, by hash.
"""

import base64
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedlgd.core.errors import RunError
from fedlgd.core.files import write_atomic, writing
from fedlgd.core.text import plural
from fedlgd.report import tables
from fedlgd.report.cost import break_even_table, break_evens, clock, cost_table
from fedlgd.report.figures import draw_figures
from fedlgd.report.formats import table_formats
from fedlgd.report.grids import pictures
from fedlgd.report.groups import Group, group_runs, label_variants, site_names
from fedlgd.report.plots import save
from fedlgd.report.privacy.inversion import epsilon_drawing, inversions
from fedlgd.report.privacy.section import audit_drawings, privacy_of, spent_together
from fedlgd.report.summary import RULE, WINNER, caveats, headline, progress
from fedlgd.report.sweeps import find_sweeps, sweep_tables
from fedlgd.report.tables import presence_tables
from fedlgd.rundir.read import Run, read_runs, run_folders

Runs = str | Path | Sequence[str | Path]
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


def write_report(runs: Runs, out: str | Path | None = None) -> Path:
    """Write the report of run folders, or of folders that contain them, and return its path.

    The default of `out` is `report.html` in the first folder. A failed write leaves an old page as it is. Only this
    user can read the page: it shows virtual images, and real ones where a run copied some.
    """
    folders = find_runs(runs)
    first = runs if isinstance(runs, str | Path) else runs[0]
    page = Path(out or Path(first) / "report.html")
    content = render(*read_runs(folders)).encode()
    with writing(page):
        write_atomic(page, content, private=True)
    return page


def find_runs(runs: Runs) -> list[Path]:
    """All run folders among these folders and inside them."""
    paths = [Path(runs)] if isinstance(runs, str | Path) else [Path(run) for run in runs]
    folders = [run for path in paths for run in run_folders(path)]
    if not folders:
        raise RunError("no-run-in-folder", folders=[str(path) for path in paths])
    return folders


def write_figures(run_dirs: Sequence[Path], folder: Path) -> list[Path]:
    """Writes the figures of the page as PDF and PNG."""
    groups = group_runs(read_runs(run_dirs)[0])
    folder.mkdir(parents=True, exist_ok=True)
    audits = (drawing for group in groups for run in group.runs for drawing in audit_drawings(run))
    return [file for each in (*draw_figures(groups).all, *audits) for file in save(each.figure, folder / each.name)]


def render(runs: Sequence[Run], unreadable: Sequence[str] = ()) -> str:
    """The page as text. The same runs give the same bytes."""
    runs = label_variants(runs)
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
        accuracy_copies=table_formats(accuracy),
        binary=binary,
        binary_copies=table_formats(binary) if binary else {},
        figures=draw_figures(groups),
        sweeps=sweep_tables(find_sweeps(groups)),
        pictures=pictures(groups),
        time=clock(groups),
        cost=cost,
        cost_copies=table_formats(cost),
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
