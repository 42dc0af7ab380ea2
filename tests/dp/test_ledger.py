"""The ledger of a site: everything is released once, charged, and refused beyond the budget."""

import json
import multiprocessing
import stat

import numpy as np
import pytest
import torch

from fedlgd.core import files
from fedlgd.core.errors import PrivacyError
from fedlgd.distill.settings import Private
from fedlgd.dp.budget import Level, budget_mu
from fedlgd.dp.ledger import PrivacyLedger, gaussian, generator_for, open_book
from tests.errors import refuses


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLGD_STATE", str(tmp_path / "home"))
    return tmp_path / "home" / "privacy" / "ape"


def whole(budget: Private, releases: int = 1) -> Level:
    """A level that spends the whole budget."""
    return Level(releases**0.5 / budget_mu(budget), 1.0, releases)


def draw(generator: np.random.Generator):
    return {"value": gaussian(generator, (4,))}


def test_a_release_is_made_once_and_read_ever_after():
    budget, calls = Private(epsilon=4), []

    def make(generator):
        calls.append(1)
        return draw(generator)

    first = open_book("ape", budget)
    first.reserve("a", {"part": whole(budget, 2)})
    values = [first.once("a", "part", "0", make), PrivacyLedger("ape", budget).once("a", "part", "0", make)]
    assert torch.equal(values[0]["value"], values[1]["value"])
    assert len(calls) == 1
    other = first.once("a", "part", "1", make)
    assert not torch.equal(other["value"], values[0]["value"])


def test_another_seed_is_refused_and_the_same_one_is_free():
    budget = Private(epsilon=4)
    book = PrivacyLedger("ape", budget)
    book.reserve("seed 0", {"part": whole(budget)})
    book.reserve("seed 0", {"part": whole(budget)})
    assert book.spent() == pytest.approx(4.0, rel=1e-6)
    with pytest.raises(PrivacyError, match=r"has spent epsilon = 4 .* distil\.private\.total=6;"):
        book.reserve("seed 1", {"part": whole(budget)})
    assert book.spent() == pytest.approx(4.0, rel=1e-6)
    PrivacyLedger("ape", Private(epsilon=4, total=6)).reserve("seed 1", {"part": whole(budget)})
    PrivacyLedger("bee", budget).reserve("seed 1", {"part": whole(budget)})


def test_more_releases_than_planned_are_charged_too():
    budget = Private(epsilon=4)
    book = PrivacyLedger("ape", budget)
    book.reserve("a", {"part": whole(budget)})
    book.once("a", "part", "model 1", draw)
    with refuses("budget-exceeded", PrivacyError, before=4.0000000000000036, limit=4):
        book.once("a", "part", "model 2", draw)


def test_runs_that_hide_replacements_count_additions_double():
    PrivacyLedger("ape", Private(epsilon=4)).reserve("a", {"part": whole(Private(epsilon=4))})
    with refuses("budget-exceeded", PrivacyError, limit=5):
        PrivacyLedger("ape", Private(epsilon=5, adjacency="replace")).reserve("b", {"part": Level(1e9)})


def test_only_the_user_can_read_the_folder(home):
    budget = Private(epsilon=4)
    book = open_book("ape", budget)
    book.reserve("a", {"part": whole(budget)})
    book.once("a", "part", "0", draw)
    assert len((home / "secret").read_bytes()) == 32
    for path in (home.parent, home, home / "released"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    for path in (home / "secret", home / "ledger.json", *(home / "released").iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("damage", ["ledger.json", "released"])
def test_a_damaged_ledger_releases_nothing(home, damage):
    budget = Private(epsilon=4)
    book = PrivacyLedger("ape", budget)
    book.reserve("a", {"part": whole(budget, 2)})
    book.once("a", "part", "0", draw)
    file = home / damage if damage == "ledger.json" else next((home / damage).iterdir())
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with refuses("ledger-damaged", PrivacyError):
        book.once("a", "part", "0", draw)


def test_an_edited_ledger_is_refused(home):
    budget = Private(epsilon=4)
    PrivacyLedger("ape", budget).reserve("a", {"part": whole(budget)})
    book = json.loads((home / "ledger.json").read_text())
    book["accounts"] = {}
    (home / "ledger.json").write_text(json.dumps(book))
    with refuses("ledger-damaged", PrivacyError):
        PrivacyLedger("ape", budget).spent()


def test_a_failed_release_is_not_charged():
    budget = Private(epsilon=4)
    book = PrivacyLedger("ape", budget)
    book.reserve("a", {"part": whole(budget)})

    def fail(generator):
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError):
        book.once("a", "part", "0", fail)
    assert book.once("a", "part", "1", draw)["value"].shape == (4,)


class Killed(BaseException):
    """The end of a process at this line."""


@pytest.mark.parametrize("where", ["before the value", "before its file", "before the ledger"])
def test_after_a_crash_the_same_value_is_released_and_charged_once(where, monkeypatch):
    budget, made = Private(epsilon=4), []

    def make(generator):
        made.append(draw(generator))
        if where == "before the value" and len(made) == 1:
            raise Killed
        return made[-1]

    def kill(*_, **__):
        raise Killed

    book = PrivacyLedger("ape", budget)
    book.reserve("a", {"part": whole(budget)})
    assert book.fingerprint  # the secret is on the disk
    with monkeypatch.context() as patch:
        for name in {"before its file": ["write_atomic"], "before the ledger": ["write_json"]}.get(where, ()):
            patch.setattr(files, name, kill)
        with pytest.raises(Killed):
            book.once("a", "part", "0", make)
    assert len(made) == 1
    again = PrivacyLedger("ape", budget)
    assert again.spent() == pytest.approx(4.0, rel=1e-6)
    with refuses("budget-exceeded", PrivacyError, limit=4):
        again.reserve("b", {"part": whole(budget)})
    value = again.once("a", "part", "0", make)["value"]
    assert all(torch.equal(value, each["value"]) for each in made)
    assert again.spent() == pytest.approx(4.0, rel=1e-6)
    with refuses("budget-exceeded", PrivacyError, limit=4):
        again.once("a", "part", "1", make)


def _compete(number: int, start, told) -> None:
    """One of several processes: it shares a release with the others, and wants the rest of the budget alone."""
    budget = Private(epsilon=4, total=6)
    book = PrivacyLedger("ape", budget)
    start.wait()
    book.reserve("shared", {"part": whole(budget)})
    value = book.once("shared", "part", "0", lambda generator: told.put("made") or draw(generator))["value"]
    try:
        book.reserve(f"seed {number}", {"part": whole(budget)})
        told.put((value.tolist(), "accepted"))
    except PrivacyError as error:
        told.put((value.tolist(), error.code))


def test_processes_that_run_at_once_make_a_release_once_and_spend_a_budget_once():
    context = multiprocessing.get_context("fork")
    start, told = context.Barrier(3), context.SimpleQueue()
    running = [context.Process(target=_compete, args=(number, start, told)) for number in range(3)]
    for process in running:
        process.start()
    found = [told.get() for _ in range(4)]
    for process in running:
        process.join(60)
        assert process.exitcode == 0
    assert found.count("made") == 1
    values = [each for each in found if each != "made"]
    assert values[0][0] == values[1][0] == values[2][0]
    assert sorted(answer for _, answer in values) == ["accepted", "budget-exceeded", "budget-exceeded"]
    assert PrivacyLedger("ape", Private(epsilon=4, total=6)).spent() <= 6


def test_the_noise_depends_on_the_secret_and_on_every_part_of_the_address():
    addresses = [(b"s", "a", "b"), (b"t", "a", "b"), (b"s", "a", "c"), (b"s", "c", "b"), (b"s", "ab", "")]
    first = [generator_for(*address).standard_normal() for address in addresses]
    assert len(set(first)) == len(first)
    assert generator_for(b"s", "a", "b").standard_normal() == first[0]


def test_gaussian_has_unit_variance():
    sample = gaussian(generator_for(b"s"), (200_000,))
    assert sample.dtype == torch.float64
    assert float(sample.mean()) == pytest.approx(0, abs=0.01)
    assert float(sample.std()) == pytest.approx(1, abs=0.01)


def test_a_simulation_keeps_no_files(home):
    book = open_book("ape", Private(epsilon=4, test_key="k"))
    book.reserve("a", {"part": Level(0.1)})
    assert torch.equal(book.once("a", "p", "0", draw)["value"], book.once("a", "p", "0", draw)["value"])
    assert not home.exists()
