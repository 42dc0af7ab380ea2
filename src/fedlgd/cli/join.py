"""`fedlgd join`: a real site."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import typer

from fedlgd.cli.data import print_checked
from fedlgd.cli.deploy import logged, say, stopped_by_signal
from fedlgd.cli.options import JoinOptions
from fedlgd.cli.progress import progress
from fedlgd.core.errors import RunError, SettingError
from fedlgd.core.files import locked, private_folder
from fedlgd.core.suggest import check_flower
from fedlgd.data.folders.check import check_data
from fedlgd.data.folders.suite import Folders
from fedlgd.runs.config import resolve
from fedlgd.runs.literals import parse_assignment

if TYPE_CHECKING:
    from fedlgd.deploy.kit import Kit


def join(given: JoinOptions) -> None:
    check_flower()
    from fedlgd.deploy import kit as kits
    from fedlgd.deploy.policy import Policy
    from fedlgd.deploy.supernode import Node, Supervisor

    kit = kits.read_kit(given.kit, "site")
    Policy.read(kit.folder / "site.toml")
    busy = RunError(f"site {kit.site!r} is already running from {str(given.kit)!r}; stop it first")
    with locked(private_folder(kit.state) / "join.lock", busy), logged(kit.state / "site.log") as log:
        if given.data:
            _choose_data(kit, given)
        elif given.settings or not (kit.folder / "join.json").exists():
            raise SettingError("no images are given; name their folder: --data DIR")
        tell = (lambda _: None) if given.quiet else say
        tell(f"site {kit.site}: connecting to {kit.server}; tasks and what leaves: {given.kit / 'journal.log'}")
        follow, hear = Follower(kit.folder / "journal.log", tell), Connection(log, tell)
        with stopped_by_signal():
            Supervisor(begin=lambda: Node(kit, hear), say=tell, tick=follow).run()


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
    assert isinstance(suite, Folders)
    with progress(given.quiet):
        checked = check_data(path, only=kit.site, how=suite)
    if not given.quiet or checked.count("error"):
        print_checked(checked, err=True)
    if checked.count("error"):
        raise typer.Exit(1)
    settings = SiteSettings(
        site=kit.site, folder=kit.folder, images=suite, threads=given.threads, device=given.device
    )
    settings.open()
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
