"""Data sets, cache and state have homes of their own: a budget outlives a cache, and runs write to no data set."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fedlgd.core import files, homes
from fedlgd.core.errors import PrivacyError
from fedlgd.distill.settings import Private
from fedlgd.dp.budget import Level, budget_mu, spent_epsilon
from fedlgd.dp.ledger import PrivacyLedger, gaussian, merge_accounts
from fedlgd.runs.config import resolve
from fedlgd.runs.run import execute
from tests.errors import refuses

BUDGET = Private(epsilon=4, total=100)
HALF = {"part": Level(2**0.5 / budget_mu(BUDGET), 1.0, 1)}


def draw(generator: np.random.Generator):
    return {"value": gaussian(generator, (4,))}


def spend(*accounts: str, part: str = "part"):
    """The values that a ledger in the present home releases for these accounts."""
    book = PrivacyLedger("ape", BUDGET)
    for account in accounts:
        book.reserve(account, {part: HALF["part"]})
    return [book.once(account, part, "0", draw)["value"] for account in accounts]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data home in which an earlier version has spent half a budget, and its state home of today."""
    monkeypatch.setenv("FEDLGD_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("FEDLGD_STATE", str(tmp_path / "data"))
    spend("old")
    monkeypatch.setenv("FEDLGD_STATE", str(tmp_path / "state"))
    return tmp_path / "data"


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Names, sizes and times of change of everything below a folder."""
    found = {str(path): path.lstat() for path in (folder, *folder.rglob("*"))}
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in found.items()}


def test_a_ledger_of_an_earlier_version_is_taken_over_once_with_a_message(data, tmp_path, caplog):
    before, secret = listing(data), (data / "privacy" / "ape" / "secret").read_bytes()
    values = [spend("old")[0] for _ in range(2)]
    assert torch.equal(*values)
    assert (tmp_path / "state" / "privacy" / "ape" / "secret").read_bytes() == secret
    assert caplog.text.count("was taken over from") == 1
    assert listing(data) == before


def test_who_deletes_data_and_cache_does_not_reset_the_budget(data, tmp_path, monkeypatch):
    spent = PrivacyLedger("ape", BUDGET).spent()
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path / "cache"))
    spend("new")
    for home in (data, homes.cache_home()):
        shutil.rmtree(home, ignore_errors=True)
    assert PrivacyLedger("ape", BUDGET).spent() > spent > 0


def test_the_ledger_in_the_users_cache_is_found_whatever_the_homes_are(tmp_path, monkeypatch):
    monkeypatch.setattr(homes, "user_cache_dir", lambda _: str(tmp_path / "user"))
    monkeypatch.setenv("FEDLGD_STATE", str(tmp_path / "user"))
    spend("old")
    for variable in ("DATA", "CACHE", "STATE"):
        monkeypatch.setenv(f"FEDLGD_{variable}", str(tmp_path / variable))
    assert PrivacyLedger("ape", BUDGET).spent() == pytest.approx(spent_epsilon([*HALF.values()], BUDGET.delta))


def test_what_an_earlier_version_still_spends_is_taken_over_too(data, tmp_path, monkeypatch):
    (both,) = spend("old")
    monkeypatch.setenv("FEDLGD_STATE", str(data))
    (later,) = spend("later")
    monkeypatch.setenv("FEDLGD_STATE", str(tmp_path / "state"))
    assert all(map(torch.equal, spend("old", "later"), (both, later)))


def test_different_releases_of_one_number_are_both_charged_and_the_own_one_is_kept(data, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLGD_DATA", str(tmp_path / "elsewhere"))
    (mine,) = spend("old")
    monkeypatch.setenv("FEDLGD_DATA", str(data))
    (kept,) = spend("old")
    assert torch.equal(kept, mine)
    two = [HALF["part"]] * 2
    assert PrivacyLedger("ape", BUDGET).spent() == pytest.approx(spent_epsilon(two, BUDGET.delta))


class Killed(BaseException):
    """The end of a process at this line."""


@pytest.mark.parametrize("step", range(3))
def test_killed_while_it_takes_over_a_ledger_the_next_run_does_it_completely(data, tmp_path, monkeypatch, step):
    book = json.loads((data / "privacy" / "ape" / "ledger.json").read_text())
    (value,) = book["accounts"]["old"]["part"]["made"].values()
    write, calls = files.write_atomic, []

    def kill(path: Path, *arguments: object, **how: object) -> None:
        calls.append(path.name)
        if len(calls) > step:
            raise Killed
        write(path, *arguments, **how)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_atomic", kill)
        with pytest.raises(Killed):
            PrivacyLedger("ape", BUDGET).spent()
    assert calls[-1] == "ledger.json" if step == 2 else not (tmp_path / "state/privacy/ape/ledger.json").exists()
    spend("old")
    state = tmp_path / "state" / "privacy" / "ape"
    assert [files.digest(file.read_bytes()) for file in (state / "released").iterdir()] == [value]
    assert (state / "secret").read_bytes() == (data / "privacy" / "ape" / "secret").read_bytes()


def test_a_damaged_earlier_ledger_stops_releases(data):
    (data / "privacy" / "ape" / "ledger.json").write_text("{}")
    with refuses("ledger-damaged", PrivacyError, site="ape"):
        spend("new")


def test_an_earlier_ledger_that_cannot_be_read_stops_releases(data, monkeypatch):
    file, exists = data / "privacy" / "ape" / "ledger.json", Path.exists

    def refuse(path: Path) -> bool:
        if path == file:
            raise PermissionError(13, "Permission denied")
        return exists(path)

    monkeypatch.setattr(Path, "exists", refuse)
    with refuses("ledger-unreadable", PrivacyError, site="ape", file=str(file)):
        spend("new")


ENTRY = st.fixed_dictionaries(
    {
        "level": st.sampled_from([[1.0, 1.0, 1], [2.0, 0.5, 4]]),
        "made": st.dictionaries(st.sampled_from("012"), st.sampled_from("xyz"), max_size=3),
    }
)
ACCOUNTS = st.dictionaries(
    st.sampled_from("ab"), st.dictionaries(st.sampled_from("pq"), ENTRY, max_size=2), max_size=2
)


def made(accounts) -> set[tuple[str, str, str, str]]:
    """Account (by its first letter), part, number and digest of all releases."""
    parts = [(account[0], part, entry) for account, all_ in accounts.items() for part, entry in all_.items()]
    return {(account, part, *release) for account, part, entry in parts for release in entry["made"].items()}


@given(ACCOUNTS, ACCOUNTS)
def test_of_two_ledgers_no_release_is_forgotten_and_merging_again_changes_nothing(one, other):
    def spent(accounts):
        entries = [entry for parts in accounts.values() for entry in parts.values()]
        levels = [Level(e["level"][0], e["level"][1], max(e["level"][2], len(e["made"]))) for e in entries]
        return spent_epsilon(levels, 1e-5)

    merged = merge_accounts(one, other)
    assert spent(merged) >= max(spent(one), spent(other)) * (1 - 1e-9)
    assert merge_accounts(merged, other) == merged == merge_accounts(merged, one)
    assert made(merged) == made(one) | made(other)


def test_data_sets_of_an_earlier_version_stay_where_they_are(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDLGD_DATA", raising=False)
    monkeypatch.setattr(homes, "user_cache_dir", lambda _: str(tmp_path / "cache"))
    monkeypatch.setattr(homes, "user_data_dir", lambda _: str(tmp_path / "data"))
    assert homes.data_home() == tmp_path / "data"
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "mnist.npz").touch()
    assert homes.data_home() == tmp_path / "cache"
    (tmp_path / "data").mkdir()
    assert homes.data_home() == tmp_path / "data"


def test_a_private_run_writes_nothing_to_the_data_home(tmp_path, monkeypatch):
    data, cache = tmp_path / "data", tmp_path / "cache"
    monkeypatch.setenv("FEDLGD_DATA", str(data))
    monkeypatch.setenv("FEDLGD_CACHE", str(cache))
    random = np.random.default_rng(0)
    for place in ("ape/x", "ape/y", "bee/x", "bee/y"):
        (data / "retina" / place).mkdir(parents=True)
        for number in range(30):
            image = Image.fromarray(random.integers(0, 256, (8, 8), np.uint8))
            image.save(data / "retina" / place / f"{number}.png")
    before = listing(data)
    chosen = {"data.name": "folders", "data.path": str(data / "retina"), "method": "fedavg", "rounds": 1}
    private = {"train_on": "virtual", "distil.per_class": 1, "distil.steps": 1, "distil.private.epsilon": 50.0}
    config = resolve({}, {**chosen, **private, "net.width": 4, "net.depth": 1})
    execute(config, config.data.open(), tmp_path / "run")
    assert listing(data) == before
    assert {path.name.split("-")[0] for path in cache.iterdir()} == {"made", "distilled"}
    assert len(list((homes.state_home() / "privacy").iterdir())) == 2
