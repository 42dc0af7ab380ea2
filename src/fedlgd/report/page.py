"""One self-contained HTML page from any number of run folders. It needs neither a network nor torch.

The content security policy of the page allows only its own script, by hash.
"""

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedlgd.core.errors import RunError
from fedlgd.core.files import write_atomic, writing
from fedlgd.core.text import enumeration, plural, tied
from fedlgd.report import figures, summary, tables
from fedlgd.report.accuracy import BEST_RULE, accuracy_table, curve_table, marked_accuracy, mean_first
from fedlgd.report.attacks import audit_part, inversion_part
from fedlgd.report.claims import sets_sentence
from fedlgd.report.classes import binary_table
from fedlgd.report.cost import break_even_table, break_evens, clock, cost_table
from fedlgd.report.decision import decision_section
from fedlgd.report.grids import ANCHORS, pictures
from fedlgd.report.groups import Group, group_runs, label_variants, site_names
from fedlgd.report.plots import save
from fedlgd.report.privacy import privacy_section
from fedlgd.rundir.read import Run, read_runs, run_folders

Runs = str | Path | Sequence[str | Path]
TABLES: Mapping[str, Callable[[Sequence[Group]], tables.Table | None]] = {
    "accuracy": accuracy_table,
    "two-classes": binary_table,
    "cost": cost_table,
    "curves": curve_table,
}
TEMPLATES = Environment(
    loader=PackageLoader("fedlgd.report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters["tied"] = tied
TEMPLATES.globals |= {"plural": plural, "progress": summary.progress}


def write_report(runs: Runs, out: str | Path | None = None) -> Path:
    """Write the report of run folders, or of folders that contain them, and return its path.

    The default of `out` is `report.html` in the first folder. If writing fails, an old page stays. Only this
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
    drawings = [*figures.round_figures(groups), *figures.cost_figures(groups), *figures.epsilon_figures(groups)]
    drawings += figures.sweep_figures(figures.find_sweeps(groups))
    for section in (*figures.site_figures(groups), *figures.similarity_figures(groups)):
        drawings += section.drawings
    for run in (run for group in groups for run in group.runs):
        drawings += (drawing for name in run.audits for drawing in audit_part(run, name)["drawings"])
    return [file for each in drawings for file in save(each.figure, folder / each.name)]


def render(runs: Sequence[Run], unreadable: Sequence[str] = ()) -> str:
    """The page as text, section by section in its order. The same runs give the same bytes."""
    runs = label_variants(runs)
    groups = group_runs(runs)
    images, inversion = images_section(groups), inversion_section(groups)
    script = TEMPLATES.get_template("report.js").render()
    return TEMPLATES.get_template("report.html").render(
        header=header_section(groups, unreadable),
        banner=private_images(runs, images, inversion),
        decision=decision_section(groups),
        accuracy=accuracy_section(groups),
        sweep=sweep_section(groups),
        rounds=rounds_section(groups),
        images=images,
        cost=cost_section(groups),
        similarity=figures.similarity_figures(groups),
        privacy=privacy_section(groups),
        inversion=inversion,
        by_epsilon=[*figures.epsilon_figures(groups)],
        presence=[*tables.presence_tables(groups)],
        data=data_section(runs),
        runs=runs,
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
        "headline": summary.headline(groups),
        "scope": " · ".join((*scope, plural(len(runs), "run"))),
        "rule": summary.RULE + (summary.WINNER if len(groups) > 1 else ""),
        "caveats": summary.caveats(groups),
        "unreadable": unreadable,
    }


def accuracy_section(groups: Sequence[Group]) -> dict[str, Any]:
    """Accuracy by method and site, and more numbers for data with two classes."""
    accuracy, binary = accuracy_table(groups), binary_table(groups)
    return {
        "table": mean_first(accuracy),
        "rule": BEST_RULE if len(groups) > 1 else "",
        "copies": tables.table_formats(accuracy) | {"LaTeX": tables.as_latex(marked_accuracy(groups))},
        "binary": binary,
        "binary_copies": tables.table_formats(binary) if binary else {},
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


def images_section(groups: Sequence[Group]) -> dict[str, Any]:
    """Real and virtual images, which of them there are, and whether the virtual ones leave their sites."""
    shown, runs = pictures(groups), [run for group in groups for run in group.runs if run.sheets]
    anchors = any(sheet.folder == ANCHORS for run in runs for sheet in run.sheets)
    stay = sets_sentence(runs) if runs else None
    grids = [grid for gallery in shown.galleries for grid in gallery.grids]
    kinds = {"real": any(grid.real for grid in grids), "virtual": any(grid.pictures for grid in grids)}
    words = [word for word, there in kinds.items() if there]
    told = {"repeated": shown.repeated, "stay": stay, "anchors": anchors}
    return {"galleries": shown.galleries, "kinds": words, **told}


def private_images(
    runs: Sequence[Run], images: Mapping[str, Any], inversion: Sequence[Mapping[str, Any]]
) -> tables.Sentence | None:
    """The images of this page that show or derive from unpublished images; None if there are none."""
    shown = [f"{kind} images" for kind in images["kinds"]]
    if any(each["pictures"] or each["closest"] for each in inversion):
        shown.append("pictures of gradient inversion")
    if not shown or all(run.manifest.data.public for run in runs):
        return None
    text = (
        f"Contains images derived from private images: {enumeration(shown)}. Protect this file like those images."
    )
    return tables.Sentence("private-images", text)


def cost_section(groups: Sequence[Group]) -> dict[str, Any]:
    """Accuracy against cost, the cost by phase, and the break-even with training on real images."""
    cost, even = cost_table(groups), break_evens(groups)
    return {
        "drawings": figures.cost_figures(groups),
        "time": clock(groups),
        "table": cost,
        "copies": tables.table_formats(cost),
        "break_even": break_even_table(even) if even else None,
    }


def inversion_section(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Every inversion of every run."""
    runs = [run for group in groups for run in group.runs]
    return [inversion_part(run, name) for run in runs for name, found in run.inversions.items() if found.cells]


def data_section(runs: Sequence[Run]) -> list[tuple[Any, tables.Table]]:
    """Every federation once, with the table of its sites."""
    data = {run.manifest.data.digest: run.manifest.data for run in runs}
    return [(each, tables.data_table(each)) for each in data.values()]


def script_hash(script: str) -> str:
    """The hash of an inline script, as a content security policy names it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
