"""Log the records of a run to TensorBoard, with its settings and the pictures of its virtual sets.

`track.json` in the run folder stores how many rounds are logged, so every round is logged once. A resumed run, or a
run that is tracked later, logs the missing rounds. A failing tracker only causes a warning. For other trackers see
`docs/watching.md`.
"""

import importlib
import math
import sys
import warnings
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from PIL import Image

from fedlgd.core import files
from fedlgd.core.errors import SettingError
from fedlgd.core.files import safe_name
from fedlgd.engines.storage import version_name
from fedlgd.rundir.records import RoundRecord, committed_records
from fedlgd.runs.config import Config

TRACK_FILE = "track.json"
TRACKERS = {"tensorboard": "tensorboardX"}  # packages by the name of the tracker


def check_trackers(names: Sequence[str]) -> None:
    """Raise an error if a tracker is unknown or not installed, before the run starts."""
    for name in names:
        if name not in TRACKERS:
            raise SettingError("unknown-tracker", name=name, available=list(TRACKERS))
        try:
            importlib.import_module(TRACKERS[name])
        except ImportError as error:
            raise SettingError("tracker-missing", name=name, package=TRACKERS[name], error=error) from error


class Tracking:
    """A listener that logs every committed record of a run once."""

    def __init__(self, folder: Path, config: Config) -> None:
        self._folder, self._config = folder, config
        self._writer: Any = None
        self._records: list[RoundRecord] = []
        self._stopped = False

    def __enter__(self) -> "Tracking":
        return self

    def __call__(self, record: RoundRecord) -> None:
        if self._records:
            self._records.append(record)
        self._log()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Log a run that was already complete, then close."""
        if kind is None and not self._records:
            self._log()
        if self._writer:
            self._writer.close()

    def _log(self) -> None:
        """An exception ends the tracking, not the run; what the tracker prints goes to stderr."""
        if self._stopped:
            return
        try:
            with redirect_stdout(sys.stderr):
                self._catch_up()
        except Exception as error:
            self._stopped = True
            warnings.warn(
                f"tensorboard stopped tracking ({type(error).__name__}: {error}); the run continues. Re-run the "
                "same command to log the missing rounds",
                stacklevel=2,
            )

    def _catch_up(self) -> None:
        """Log the missing records. The first call reads the committed records, which end with the newest one."""
        self._records = self._records or committed_records(self._folder)
        file = self._folder / TRACK_FILE
        marks = files.read_json(file) if file.exists() else {}
        logged = marks.get("tensorboard", {}).get("logged", 0)
        for step in range(logged, len(self._records)):
            self._writer = self._writer or self._open(new=not logged)
            for name, value in values_of(self._records[: step + 1]).items():
                self._writer.add_scalar(name, value, step)
            folder = self._folder / "virtual" / version_name(self._records[step].round)
            for picture in sorted(folder.glob("[!.]*.png")):
                with Image.open(picture) as image:
                    pixels = np.asarray(image.convert("RGB"))
                self._writer.add_image(f"virtual/{picture.stem}", pixels, step, dataformats="HWC")
            self._writer.flush()
            files.write_json(file, marks | {"tensorboard": {"id": "tensorboard", "logged": step + 1}})

    def _open(self, new: bool) -> Any:
        """Event files in the run folder; default names have a resolution of one second."""
        folder = self._folder / "tensorboard"
        suffix = f".{len(list(folder.glob('events.*')))}"
        package = importlib.import_module(TRACKERS["tensorboard"])
        writer = package.SummaryWriter(logdir=str(folder), filename_suffix=suffix)
        if new:
            writer.add_text("config", f"```toml\n{self._config.toml()}```", 0)
        return writer


def values_of(records: Sequence[RoundRecord]) -> dict[str, float]:
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
