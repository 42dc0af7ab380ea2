"""A method of a user's own with two exchanges in a round, at real sites."""

import os
from pathlib import Path

import pytest

from fedlgd.deploy.messages import read_question
from fedlgd.engines.storage import version_after, version_name
from fedlgd.runs.run import execute
from tests import tiny
from tests.deploy import grid
from tests.deploy.grid import LocalGrid, Trick
from tests.deploy.test_flower import run, same
from tests.engines.exchanging import MeansFirst
from tests.runs.folder import head, message, records

METHOD = tiny.settings(MeansFirst(), tiny.SETTINGS | {"train_on": "real"})
POLICY = f"""
methods = ["tests.engines.exchanging:MeansFirst"]
nets = ["*"]
rounds = 1000
disclose = ["counts", "scores", "seconds"]
train_on = ["real"]
sends = {[*MeansFirst.sends.values(), "counts"]}
"""
DATA = tiny.federation(tiny.NAMES[:2], train=3, test=1)
CONFIG = grid.config(METHOD, rounds=2)


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path / "home"))
    monkeypatch.setattr(os, "fsync", lambda _: None)


class StoppedError(Exception):
    pass


def test_two_exchanges_have_the_bits_of_loop(tmp_path):
    folders, data = grid.sites(tmp_path, tiny.federation(), POLICY)
    at, config = LocalGrid(folders), grid.config(METHOD, rounds=3, ratio=0.67, seed=5)
    same(run(at, config, tmp_path / "run"), execute(config, data))
    assert sum(tasks == ["train"] for _, tasks in at.sent) == 3 * 2 * 2


def committed(root: Path, folders: dict[int, Path]) -> tuple[object, ...]:
    """What the coordinator and the sites have after the second round."""
    run = root / "run"
    states = [message(next(folder.glob("state/*/*/0001.safetensors"))) for folder in folders.values()]
    return head(run)["sites"], message(run / "state" / head(run)["server"]), records(run), states


def test_killed_between_two_messages_the_coordinator_resumes_with_the_same_bits(tmp_path):
    found = []
    for number in (0, 5, 6, 7, 8, 11, 13):  # 4 and 5 are the messages of exchange 0, 6 and 7 of exchange 1, ...
        root = tmp_path / f"killed-{number}"
        root.mkdir()
        folders, _ = grid.sites(root, DATA, POLICY)
        if number:
            with pytest.raises(StoppedError):
                run(stopping_grid(folders, number), CONFIG, root / "run")
        run(LocalGrid(folders), CONFIG, root / "run")
        found.append(committed(root, folders))
    assert all(each == found[0] for each in found)


def stopping_grid(folders: dict[int, Path], at: int) -> LocalGrid:
    """A grid whose coordinator is killed before its message number `at`."""
    found = LocalGrid(folders)

    def stop() -> None:
        if len(found.sent) == at:
            raise StoppedError

    found.on_push = stop
    return found


def lost_in_the_second_exchange() -> Trick:
    """The answer of a site in exchange 1 of the first round never arrives."""

    def trick(asked, honest):
        tasks = read_question(asked.content)[1]
        message = tasks[0].message if tasks and tasks[0].what == "train" else None
        return None if message and (message.round, message.exchange) == (0, 1) else honest

    return trick


def test_a_site_whose_second_answer_was_lost_continues_as_before_the_round(tmp_path):
    folders, _ = grid.sites(tmp_path, tiny.federation(), POLICY)
    at = LocalGrid(folders, tricks={"bee": lost_in_the_second_exchange()})
    first, second = run(at, grid.config(METHOD, rounds=2, quorum=0.6), tmp_path / "run").records[1:]
    assert list(first.refused) == ["bee"]
    assert list(first.metrics) == ["ape", "cat"]
    assert (second.refused, second.joined) == ({}, ())
    kept = {
        name: [file.stem for file in (tmp_path / f"site-{name}").glob("state/*/*/*")] for name in ("ape", "bee")
    }
    within = version_name(version_after(1, 0, 2))
    assert {name: sorted(versions) for name, versions in kept.items()} == {
        "ape": ["0000", "0001", within],
        "bee": ["0001", "start", within],
    }
