"""Trackers: log the records of a run to TensorBoard, Weights & Biases or MLflow.

`track.json` in the run folder stores how many rounds each tracker has logged, so every round is logged once. A
resumed run, or a run that is tracked later, logs the missing rounds. A failing tracker only causes a warning.
"""

import importlib
import math
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from types import TracebackType
from typing import ClassVar, Protocol

import numpy as np
from PIL import Image

from fedlgd.core import files
from fedlgd.core.errors import SettingError
from fedlgd.core.files import safe_name
from fedlgd.core.settings import flat
from fedlgd.engines.storage import version_name
from fedlgd.rundir.records import RoundRecord, committed_records
from fedlgd.runs.config import Config

MARKS = "track.json"
PROJECT = "fedlgd"


@dataclass(frozen=True, slots=True)
class Tracked:
    """The run that is tracked."""

    title: str
    folder: Path
    config: Config


class Tracker(Protocol):
    """Logs the values of one run. `known` is the `id` of this run from an earlier session, or empty."""

    package: ClassVar[str]
    id: str

    def __init__(self, run: Tracked, known: str) -> None: ...

    def log(self, step: int, values: Mapping[str, float], pictures: Mapping[str, Path]) -> None: ...

    def close(self, finished: bool) -> None: ...


class TensorBoard:
    """Event files in the run folder. They stay on this machine, so they include the virtual images."""

    package: ClassVar[str] = "tensorboardX"
    id = "tensorboard"

    def __init__(self, run: Tracked, known: str) -> None:
        folder = run.folder / self.id
        suffix = f".{len(list(folder.glob('events.*')))}"  # default file names have a resolution of one second
        package = importlib.import_module(self.package)
        self._writer = package.SummaryWriter(logdir=str(folder), filename_suffix=suffix)
        if not known:
            self._writer.add_text("config", f"```toml\n{run.config.toml()}```", 0)

    def log(self, step: int, values: Mapping[str, float], pictures: Mapping[str, Path]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        for name, file in pictures.items():
            with Image.open(file) as picture:
                self._writer.add_image(name, np.asarray(picture.convert("RGB")), step, dataformats="HWC")
        self._writer.flush()

    def close(self, finished: bool) -> None:
        self._writer.close()


class Wandb:
    """Values and settings only: the virtual images of a site never leave it. `WANDB_MODE=offline` works."""

    package: ClassVar[str] = "wandb"

    def __init__(self, run: Tracked, known: str) -> None:
        self._run = importlib.import_module(self.package).init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.title,
            id=known or None,
            resume="allow" if known else None,
            dir=str(run.folder),
            config=run.config.plain(),
            settings={"console": "off"},
        )
        self.id = str(self._run.id)

    def log(self, step: int, values: Mapping[str, float], pictures: Mapping[str, Path]) -> None:
        self._run.log(dict(values), step=step)

    def close(self, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)


class Mlflow:
    """Values and settings only, logged to `MLFLOW_TRACKING_URI`."""

    package: ClassVar[str] = "mlflow"

    def __init__(self, run: Tracked, known: str) -> None:
        self._mlflow = importlib.import_module(self.package)
        if known:
            self.id = self._mlflow.start_run(run_id=known).info.run_id
        else:
            self._mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT))
            self.id = self._mlflow.start_run(run_name=run.title).info.run_id
            self._mlflow.log_params(dict(flat(run.config.plain())))

    def log(self, step: int, values: Mapping[str, float], pictures: Mapping[str, Path]) -> None:
        self._mlflow.log_metrics(dict(values), step=step)

    def close(self, finished: bool) -> None:
        self._mlflow.end_run("FINISHED" if finished else "KILLED")


TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "wandb": Wandb, "mlflow": Mlflow}


def check_trackers(names: Sequence[str]) -> None:
    """Raise an error if a tracker is unknown or not installed, before the run starts."""
    for name in names:
        if name not in TRACKERS:
            raise SettingError(f"no tracker is called {name!r}; available: {', '.join(TRACKERS)}")
        package = TRACKERS[name].package
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise SettingError(f"--track {name} needs {package} ({error}); pip install {package}") from error


class Tracking:
    """A listener that logs every committed record of a run once to each tracker."""

    def __init__(self, names: Sequence[str], run: Tracked) -> None:
        check_trackers(names)
        self._names = list(dict.fromkeys(names))
        self._run = run
        self._open: dict[str, Tracker] = {}
        self._records: list[RoundRecord] = []

    def __enter__(self) -> "Tracking":
        return self

    def __call__(self, record: RoundRecord) -> None:
        if self._records:
            self._records.append(record)
        self._feed()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Log a run that was already complete, then close all trackers."""
        if kind is None and not self._records:
            self._feed()
        finished = len(self._records) == self._run.config.plan.rounds + 1
        for name, tracker in self._open.items():
            self._attempt(name, partial(tracker.close, finished))

    def _feed(self) -> None:
        for name in self._names:
            self._attempt(name, partial(self._catch_up, name))

    def _catch_up(self, name: str) -> None:
        """Log the missing records. The first call reads the committed records, which end with the newest one."""
        self._records = self._records or committed_records(self._run.folder)
        file = self._run.folder / MARKS
        marks = files.read_json(file) if file.exists() else {}
        mark = marks.get(name, {"id": "", "logged": 0})
        if mark["logged"] == len(self._records):
            return
        tracker = self._open.get(name) or TRACKERS[name](self._run, mark["id"])
        self._open[name] = tracker
        for step in range(mark["logged"], len(self._records)):
            folder = self._run.folder / "virtual" / version_name(self._records[step].round)
            pictures = {f"virtual/{file.stem}": file for file in sorted(folder.glob("[!.]*.png"))}
            tracker.log(step, numbers(self._records[: step + 1]), pictures)
            files.write_json(file, marks | {name: {"id": tracker.id, "logged": step + 1}})

    def _attempt(self, name: str, action: Callable[[], None]) -> None:
        """An exception disables only this tracker; its output is redirected to stderr."""
        try:
            with redirect_stdout(sys.stderr):
                action()
        except Exception as error:
            self._names = [each for each in self._names if each != name]
            warnings.warn(
                f"{name} stopped tracking ({type(error).__name__}: {error}); the run continues. Re-run the same "
                "command to log the missing rounds",
                stacklevel=2,
            )


def numbers(records: Sequence[RoundRecord]) -> dict[str, float]:
    """The values to log for the last record, without NaN; bytes are sums over all records."""
    last = records[-1]
    found = {
        "mean/accuracy": last.accuracy,
        "mean/test_loss": fmean(s.loss for s in last.scores.values()) if last.scores else math.nan,
        "mean/train_loss": last.training_loss,
        "bytes/up": sum(record.bytes_up for record in records),
        "bytes/down": sum(record.bytes_down for record in records),
        **{f"accuracy/{safe_name(site)}": score.accuracy for site, score in last.scores.items()},
        **{f"seconds/{phase}": value for phase, value in last.seconds.items()},
        **{f"cpu/{phase}": value for phase, value in last.cpu.items()},
        **{f"flops/{phase}": value for phase, value in last.flops.items()},
    }
    return {name: float(value) for name, value in found.items() if not math.isnan(value)}
