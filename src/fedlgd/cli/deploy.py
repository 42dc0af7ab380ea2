"""Real sites: `fedlgd provision` and `fedlgd serve` of the coordinator, without torch, and `fedlgd join` of a site.

`fedlgd run --engine flower` comes here, too: nothing else imports the package `deploy`.

Also the lines and the log of commands that run until they are stopped.
"""

import logging
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, ClassVar, TextIO

import typer
from rich.console import Console
from rich.markup import escape

from fedlgd.cli.options import JoinOptions, ProvisionOptions, RunOptions, ServeOptions
from fedlgd.cli.terminal import complain, folded, plain_warnings, print_json
from fedlgd.core.errors import RunError, SettingError
from fedlgd.core.files import locked, private_folder
from fedlgd.deploy import check_flower
from fedlgd.runs.parse import parse_assignment

if TYPE_CHECKING:
    from fedlgd.deploy.connection import Operator
    from fedlgd.deploy.kit import Address, Kit
    from fedlgd.runs.config import Config
    from fedlgd.runs.result import Result
    from fedlgd.runs.run import Listener

MAX_LOG_BYTES = 10 << 20
START_SECONDS = 60.0  # for the start of the server
BUSY_SECONDS = 120.0  # for which a server that is busy is asked again
LOOK_SECONDS = 2.0  # between two looks at who is connected


def say(text: str) -> None:
    """One line with the time, above the live line if there is one: it takes the place of `sys.stderr`."""
    sys.stderr.write(folded(f"{datetime.now():%H:%M:%S} {text}", " " * 9) + "\n")


@contextmanager
def live_line() -> Iterator[Callable[[str], None]]:
    """A live line in a terminal; nowhere else."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("") as line:
        yield lambda text: line.update(escape(text))


@contextmanager
def logged(file: Path) -> Iterator[Callable[[str], None]]:
    """A private file for what processes print, with the time. The one of the last start, or a full one, is kept."""
    opened, alone = _new_log(file), threading.Lock()

    def log(line: str) -> None:
        nonlocal opened
        with alone:
            if opened.closed:
                return
            print(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC  {line}", file=opened)
            if opened.tell() > MAX_LOG_BYTES:
                opened.close()
                opened = _new_log(file)

    try:
        yield log
    finally:
        with alone:
            opened.close()


def _new_log(file: Path) -> TextIO:
    if file.exists():
        file.replace(file.with_suffix(".log.1"))
    file.touch(0o600)
    return file.open("a", buffering=1)


@contextmanager
def stopped_by_signal() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the command cleanly."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        say("stopped")
        raise typer.Exit(130) from None


def provision(given: ProvisionOptions) -> None:
    check_flower()
    from fedlgd.deploy import kit

    names, classes = _names(given.sites or given.add), _names(given.classes)
    if classes and not given.sites:
        raise SettingError("classes-of-new-kits")
    if bool(given.sites) + bool(given.add) + given.renew != 1:
        raise SettingError("provision-choice")
    if given.renew:
        made = [kit.renew(given.folder, given.days)]
    elif given.add:
        made = kit.add_sites(given.folder, names)
    else:
        made = kit.provision(given.folder, names, kit.address(given.server), given.days, classes)
    until = kit.expiry(given.folder / "server" / "server.crt")
    if given.json:
        print_json({"kits": [str(path) for path in made], "valid_until": until.isoformat()})
        return
    for path in made:
        typer.echo(path)
    if not given.quiet:
        typer.echo(folded(_next_steps(given, until)), err=True)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _next_steps(given: ProvisionOptions, until: datetime) -> str:
    valid = f"The server's certificate is valid until {until:%Y-%m-%d}."
    if given.renew:
        return f"{valid} Copy server.crt and server.key to the server and restart it; the sites keep their kits."
    sent = "Hand each site folder to its site over a channel that you trust: it holds the site's private key."
    if given.add:
        return f"{sent} Copy server/sites/ to the server."
    return f"{sent} Keep {given.folder / 'ca'} offline; it is needed only for --renew. {valid}"


def serve(given: ServeOptions) -> None:
    check_flower()
    from fedlgd.deploy import kit as kits
    from fedlgd.deploy import processes
    from fedlgd.deploy.superlink import EVENT_PREFIX

    kit = kits.read_kit(given.kit, "server")
    listen = kits.address(given.listen) if given.listen else kit.server
    busy = RunError("server-runs-already", kit=str(given.kit))
    with locked(private_folder(kit.state) / "serve.lock", busy), logged(kit.state / "server.log") as log:
        processes.be_quiet(kit.state)
        _check_free(listen)

        def hear(line: str) -> None:
            log(line)
            if line.startswith(EVENT_PREFIX):
                say(line.removeprefix(EVENT_PREFIX))

        server = ["fedlgd.deploy.superlink", str(kit.folder), str(listen), str(given.store << 20)]
        child = processes.start_child(server, hear)
        with stopped_by_signal():
            try:
                _show_sites(kit, str(listen), lambda: child.poll() is None)
            finally:
                processes.stop_child(child)


def _check_free(listen: "Address") -> None:
    """The server would say it too, but only in its log."""
    try:
        family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
        socket.create_server(tuple(listen), family=family).close()
    except OSError as error:
        why = str(error.strerror).partition(" (")[0]
        raise RunError("cannot-listen", address=listen, why=why) from error


def _show_sites(kit: "Kit", where: str, alive: Callable[[], bool]) -> None:
    """Wait for the server, register the sites, and print who comes and goes."""
    from fedlgd.deploy.connection import Operator

    with live_line() as show, Operator(kit) as starting, Operator(kit, BUSY_SECONDS) as operator:
        show("starting")
        _await(starting, where, alive, kit.state / "server.log")
        registered: dict[str, bytes] = {}
        before: list[str] | None = None
        while alive():
            if registered != kit.public_keys:
                operator.register()
                registered = kit.public_keys
                say(f"listening on {where}; registered sites: {', '.join(registered) or 'none'}")
            if (now := operator.connected()) != before:
                say(_connected(now, list(registered)))
            before = now
            show(_connected(now, list(registered)))
            time.sleep(LOOK_SECONDS)
    raise RunError("server-ended", log=kit.state / "server.log")


def _await(operator: "Operator", where: str, alive: Callable[[], bool], log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while alive() and time.monotonic() < end:
        try:
            operator.connected()
            return
        except RunError:
            time.sleep(0.25)
    last = [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-1:]
    raise RunError("server-not-started", address=where, last="".join(last)[-200:], log=log)


def _connected(now: Sequence[str], registered: Sequence[str]) -> str:
    missing = [name for name in registered if name not in now]
    text = f"connected: {', '.join(now) or 'no site yet'} ({len(now)} of {len(registered)})"
    return text + (f"; waiting for: {', '.join(missing)}" if missing else "")


def check_remote_options(given: RunOptions) -> None:
    """Refuse options of a run that have no meaning at real sites."""
    check_flower()
    if given.engine not in (None, "flower") or given.kit is None:
        raise SettingError("real-sites-need-kit")
    chosen = {
        "a federation": given.data,
        "--data": given.folder,
        "--estimate": given.estimate,
        "--workers": given.workers > 0,
        "--device": given.device != "cpu",
        "--precision": given.precision != "float32",
        "--compile": given.compile != "off",
    }
    if wrong := [name for name, value in chosen.items() if value]:
        raise SettingError("decided-at-sites", option=wrong[0])


def run_at_sites(
    config: "Config",
    folder: Path,
    given: RunOptions,
    command: str,
    asking: AbstractContextManager["Listener"],
    shown: AbstractContextManager["Listener"],
) -> "Result":
    """Run at the sites that are connected to the server of the kit. `asking` shows how they are awaited and asked
    for their classes, `shown` the rounds."""
    from fedlgd.deploy import kit as kits
    from fedlgd.deploy import processes

    assert given.kit is not None
    kit = kits.read_kit(given.kit, "server")
    processes.be_quiet(kit.state)
    from fedlgd.deploy.classes import classes_of_run
    from fedlgd.deploy.connection import Operator
    from fedlgd.deploy.coordinator import ask_sites, coordinate, tell_outage

    classes = classes_of_run(_names(given.classes), kit.classes)
    confirm = (lambda _: False) if given.silent else _confirmed
    logging.getLogger("flwr").setLevel(logging.ERROR)
    with Operator(kit, on_outage=tell_outage) as operator, operator.grid() as grid:
        with asking:
            asked = ask_sites(grid, config, folder, grid.nodes, given.timeout, classes=classes, confirm=confirm)
        if not given.silent:
            typer.echo(folded(f"Classes of this run: {', '.join(asked.classes)}"), err=True)
        with shown as listen:
            return coordinate(
                grid,
                config,
                folder,
                grid.nodes,
                given.timeout,
                given.threads,
                command,
                listen,
                label=given.label,
                accept_changed_code=given.accept_changed_code,
                federation=asked,
            )


def _confirmed(told: Mapping[str, Sequence[str]]) -> bool:
    """Show the classes of the sites, and ask whether all of them are meant; False if nobody can be asked."""
    from fedlgd.deploy.classes import class_lines

    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    lines = class_lines(told)
    typer.echo("\n".join(folded(line, "    ") for line in lines), err=True)
    return typer.confirm("Train with all of these classes?", default=False, err=True)


def join(given: JoinOptions) -> None:
    check_flower()
    from fedlgd.deploy import kit as kits
    from fedlgd.deploy.policy import Policy
    from fedlgd.deploy.processes import Node, supervise

    kit = kits.read_kit(given.kit, "site")
    Policy.read(kit.folder / "site.toml")
    busy = RunError("site-runs-already", site=kit.site, kit=str(given.kit))
    with locked(private_folder(kit.state) / "join.lock", busy), logged(kit.state / "site.log") as log:
        _choose_data(kit, given)
        tell = (lambda _: None) if given.quiet else say
        tell(f"site {kit.site}: connecting to {kit.server}; tasks and what leaves: {given.kit / 'journal.log'}")
        follow, hear = Follower(kit.folder / "journal.log", tell), Connection(log, tell)
        with stopped_by_signal():
            supervise(lambda: Node(kit, hear), tell, follow)


def _choose_data(kit: "Kit", given: JoinOptions) -> None:
    """Check the images of the site and remember where they are and how they are read; without --data, those of
    last time, and how it computes unless that is given. Classes that were not agreed on are refused here, before
    anything is sent."""
    from fedlgd.cli.common import place_of
    from fedlgd.cli.data import checked_site
    from fedlgd.deploy.client import SiteSettings

    place = place_of(given)
    if given.data:
        chosen = dict(map(parse_assignment, given.settings or ()))
        for name in chosen:
            if not name.startswith("data."):
                raise SettingError("not-a-data-setting", name=name)
        images = checked_site(given.data.expanduser().absolute(), kit.site, chosen, given.quiet)
        settings = SiteSettings(site=kit.site, folder=kit.folder, images=images, threads=given.threads, place=place)
    elif given.settings or not (kit.folder / "join.json").exists():
        raise SettingError("no-images-given")
    else:
        settings = SiteSettings.read(kit.folder, kit.site)
        settings = settings if place == type(place)() else replace(settings, place=place)
    plain_warnings()
    settings = replace(settings, classes=kit.classes)
    found = settings.open().classes
    if lacking := [name for name in kit.classes if name not in found]:
        complain(f"site {kit.site} has no image of class {', '.join(map(repr, lacking))}")
    settings.write()


class Connection:
    """Logs what the SuperNode prints, and says when the connection comes and goes."""

    SIGNS: ClassVar = {
        "SuperNode ID": "connected",
        "Connection successful": "the server answers",
        "Connection attempt failed": "not connected: the server is away or not ready; trying again",
    }

    def __init__(self, log: Callable[[str], None], tell: Callable[[str], None]) -> None:
        self._log, self._tell, self._last = log, tell, ""

    def __call__(self, line: str) -> None:
        self._log(line)
        now = next((words for sign, words in self.SIGNS.items() if sign in line), self._last)
        if now != self._last:
            self._tell(now)
        self._last = now


class Follower:
    """Prints the lines that are added to a file."""

    def __init__(self, file: Path, say: Callable[[str], None]) -> None:
        self._file, self._say = file, say
        self._read = file.stat().st_size if file.exists() else 0

    def __call__(self) -> None:
        if not self._file.exists():
            return
        with self._file.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            self._say(line.partition("UTC  ")[2] or line)
