"""`fedlgd provision`, `fedlgd serve` and `fedlgd join`: real sites."""

import json as jsonlib
import logging
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.markup import escape

from fedlgd.cli.data import print_checked
from fedlgd.cli.options import JoinOptions, ProvisionOptions, RunOptions, ServeOptions
from fedlgd.cli.progress import progress
from fedlgd.cli.run import command_line, resumable, set_up
from fedlgd.core.errors import RunError, SettingError
from fedlgd.core.files import locked, private_folder
from fedlgd.core.records import RoundRecord
from fedlgd.data.folders.check import check_data
from fedlgd.runs.config import Config, resolve
from fedlgd.runs.literals import parse_assignment
from fedlgd.runs.runner import Result
from fedlgd.runs.track import Tracked, Tracking

if TYPE_CHECKING:
    from fedlgd.deploy.coordinator import Operator
    from fedlgd.deploy.kit import Kit

STARTED = 60.0  # seconds that the server may take to start
LOOK = 2.0  # seconds between two looks at who is connected


def needs_flower() -> None:
    if not (find_spec("flwr") and find_spec("cryptography")):
        raise RunError("real sites need Flower; install it: pip install 'fedlgd[flower]'")


def provision(given: ProvisionOptions) -> None:
    needs_flower()
    from fedlgd.deploy import kit

    names = [name.strip() for name in (given.sites or given.add).split(",") if name.strip()]
    if bool(given.sites) + bool(given.add) + given.renew != 1:
        raise SettingError(
            "give one of --sites a,b,c (new kits), --add d (more sites) and --renew (new certificate)"
        )
    if given.renew:
        made = [kit.renew(given.folder, given.days)]
    elif given.add:
        made = kit.add_sites(given.folder, names)
    else:
        made = kit.provision(given.folder, names, kit.address(given.server), given.days)
    until = kit.expiry(given.folder / "server" / "server.crt")
    if given.json:
        typer.echo(jsonlib.dumps({"kits": [str(path) for path in made], "valid_until": until.isoformat()}))
        return
    for path in made:
        typer.echo(path)
    if not given.quiet:
        typer.echo(_next_steps(given, until), err=True)


def _next_steps(given: ProvisionOptions, until: datetime) -> str:
    valid = f"The server's certificate is valid until {until:%Y-%m-%d}."
    if given.renew:
        return f"{valid} Copy server.crt and server.key to the server and restart it; the sites keep their kits."
    sent = "Hand each site folder to its site over a channel that you trust: it holds the site's private key."
    if given.add:
        return f"{sent} Copy server/sites/ to the server."
    return f"{sent} Keep {given.folder / 'ca'} offline; it is needed only for --renew. {valid}"


def serve(given: ServeOptions) -> None:
    needs_flower()
    from fedlgd.deploy import kit as kits
    from fedlgd.deploy import processes
    from fedlgd.deploy.superlink import EVENT

    kit = kits.read_kit(given.kit, "server")
    listen = kits.address(given.listen) if given.listen else kit.server
    busy = RunError(f"the server of {str(given.kit)!r} is already running; stop it first")
    with locked(private_folder(kit.state) / "serve.lock", busy), _log(kit.state / "server.log") as log:
        processes.be_quiet(kit.state)

        def hear(line: str) -> None:
            log(line)
            if line.startswith(EVENT):
                _say(line.removeprefix(EVENT))

        child = processes.start(["fedlgd.deploy.superlink", str(kit.folder), str(listen)], kit.state, hear)
        with _stopped_by_signal():
            try:
                _show_sites(kit, str(listen), lambda: child.poll() is None)
            finally:
                processes.stop(child)


def _show_sites(kit: "Kit", where: str, alive: Callable[[], bool]) -> None:
    """Wait for the server, register the sites, and print who comes and goes."""
    from fedlgd.deploy.coordinator import Operator

    with Operator(kit) as operator, _status() as show:
        show("starting")
        _await(operator, where, alive, kit.state / "server.log")
        registered: dict[str, bytes] = {}
        before: list[str] | None = None
        while alive():
            if registered != kit.public_keys:
                operator.register()
                registered = kit.public_keys
                _say(f"listening on {where}; registered sites: {', '.join(registered) or 'none'}")
            if (now := operator.connected()) != before:
                _say(_connected(now, list(registered)))
            before = now
            show(_connected(now, list(registered)))
            time.sleep(LOOK)
    raise RunError(
        f"the server ended; the last lines of {kit.state / 'server.log'} say why. Start it again to resume"
    )


def _await(operator: "Operator", where: str, alive: Callable[[], bool], log: Path) -> None:
    end = time.monotonic() + STARTED
    while alive() and time.monotonic() < end:
        try:
            operator.connected()
            return
        except RunError:
            time.sleep(0.25)
    last = [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-1:]
    raise RunError(f"the server did not start on {where} ({''.join(last)[-200:]}); see {log}")


def _connected(now: Sequence[str], registered: Sequence[str]) -> str:
    missing = [name for name in registered if name not in now]
    text = f"connected: {', '.join(now) or 'no site yet'} ({len(now)} of {len(registered)})"
    return text + (f"; waiting for: {', '.join(missing)}" if missing else "")


def join(given: JoinOptions) -> None:
    needs_flower()
    from fedlgd.deploy import kit as kits
    from fedlgd.deploy.policy import Policy
    from fedlgd.deploy.supernode import Node, Supervisor

    kit = kits.read_kit(given.kit, "site")
    Policy.read(kit.folder / "site.toml")
    busy = RunError(f"site {kit.site!r} is already running from {str(given.kit)!r}; stop it first")
    with locked(private_folder(kit.state) / "join.lock", busy), _log(kit.state / "site.log") as log:
        if given.data:
            _choose_data(kit, given)
        elif not (kit.folder / "join.json").exists():
            raise SettingError("no images are given; name their folder: --data DIR")
        say = (lambda _: None) if given.quiet else _say
        say(f"site {kit.site}: connecting to {kit.server}; tasks and what leaves: {kit.folder / 'journal.log'}")
        follow = Follower(kit.folder / "journal.log", say)

        def hear(line: str) -> None:
            log(line)
            if "SuperNode ID" in line:
                say("connected")

        with _stopped_by_signal():
            Supervisor(begin=lambda: Node(kit, hear), say=say, tick=follow).run()


def _choose_data(kit: "Kit", given: JoinOptions) -> None:
    """Check the images of the site and remember where they are and how they are read."""
    from fedlgd.deploy.client import SiteSettings

    assert given.data is not None
    path = given.data.expanduser().absolute()
    chosen = dict(parse_assignment(text) for text in given.settings or ())
    for name in chosen:
        if not name.startswith("data."):
            raise SettingError(f"{name} is not a setting of the data; the coordinator chooses the others")
    suite = resolve({}, {**chosen, "data.name": "folders", "data.path": str(path)}).data.suite
    with progress(given.quiet):
        checked = check_data(path, site=kit.site)
    if not given.quiet or checked.count("error"):
        print_checked(checked, err=True)
    if checked.count("error"):
        raise typer.Exit(1)
    SiteSettings(site=kit.site, folder=kit.folder, images=suite, threads=given.threads, device=given.device).write()


def data_of(given: RunOptions) -> str:
    """The name of the data of a run at real sites; refuses options that have no meaning there."""
    needs_flower()
    if given.engine not in (None, "flower") or given.kit is None:
        raise SettingError("real sites need both: --engine flower --kit KIT, with the kit of the server")
    chosen = {"a federation": given.data, "--data": given.folder, "--estimate": given.estimate}
    chosen |= {"--workers": given.workers, "--device": given.device != "cpu", "--autocast": given.autocast}
    if wrong := [name for name, value in chosen.items() if value]:
        raise SettingError(f"{wrong[0]} is given, but images and computers are at the sites; leave it out")
    return "real-sites"


def execute_real(config: Config, folder: Path, given: RunOptions, title: str) -> Result:
    """Run at the sites that are connected to the server of the kit, with progress and trackers."""
    from fedlgd.deploy import kit as kits
    from fedlgd.deploy import processes

    assert given.kit is not None
    kit, heard = kits.read_kit(given.kit, "server"), 0
    processes.be_quiet(kit.state)
    from fedlgd.deploy.coordinator import Operator
    from fedlgd.deploy.server import Request, coordinate

    def listen(record: RoundRecord) -> None:
        nonlocal heard
        heard += 1
        show(record)
        track(record)

    set_up(given.threads)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    with (
        resumable(f" in {folder}"),
        Operator(kit) as operator,
        operator.grid() as grid,
        progress(given.silent, config.plan.rounds, title, folder, lasting=True) as show,
        Tracking(given.track or (), Tracked(title, folder, config)) as track,
    ):
        how = {"timeout": given.timeout, "threads": given.threads, "command": command_line()}
        request = Request(config=config.toml(), out=str(folder), sites=grid.nodes, **how)  # type: ignore[arg-type]
        result = coordinate(grid, request, listen)
    if not (heard or given.silent):
        typer.echo(f"{folder} is already complete; nothing to run", err=True)
    return result


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


def _say(text: str) -> None:
    typer.echo(f"{datetime.now():%H:%M:%S} {text}", err=True)


@contextmanager
def _status() -> Iterator[Callable[[str], None]]:
    """A live line in a terminal; nowhere else."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("") as line:
        yield lambda text: line.update(escape(text))


@contextmanager
def _log(file: Path) -> Iterator[Callable[[str], None]]:
    """A private file for what the processes print; the one of the last start is kept beside it."""
    if file.exists():
        file.replace(file.with_suffix(".log.1"))
    file.touch(0o600)
    with file.open("a", buffering=1) as opened:
        yield lambda line: None if opened.closed else opened.write(f"{line}\n") and None


@contextmanager
def _stopped_by_signal() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the command cleanly."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        _say("stopped")
        raise typer.Exit(130) from None
