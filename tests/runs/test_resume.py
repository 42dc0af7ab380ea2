"""A resumed run is bit-equal to one that was never interrupted, whatever the moment it was interrupted at."""

import os
import random
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedlgd.core.errors import RunError
from fedlgd.data.federation import Federation
from fedlgd.data.suites import load
from fedlgd.engines.registry import engine as find_engine
from fedlgd.methods.registry import names
from fedlgd.runs.config import resolve
from fedlgd.runs.folder import RunDirectory
from fedlgd.runs.run import execute
from tests import PATIENCE, tiny
from tests.runs.folder import FAST_NET, ROUNDS, as_plain, config, everything, head, leftovers, method, run_until

METHODS = {name: method(name) for name in names()} | {
    "fedavg on real data": method("fedavg", train_on="real"),
    "fedavg on virtual data": method("fedavg", train_on="virtual"),
    "scaffold+anchors+refine": method("scaffold+anchors+refine", train_on="virtual"),
    "fedbn+proximal": method("fedbn+proximal"),
}


@pytest.fixture(scope="module")
def data() -> Federation:
    return tiny.federation(train=3, test=1)


# Between rounds


@pytest.mark.parametrize("name", METHODS)
def test_interrupted_between_rounds_it_ends_as_if_it_had_not_been(name, data, tmp_path):
    """Two of three sites take part in a round, so that sites are at different rounds when it goes on."""
    how = config(METHODS[name], ratio=0.7, evaluate_every=2)
    straight = as_plain(execute(how, data, tmp_path / "straight"))
    for last in (-1, 0):
        run_until(last, how, data, tmp_path / "steps")
        assert everything(tmp_path / "steps")["round"] == last + 1
    heard: list[int] = []
    result = execute(how, data, tmp_path / "steps", lambda record: heard.append(record.round))
    assert heard == list(range(1, ROUNDS))
    assert everything(tmp_path / "steps") == everything(tmp_path / "straight")
    assert as_plain(result) == straight
    assert leftovers(tmp_path / "steps", METHODS[name].exchanges) == []


def test_interrupted_after_every_single_round_it_ends_as_if_it_had_not_been(data, tmp_path):
    how = config(METHODS["fedlgd"], rounds=4)
    execute(how, data, tmp_path / "straight")
    for last in range(-1, 4):
        run_until(last, how, data, tmp_path / "steps")
    assert everything(tmp_path / "steps") == everything(tmp_path / "straight")


# At every single thing a run does to the disk


class KilledError(BaseException):
    """The process is gone: nothing after it happens, not even clearing up."""


class Disk:
    """Notes what is done to the disk and dies before step `dies_at`; `torn`: an unfinished file is cut short."""

    def __init__(self, dies_at: int | None = None, torn: bool = False) -> None:
        self.steps: list[str] = []
        self.files: list[Path] = []
        self.dies_at, self.torn = dies_at, torn

    def step(self, name: str, handle: int | None = None) -> None:
        if len(self.steps) == self.dies_at:
            if self.torn and handle is not None:
                size = os.fstat(handle).st_size
                os.ftruncate(handle, size - min(40, size // 2))  # less than one record
            raise KilledError
        self.steps.append(name)

    @contextmanager
    def watched(self) -> Iterator["Disk"]:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("replace", "unlink", "mkdir"):
                patch.setattr(Path, name, self._noted(getattr(Path, name)))
            patch.setattr(os, "fsync", self._fsync(os.fsync))
            patch.setattr(os, "getpid", lambda: 999_999)  # whoever goes on is another process
            yield self

    def _noted(self, real: Any) -> Any:
        def noted(path: Path, *args: Any, **options: Any) -> Any:
            self.step(real.__name__)
            if real.__name__ == "replace":
                self.files.append(Path(args[0]))
            return real(path, *args, **options)

        return noted

    def _fsync(self, real: Any) -> Any:
        def noted(handle: int) -> None:
            folder = stat.S_ISDIR(os.fstat(handle).st_mode)
            self.step("sync folder" if folder else "sync", None if folder else handle)
            real(handle)

        return noted


SMALL = tiny.federation(tiny.NAMES[:2], train=3, test=1)
STEPPING = config(method("fedlgd", **{"refine.selected.every": 1}), rounds=2, net=FAST_NET)


def test_killed_before_any_write_it_ends_as_if_it_had_not_been(tmp_path, monkeypatch):
    """Enrolment, a round that moves virtual sets and anchors, one that moves virtual sets alone; and the cache."""
    monkeypatch.setattr(os, "fsync", lambda _: None)  # thousands of them: half a minute of waiting
    with Disk().watched() as disk:
        execute(STEPPING, SMALL, tmp_path / "straight")
    whole = everything(tmp_path / "straight")
    assert len(disk.steps) > 50
    written = [str(file.relative_to(tmp_path)) for file in disk.files]
    for site in ("ape", "bee"):
        for version in ("start", "0000", "0001"):  # sites' states are among what it is killed before
            assert written.count(f"straight/state/sites/{site}/{version}.safetensors") == 1
        assert written.count(f"straight/state/enrolled/{site}.safetensors") == 1
    assert written.count("straight/state/head.json") == 3
    assert set(disk.steps) == {"mkdir", "sync", "replace", "sync folder", "unlink"}
    for n, step in enumerate(disk.steps):
        if step in ("replace", "sync folder"):
            continue  # leaves what a torn file leaves, or what is there before the next step
        folder = tmp_path / f"killed-{n}"
        monkeypatch.setenv("FEDLGD_CACHE", str(folder / "cache"))
        with Disk(dies_at=n, torn=step == "sync").watched(), pytest.raises(KilledError):
            execute(STEPPING, SMALL, folder / "run")
        execute(STEPPING, SMALL, folder / "run")
        told = f"killed before step {n} of {len(disk.steps)}, {step}"
        assert everything(folder / "run") == whole, told
        assert leftovers(folder / "run") == [], told


def test_killed_again_and_again_it_still_gets_there(tmp_path):
    execute(STEPPING, SMALL, tmp_path / "straight")
    rng, attempts, done = random.Random(1), 0, False
    while not done:
        attempts += 1
        with Disk(dies_at=rng.randrange(5, 60), torn=rng.random() < 0.5).watched():
            try:
                execute(STEPPING, SMALL, tmp_path / "killed")
                done = True
            except KilledError:
                assert attempts < 50
    assert attempts > 3
    assert everything(tmp_path / "killed") == everything(tmp_path / "straight")
    assert not list((tmp_path / "killed").rglob("*.part"))


# Between a site's save and the server's commit


@pytest.fixture(params=["loop", "pool"])
def engine(request) -> Any:
    return find_engine(request.param, workers=2 if request.param == "pool" else 0)


def die_in(monkeypatch: pytest.MonkeyPatch, round: int) -> None:
    """Before the commit of this round: its sites have saved their states."""
    real = RunDirectory.commit

    def commit(directory: RunDirectory, state: Any, record: Any, versions: Any) -> None:
        if record.round == round:
            raise KilledError
        real(directory, state, record, versions)

    monkeypatch.setattr(RunDirectory, "commit", commit)


@pytest.mark.parametrize("round", [-1, 0, 1])
def test_what_sites_saved_counts_only_once_the_server_committed(round, engine, tmp_path, monkeypatch):
    execute(STEPPING, SMALL, tmp_path / "straight")
    folder = tmp_path / "killed"
    with monkeypatch.context() as patch:
        die_in(patch, round)
        with pytest.raises(KilledError):
            execute(STEPPING, SMALL, folder, engine=engine)
    if round >= 0:
        assert head(folder)["sites"] == ({} if round == 0 else {"ape": 0, "bee": 0})
    name = {-1: "start", 0: "0000", 1: "0001"}[round]
    kept = {-1: {"start"}, 0: {"start", "0000"}, 1: {"0000", "0001"}}[round]
    for site in ("ape", "bee"):
        saved = folder / "state" / "sites" / site
        assert {file.stem for file in saved.iterdir()} == kept
        (saved / f"{name}.safetensors").write_bytes(b"of a round that never was")
    if round == -1:  # enrolments count one by one: what they made is read, and this is damage
        with pytest.raises(RunError, match=r"ape/start\.safetensors' is damaged"):
            execute(STEPPING, SMALL, folder, engine=engine)
        return
    execute(STEPPING, SMALL, folder, engine=engine)
    assert everything(folder) == everything(tmp_path / "straight")
    assert leftovers(folder) == []


def test_a_site_that_saved_but_whose_enrolment_never_arrived_joins_again(engine, tmp_path, monkeypatch):
    execute(STEPPING, SMALL, tmp_path / "straight")
    folder = tmp_path / "killed"

    def gone(*_: Any) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "enrol", gone)
        with pytest.raises(KilledError):
            execute(STEPPING, SMALL, folder, engine=engine)
    saved = list(folder.glob("state/sites/*/start.safetensors"))
    assert saved
    assert not (folder / "state" / "enrolled").exists()
    for file in saved:
        file.write_bytes(b"half")
    heard: list[int] = []
    execute(STEPPING, SMALL, folder, lambda record: heard.append(record.round), engine=engine)
    assert heard == [-1, 0, 1]
    assert everything(folder) == everything(tmp_path / "straight")
    assert leftovers(folder) == []


def test_a_site_never_keeps_more_than_two_states(tmp_path):
    folder = tmp_path / "out"
    always = {"refine.selected.every": 1, "refine.selected.count": 5}
    how = config(method("fedlgd", **always), rounds=5, net=FAST_NET, ratio=0.7)

    def look(record: Any) -> None:
        assert leftovers(folder) == []
        assert all(len(list(site.iterdir())) <= 2 for site in (folder / "state" / "sites").iterdir())
        for site in record.sampled:
            assert head(folder)["sites"][site] == record.round

    execute(how, tiny.federation(train=3, test=1), folder, look)


# By kill -9

DRIVER = """
import os, random, signal, sys, time
from pathlib import Path
from fedlgd.runs.run import execute
from tests import PATIENCE, tiny
from tests.runs.folder import config, method

folder, rng = Path(sys.argv[1]), random.Random(3)
data, how = tiny.federation(), config(method("fedlgd"), rounds=4)


def attempt():
    child = os.fork()
    if child == 0:
        execute(how, data, folder)
        os._exit(0)
    return child


execute(how, data)  # once for all the forks, what torch does on first use
execute(how, data, folder.with_name("straight"))
os.environ["FEDLGD_CACHE"] += "-another"  # the virtual sets are not there yet
kills = 0
while True:
    child = attempt()
    if kills < 25:
        time.sleep(rng.uniform(0, 0.15))
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if status == 0:
        break
    assert os.WIFSIGNALED(status), "the run failed by itself"
    kills += 1
print(kills)
"""


def test_killed_at_random_moments_it_ends_as_if_it_had_not_been(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", DRIVER, str(tmp_path / "killed")],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"FEDLGD_CACHE": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 2
    assert everything(tmp_path / "killed") == everything(tmp_path / "straight")


SETTINGS = {
    "rounds": 8,
    "data.limit": 60,
    "data.test_limit": 20,
    "net.width": 4,
    "net.depth": 2,
    "distil.steps": 6,
    "distil.per_class": 2,
    "refine.steps": 2,
    "refine.selected.every": 4,
    "anchors.steps": 2,
    "anchors.per_class": 2,
    "anchors.selected.every": 4,
}


KILLED = """
import os, signal, sys
from fedlgd.cli import main
from fedlgd.runs.folder import RunDirectory

what, left = sys.argv[1], int(sys.argv[2])
sys.argv[1:3] = []
does = getattr(RunDirectory, what)


def dies(*given):
    global left
    does(*given)
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)


setattr(RunDirectory, what, dies)
main()
"""


def test_the_command_killed_in_enrolment_and_in_a_round_goes_on_to_the_same_end(digits_home, tmp_path):
    folder = tmp_path / "killed"
    command = ["run", "builtin-digits", "--quiet", "-o", str(folder)]
    command += [f"--set={path}={value}" for path, value in SETTINGS.items()]
    killed_after("enrol", 1, command)
    assert len(list(folder.glob("state/enrolled/[!.]*"))) >= 1
    assert not (folder / "state" / "head.json").exists()
    killed_after("commit", 3, command)
    assert everything(folder)["round"] == 2
    data = load("builtin-digits", 60, 20)
    for place in (folder, tmp_path / "straight"):
        execute(resolve({}, SETTINGS), data, place)
    assert everything(folder) == everything(tmp_path / "straight")


def killed_after(what: str, times: int, command: list[str]) -> None:
    """The command, killed as soon as the run directory did this so often: a busy machine changes nothing."""
    words = [sys.executable, "-c", KILLED, what, str(times), *command]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    assert subprocess.run(words, timeout=PATIENCE, **quiet).returncode == -signal.SIGKILL
