"""Reports of runs. The package can be called: `fedlgd.report("runs/demo")` writes one HTML file.

`read` reads folders into a `run`, and `groups` joins the seeds of a method. `tables`, `cost` and `summary` give the
results in numbers and words, written by `formats`. `figures` and `sweeps` draw them with `plots`; `grids` has the
images. `page` and `watch` put everything together. `privacy` is the section on privacy, `paper` the page on the
paper.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

Runs = str | Path | Sequence[str | Path]


class _Report(ModuleType):
    """This package has the name of the function; Python lets a module have a class of its own for such a case."""

    def __call__(self, runs: Runs, out: str | Path | None = None) -> Path:
        """Write the report of run folders, or of folders that contain them, and return its path."""
        from fedlgd.core.errors import FedlgdError
        from fedlgd.core.files import writing
        from fedlgd.report.page import write_report
        from fedlgd.rundir.read import run_folders

        paths = [Path(runs)] if isinstance(runs, str | Path) else [Path(run) for run in runs]
        folders = [run for path in paths for run in run_folders(path)]
        if not folders:
            raise FedlgdError(f"no run in {', '.join(map(str, paths))}; a run folder contains manifest.json")
        target = Path(out) if out else paths[0] / "report.html"
        with writing(target):
            return write_report(folders, target)


sys.modules[__name__].__class__ = _Report
