"""A server and sites as real processes on this machine, with TLS and keys, for tests that take minutes."""

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from fedlgd.deploy.kit import Address, provision
from fedlgd.rundir.records import RoundRecord, committed_records
from tests.data.pictures import tree

PATIENCE = 900.0  # seconds; starting everything takes 15 on an idle machine
SITES = ("a", "b", "c")
TINY = {
    "net.width": 4,
    "net.depth": 2,
    "distil.per_class": 2,
    "distil.steps": 1,
    "refine.steps": 1,
    "anchors.per_class": 2,
    "anchors.steps": 1,
}
SETTINGS = [f"--set={path}={value}" for path, value in TINY.items()]


class Desk:
    """A folder with kits and images, and the processes that the test started in it."""

    def __init__(
        self, folder: Path, server: Address, classes: Mapping[str, int] = {"no": 14, "yes": 14}, kits: bool = True
    ) -> None:
        self.folder, self.server = folder, server
        self.kits, self.images = folder / "kits", tree(folder / "images", SITES, classes)
        self.started: dict[str, subprocess.Popen[bytes]] = {}
        if kits:
            provision(self.kits, SITES, server)

    def start(self, name: str, *arguments: str | Path) -> subprocess.Popen[bytes]:
        """`fedlgd` with these arguments; what it prints goes to a file."""
        with self.log(name).open("ab") as log:
            command = [sys.executable, "-m", "fedlgd", *map(str, arguments)]
            self.started[name] = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)
        return self.started[name]

    def serve(self) -> None:
        self.start("serve", "serve", self.kits / "server", "--store", "100")

    def join(self, site: str, kit: Path | None = None, name: str = "", *more: str) -> subprocess.Popen[bytes]:
        kit = kit or self.kits / f"site-{site}"
        return self.start(name or site, "join", kit, "--data", self.images / site, *more)

    def run(self, out: str, *more: str, rounds: int = 6) -> subprocess.Popen[bytes]:
        how = ["--engine", "flower", "--kit", self.kits / "server", "--method", "fedlgd", "--rounds", str(rounds)]
        return self.start(out, "run", *how, "-o", out, *SETTINGS, *more)

    def done(self, name: str, *arguments: str | Path) -> int:
        """The exit code of a command."""
        return self.start(name, *arguments).wait(PATIENCE)

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def says(self, name: str, text: str, after: int = 0) -> bool:
        """Whether it has printed the text, in one line or in several."""
        return text in " ".join(self.log(name).read_text(errors="replace")[after:].split())

    def records(self, out: str) -> list[RoundRecord]:
        folder = self.folder / out
        return list(committed_records(folder)) if (folder / "state" / "head.json").exists() else []

    def wait(self, what: str, ready: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE
        while not ready():
            if time.monotonic() > end:
                logs = "\n".join(
                    f"--- {n}\n{self.log(n).read_text(errors='replace')[-2000:]}" for n in self.started
                )
                pytest.fail(f"waited in vain: {what}\n{logs}")
            time.sleep(0.5)

    def stop(self) -> None:
        for process in self.started.values():
            process.terminate()
        for process in self.started.values():
            process.wait(60)


def processes(*words: str) -> list[int]:
    """The processes whose command line has all these words."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
            except OSError:
                continue
            found += [int(entry.name)] if all(word in line for word in words) else []
    return found
