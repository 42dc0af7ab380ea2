"""The processes at a site, and the supervisor that starts them again.

Two processes: Flower's SuperNode, which holds the connection to the server, and the worker, which computes. The
SuperNode listens on a free port of 127.0.0.1 for the worker, and asks it for a secret that is new at every
start.
"""

import os
import secrets
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fedlgd.core.files import private_folder, write_atomic
from fedlgd.deploy.kit import Kit, read_kit
from fedlgd.deploy.processes import end_with_parent, start_child, stop_child

FIRST_PAUSE = 10.0
LONGEST_PAUSE = 600.0
STABLE_SECONDS = 300.0  # after which a failure counts as the first one again
LOOK_SECONDS = 0.5  # between two looks at the processes

Say = Callable[[str], None]


class Processes(Protocol):
    """Started processes."""

    def ended(self) -> str:
        """What ended; empty while all are alive."""
        ...

    def stop(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Supervisor:
    """Starts the processes, and again after a pause when one ends.

    Until 60 s after its last sign of life the server takes a site for connected; a SuperNode asks until then.
    """

    begin: Callable[[], Processes]
    say: Say
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    tick: Callable[[], None] = lambda: None

    def run(self) -> None:
        """Until it is interrupted; the processes end with it."""
        failures = 0
        while True:
            began, why = self.clock(), self._watch()
            failures = 1 if self.clock() - began > STABLE_SECONDS else failures + 1
            pause = min(FIRST_PAUSE * 2 ** (failures - 1), LONGEST_PAUSE)
            self.say(f"{why}; the next start is in {pause:.0f} s")
            self.sleep(pause)

    def _watch(self) -> str:
        running = self.begin()
        try:
            while not (why := running.ended()):
                self.tick()
                self.sleep(LOOK_SECONDS)
            return why
        finally:
            running.stop()


class Node:
    """The SuperNode and the worker of a site. `log` receives every line that they print."""

    def __init__(self, kit: Kit, log: Say) -> None:
        self._last: list[str] = []
        self._log = log
        port, secret = free_port(), private_folder(kit.state) / "secret"
        write_atomic(secret, secrets.token_bytes(32), private=True)
        node = ["fedlgd.deploy.supernode", str(kit.folder), str(port), str(secret)]
        work = ["fedlgd.deploy.worker", f"127.0.0.1:{port}", str(secret), str(kit.folder)]
        self._children = {"the SuperNode": start_child(node, kit.state, self._hear)}
        self._children["the worker"] = start_child(work, kit.state, self._hear)

    def ended(self) -> str:
        for name, child in self._children.items():
            if child.poll() is not None:
                return f"{name} ended ({ending_reason(self._last) or f'code {child.returncode}'})"
        return ""

    def stop(self) -> None:
        for child in self._children.values():
            stop_child(child)

    def _hear(self, line: str) -> None:
        self._last = [*self._last[-50:], line]
        self._log(line)


ENDING_REASONS = {
    "certificate_verify_failed": "the server has a certificate that ca.crt of this kit does not trust",
    "certificate verify failed": "the server has a certificate that ca.crt of this kit does not trust",
    "2004": "the server takes this site for connected; it was here less than a minute ago",
    "404 not found": "the server does not know the key of this kit; ask the coordinator whether it is registered",
}


def ending_reason(lines: list[str]) -> str:
    """Why a SuperNode ended, from its last lines; empty if they do not tell."""
    text = "\n".join(lines).lower()
    return next((words for sign, words in ENDING_REASONS.items() if sign in text), "")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def supernode_arguments(kit: Kit, port: int, secret: Path) -> list[str]:
    """The command line of Flower's SuperNode. Apps run in the worker only: isolation `process`."""
    return [
        *("--superlink", str(kit.server), "--root-certificates", str(kit.ca)),
        *("--auth-supernode-private-key", str(kit.folder / "key")),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--isolation", "process", "--superexec-auth-secret-file", str(secret)),
        *("--node-config", f"site='{kit.site}'"),
    ]


def run_supernode(folder: str, port: str, secret: str) -> None:
    """Run the SuperNode in this process; `fedlgd join` starts it."""
    from flwr.supernode.cli import flower_supernode

    end_with_parent()
    kit = read_kit(Path(folder), "site")
    sys.argv = ["flower-supernode", *supernode_arguments(kit, int(port), Path(secret))]
    with suppress(SystemExit):
        flower_supernode()
    sys.stdout.flush()
    os._exit(1)  # Flower leaves threads that never end, and the supervisor waits for the process


if __name__ == "__main__":
    run_supernode(*sys.argv[1:])
