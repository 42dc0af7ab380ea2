"""Child processes that are quiet, offline and end with their parent, and the supervisor of the two at a site.

At a site there are Flower's SuperNode, which holds the connection to the server, and the worker (`client`), which
computes. The SuperNode listens on a free port of 127.0.0.1 for the worker, and asks it for a secret that is new at
every start. This module is also the program of the SuperNode.
"""

import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from fedlgd.core.files import private_folder, write_atomic
from fedlgd.deploy.kit import Kit, read_kit

BEAT_SECONDS = 10.0  # between two signs of life; Flower gives a task up after 60
STOP_SECONDS = 10.0  # for the end of a child after SIGTERM
FIRST_PAUSE = 10.0
LONGEST_PAUSE = 600.0
STABLE_SECONDS = 300.0  # after which a failure counts as the first one again
LOOK_SECONDS = 0.5  # between two looks at the processes
OFFLINE_ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
ENDING_REASONS = {
    "certificate_verify_failed": "the server has a certificate that ca.crt of this kit does not trust",
    "certificate verify failed": "the server has a certificate that ca.crt of this kit does not trust",
    "2004": "the server takes this site for connected; it was here less than a minute ago",
    "404 not found": "the server does not know the key of this kit; ask the coordinator whether it is registered",
}

Say = Callable[[str], None]


def be_quiet(state: Path) -> None:
    """Flower neither calls home nor installs anything in this process and its children; it writes below `state`
    only. Call it before Flower is imported."""
    os.environ.update(OFFLINE_ENVIRONMENT, FLWR_HOME=str(private_folder(state / "flwr")))


def start_child(arguments: Sequence[str], on_line: Say) -> subprocess.Popen[str]:
    """Start a Python module of this installation; `on_line` receives what it prints.

    Files that it makes are private. It is in its own session, so that Ctrl-C reaches it through its parent only.
    """
    child = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        umask=0o077,
        start_new_session=True,
    )

    def forward() -> None:
        for line in child.stdout or ():
            on_line(line.rstrip("\n"))

    threading.Thread(target=forward, daemon=True).start()
    return child


def stop_child(child: subprocess.Popen[str]) -> None:
    """Ask a child and all that it started to end, and end them."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(STOP_SECONDS)


@contextmanager
def beating(send: Callable[[], object]) -> Iterator[None]:
    """Call `send` every few seconds in another thread, as a sign of life; the next request shows its errors."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT_SECONDS):
            with suppress(Exception):
                send()

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def end_with_parent() -> None:
    """Call this in a child: it is interrupted when its parent is gone, also after kill -9."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_SECONDS)
        os.killpg(0, signal.SIGTERM)
        time.sleep(STOP_SECONDS)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


class Node:
    """The SuperNode and the worker of a site. `log` receives every line that they print."""

    def __init__(self, kit: Kit, log: Say) -> None:
        be_quiet(kit.state)
        self._last, self._log = list[str](), log
        port, secret = str(free_port()), private_folder(kit.state) / "secret"
        write_atomic(secret, secrets.token_bytes(32), private=True)
        programs = {"the SuperNode": "fedlgd.deploy.processes", "the worker": "fedlgd.deploy.client"}
        given = (str(kit.folder), port, str(secret))
        self._children = {name: start_child((module, *given), self._hear) for name, module in programs.items()}

    def ended(self) -> str:
        """What ended; empty while both are alive."""
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


def supervise(begin: Callable[[], Node], say: Say, tick: Callable[[], None] = lambda: None) -> None:
    """Start the processes of a site, and again after a pause when one ends. They end with the supervisor.

    Until 60 s after its last sign of life the server counts a site as connected; a SuperNode asks until then.
    """
    failures = 0
    while True:
        began, node = time.monotonic(), begin()
        try:
            while not (why := node.ended()):
                tick()
                time.sleep(LOOK_SECONDS)
        finally:
            node.stop()
        failures = 1 if time.monotonic() - began > STABLE_SECONDS else failures + 1
        pause = min(FIRST_PAUSE * 2 ** (failures - 1), LONGEST_PAUSE)
        say(f"{why}; the next start is in {pause:.0f} s")
        time.sleep(pause)


def ending_reason(lines: list[str]) -> str:
    """Why a SuperNode ended, from its last lines; empty if they do not tell."""
    text = "\n".join(lines).lower()
    return next((words for sign, words in ENDING_REASONS.items() if sign in text), "")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


def supernode_arguments(kit: Kit, port: str, secret: str) -> list[str]:
    """The command line of Flower's SuperNode. Apps run in the worker only: isolation `process`."""
    return [
        *("--superlink", str(kit.server), "--root-certificates", str(kit.ca)),
        *("--auth-supernode-private-key", str(kit.folder / "key")),
        *("--host", "127.0.0.1", "--port", port),
        *("--isolation", "process", "--superexec-auth-secret-file", secret),
        *("--node-config", f"site='{kit.site}'"),
    ]


def run_supernode(folder: str, port: str, secret: str) -> None:
    """Run the SuperNode in this process; `fedlgd join` starts it."""
    from flwr.supernode.cli import flower_supernode

    end_with_parent()
    sys.argv = ["flower-supernode", *supernode_arguments(read_kit(Path(folder), "site"), port, secret)]
    with suppress(SystemExit):
        flower_supernode()
    sys.stdout.flush()
    os._exit(1)  # Flower leaves threads that never end, and the supervisor waits for the process


if __name__ == "__main__":
    run_supernode(*sys.argv[1:])
