"""Runs with the same configuration are computed once: a finished one of another comparison is copied."""

import os
import shutil
import uuid
from contextlib import suppress
from pathlib import Path

from fedlgd.core.errors import FedlgdError
from fedlgd.core.files import make_folder, read_json, write_json, writing
from fedlgd.data.federation import Federation
from fedlgd.rundir.records import committed_records
from fedlgd.runs.config import Config
from fedlgd.runs.folder import check_origin

NOT_COPIED = shutil.ignore_patterns(".lock", "*.part", "report.html")


def find_equal(library: Path, config: Config, federation: Federation) -> Path | None:
    """A finished run below `library` with this configuration and these images; unreadable runs are passed over."""
    wanted = config.toml().encode()
    for file in sorted(library.rglob("seed*/config.toml")):
        run = file.parent
        with suppress(FedlgdError, OSError):
            if file.read_bytes() == wanted and len(committed_records(run)) == config.plan.rounds + 1:
                check_origin(run, read_json(run / "manifest.json"), federation)
                return run
    return None


def copy_run(run: Path, folder: Path, label: str) -> None:
    """Copy beside, sync, rename: the folder is absent or complete. The copy names its origin."""
    beside = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.part")
    with writing(folder):
        make_folder(folder.parent)
        try:
            shutil.copytree(run, beside, ignore=NOT_COPIED)
            own = {"label": label, "copy_of": os.path.relpath(run, folder)}
            write_json(beside / "manifest.json", read_json(run / "manifest.json") | own)
            os.sync()
            beside.rename(folder)
        except BaseException:
            shutil.rmtree(beside, ignore_errors=True)
            raise
