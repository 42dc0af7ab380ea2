"""One self-contained HTML page from any number of run directories: no network, no script, no torch."""

import os
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from fedlgd.report.caveats import caveats, progress
from fedlgd.report.cost import bars
from fedlgd.report.figures import bar_figure, curve_figure
from fedlgd.report.format import duration, operations
from fedlgd.report.grids import galleries
from fedlgd.report.groups import Group, curves, group_runs
from fedlgd.report.headline import RULE, headline
from fedlgd.report.read import read_runs
from fedlgd.report.run import DataInfo, Run, Unreadable
from fedlgd.report.tables import accuracy_table, cost_table, data_table, flops_table


def write_report(run_dirs: Sequence[Path], out: Path) -> Path:
    """Reads the runs and writes the page to `out`, whole or not at all."""
    runs, unreadable = read_runs(run_dirs)
    _write_atomically(out, render(runs, unreadable))
    return out


def render(runs: Sequence[Run], unreadable: Sequence[Unreadable] = ()) -> str:
    """The page as text. The same runs give the same bytes."""
    groups = group_runs(runs)
    return _template().render(
        headline=headline(groups),
        rule=RULE,
        caveats=caveats(groups),
        unreadable=unreadable,
        accuracy=accuracy_table(groups),
        figures=_figures(groups),
        galleries=galleries(groups),
        cost=cost_table(groups),
        flops=flops_table(groups),
        data=[(data, data_table(data)) for data in _distinct_data(runs)],
        runs=runs,
        progress=progress,
    )


def _figures(groups: Sequence[Group]) -> dict[str, Markup]:
    """SVG made by matplotlib, which escapes every name it writes."""
    drawn = {
        "accuracy": curve_figure(curves(groups, lambda record: 100 * record.accuracy), "accuracy, %"),
        "loss": curve_figure(curves(groups, lambda record: record.loss), "test loss"),
        "seconds": bar_figure(bars(groups, "seconds"), "time", duration),
        "flops": bar_figure(bars(groups, "flops"), "operations", operations),
    }
    return {name: Markup(svg) for name, svg in drawn.items()}


def _distinct_data(runs: Sequence[Run]) -> list[DataInfo]:
    return list({run.manifest.data.digest: run.manifest.data for run in runs}.values())


def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("fedlgd.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html")


def _write_atomically(out: Path, text: str) -> None:
    """Beside, then renamed: a reader sees the old page or the new one, never half of one."""
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(out)
    finally:
        beside.unlink(missing_ok=True)
