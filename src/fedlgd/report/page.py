"""One self-contained HTML page from any number of run folders. It needs neither a network nor torch.

The content security policy of the page allows only its own script, by hash.
"""

import base64
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedlgd.core.errors import RunError
from fedlgd.core.files import write_atomic, writing
from fedlgd.core.text import plural
from fedlgd.report import figures
from fedlgd.report.cost import break_even_table, break_evens, clock, cost_table
from fedlgd.report.formats import Table, table_formats
from fedlgd.report.grids import pictures
from fedlgd.report.groups import Group, group_runs, label_variants, site_names
from fedlgd.report.inversion import inversion_section
from fedlgd.report.plots import save
from fedlgd.report.privacy import audit_parts, privacy_section
from fedlgd.report.summary import RULE, WINNER, caveats, headline, progress
from fedlgd.report.tables import accuracy_table, binary_table, data_table, mean_first, presence_tables
from fedlgd.rundir.manifest import DataInfo
from fedlgd.rundir.read import Run, read_runs, run_folders

Runs = str | Path | Sequence[str | Path]
_LOADER = PackageLoader("fedlgd.report")
TEMPLATES = Environment(
    loader=_LOADER, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)


def tied(text: object) -> str:
    """The text without a line break between a number and its unit."""
    return re.sub(r"(?<=\d) (?=(?:%|s|min|h|B|[kMGT]B|points?)(?:\W|$))", "\u00a0", str(text))


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
    drawings = [*figures.round_figures(groups), *figures.cost_figures(groups)]
    drawings += figures.sweep_figures(figures.find_sweeps(groups))
    audits = (part for group in groups for run in group.runs for part in audit_parts(run))
    for section in (*figures.site_figures(groups), *figures.similarity_figures(groups)):
        drawings += section.drawings
    drawings += (drawing for part in audits for drawing in part.drawings)
    if by_epsilon := figures.epsilon_figure(groups):
        drawings.append(by_epsilon)
    return [file for each in drawings for file in save(each.figure, folder / each.name)]


def render(runs: Sequence[Run], unreadable: Sequence[str] = ()) -> str:
    """The page as text, section by section in its order. The same runs give the same bytes."""
    runs = label_variants(runs)
    groups = group_runs(runs)
    script = TEMPLATES.get_template("report.js").render()
    return TEMPLATES.get_template("report.html").render(
        header=header_section(groups, unreadable),
        accuracy=accuracy_section(groups),
        sweep=sweep_section(groups),
        rounds=rounds_section(groups),
        images=pictures(groups),
        cost=cost_section(groups),
        similarity=figures.similarity_figures(groups),
        privacy=privacy_section(groups),
        inversion=[*inversion_section(groups)],
        by_epsilon=figures.epsilon_figure(groups),
        presence=[*presence_tables(groups)],
        data=data_section(runs),
        runs=runs,
        progress=progress,
        script=script,
        script_hash=script_hash(script),
    )


def header_section(groups: Sequence[Group], unreadable: Sequence[str]) -> dict[str, Any]:
    """The result in words, its scope, and its limits. Rounds and seeds only if all have the same."""
    runs = [run for group in groups for run in group.runs]
    scope = [plural(len(site_names(groups)), "site")]
    if len({run.planned for run in runs}) == 1:
        scope.append(plural(runs[0].planned, "round"))
    if len({len(group.runs) for group in groups}) == 1:
        scope.append(plural(len(groups[0].runs), "seed"))
    return {
        "headline": headline(groups),
        "scope": " · ".join((*scope, plural(len(runs), "run"))),
        "rule": RULE + WINNER if len(groups) > 1 else RULE,
        "caveats": caveats(groups),
        "unreadable": unreadable,
    }


def accuracy_section(groups: Sequence[Group]) -> dict[str, Any]:
    """Accuracy by method and site, and more numbers for data with two classes."""
    accuracy, binary = accuracy_table(groups), binary_table(groups)
    return {
        "table": mean_first(accuracy),
        "copies": table_formats(accuracy),
        "binary": binary,
        "binary_copies": table_formats(binary) if binary else {},
    }


def sweep_section(groups: Sequence[Group]) -> dict[str, Any] | None:
    """Accuracy over the values of settings; None if the runs are no sweep."""
    sweeps = figures.find_sweeps(groups)
    if not sweeps:
        return None
    return {"drawings": [*figures.sweep_figures(sweeps)], "tables": [*figures.sweep_tables(sweeps)]}


def rounds_section(groups: Sequence[Group]) -> dict[str, Any]:
    """Accuracy and loss by round, then at each site; `hidden`: the number of sites without figures."""
    hidden = max(0, len(site_names(groups)) - figures.MAX_SITES_DRAWN)
    return {"drawings": figures.round_figures(groups), "sites": [*figures.site_figures(groups)], "hidden": hidden}


def cost_section(groups: Sequence[Group]) -> dict[str, Any]:
    """Accuracy against cost, the cost by phase, and the break-even with training on real images."""
    cost, even = cost_table(groups), break_evens(groups)
    return {
        "drawings": figures.cost_figures(groups),
        "time": clock(groups),
        "table": cost,
        "copies": table_formats(cost),
        "break_even": break_even_table(even) if even else None,
    }


def data_section(runs: Sequence[Run]) -> list[tuple[DataInfo, Table]]:
    """Every federation once, with the table of its sites."""
    data = {run.manifest.data.digest: run.manifest.data for run in runs}
    return [(each, data_table(each)) for each in data.values()]


def script_hash(script: str) -> str:
    """The hash of an inline script, as a content security policy names it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
