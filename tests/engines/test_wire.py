"""Messages come back to the bit, and know when they were damaged."""

import errno
import json
import os
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedlgd.core.errors import RunError
from fedlgd.core.types import Hello, ServerState, SiteState, Update, VirtualSet
from fedlgd.engines import wire
from fedlgd.engines.storage import Enrolment
from fedlgd.engines.wire import from_bytes, has_undeclared, pack, read_message, to_bytes, write_message
from fedlgd.methods.fedavg import FedAvg
from fedlgd.methods.protocol import Expected
from fedlgd.runs.config import RunSettings
from tests import tiny
from tests.core.damage import flips, noticed, positions


def random_tensor(seed: int, dtype: torch.dtype = torch.float32, shape: tuple[int, ...] = (3, 2)) -> Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 100
    return x.to(dtype)


def virtual(origin: str, round: int) -> VirtualSet:
    return VirtualSet(images=random_tensor(round), labels=torch.tensor([0, 1, 1]), origin=origin, round=round)


SERVER = ServerState(
    round=7,
    params={"a.weight": random_tensor(0), "b": random_tensor(1, torch.float64), "n": torch.tensor(3)},
    anchors=virtual("server", 5),
    held={"ape": 4, "bee/../x": -1, "Ünïcode \U0001f600\n": 0},
    trees={"control": {"a.weight": random_tensor(2)}, "empty": {}},
)
SITE = SiteState(virtual=virtual("ape", -1), trees={"previous": {"w": random_tensor(3)}})
ENROLMENT = Enrolment(
    hello=Hello(site="ape", counts=torch.tensor([2, 0])),
    seconds={"distil": 0.1},
    cpu={"distil": 0.05},
    flops={"distil": 12345678901234},
    flags=("virtual",),
)
MESSAGES = [SERVER, SITE, SiteState(), ENROLMENT]


def bits(message: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """All that a message is, tensors as their bytes; JSON makes a tuple a list."""
    tensors, plain = pack(message)
    raw = {
        name: (tuple(t.shape), t.dtype, bytes(t.reshape(-1).view(torch.uint8).tolist()))
        for name, t in tensors.items()
    }
    return raw, json.loads(json.dumps(plain))


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_comes_back_bit_for_bit(tmp_path, message):
    write_message(tmp_path / "m", message)
    again = read_message(tmp_path / "m", type(message))
    assert type(again) is type(message)
    assert bits(again) == bits(message)


@pytest.mark.parametrize("message", MESSAGES)
def test_what_a_file_holds_is_what_goes_between_processes(tmp_path, message):
    write_message(tmp_path / "m", message)
    assert bits(from_bytes(type(message), (tmp_path / "m").read_bytes())) == bits(message)
    (tmp_path / "m").write_bytes(to_bytes(message))
    assert bits(read_message(tmp_path / "m", type(message))) == bits(message)


def test_bytes_that_are_no_message_are_refused():
    for content in (b"", b"not ours", to_bytes(SITE)[:-1], to_bytes(SITE)):
        with pytest.raises(ValueError, match=r".+"):
            from_bytes(ServerState, content)


def written_without(field: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An enrolment as a version wrote it that did not have this field, `hello.trees` being one of the hello."""

    def partly(message, wrapped=wire.pack):
        tensors, plain = wrapped(message)
        of, _, name = field.rpartition(".")
        del (plain[of] if of else plain)[name]
        return tensors, plain

    with monkeypatch.context() as patched:
        patched.setattr(wire, "pack", partly)
        write_message(file, ENROLMENT)


def test_a_message_without_a_field_that_has_no_default_is_refused(tmp_path, monkeypatch):
    written_without("hello", tmp_path / "m", monkeypatch)
    with pytest.raises(RunError, match="type Enrolment"):
        read_message(tmp_path / "m", Enrolment)


@pytest.mark.parametrize(("field", "default"), [("cpu", {}), ("flags", ()), ("hello.trees", {})])
def test_a_field_that_an_earlier_version_did_not_have_has_its_default(tmp_path, field, default, monkeypatch):
    written_without(field, tmp_path / "m", monkeypatch)
    again = read_message(tmp_path / "m", Enrolment)
    of, _, name = field.rpartition(".")
    assert getattr(getattr(again, of) if of else again, name) == default
    assert (again.hello.site, again.hello.counts.tolist(), again.seconds) == ("ape", [2, 0], {"distil": 0.1})
    assert bits(from_bytes(Enrolment, (tmp_path / "m").read_bytes(), strict=True)) == bits(again)


def test_a_message_with_a_field_that_nobody_knows_is_refused(tmp_path, monkeypatch):
    tensors, plain = pack(SITE)
    monkeypatch.setattr(wire, "pack", lambda _: (tensors, {**plain, "more": 1}))
    write_message(tmp_path / "m", SITE)
    with pytest.raises(RunError, match="type SiteState"):
        read_message(tmp_path / "m", SiteState)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.uint8,
        torch.bool,
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (2, 3, 1)], ids=str)
def test_tensors_of_every_kind_come_back_bit_for_bit(tmp_path, dtype, shape):
    state = ServerState(params={"x": random_tensor(1, dtype, shape)})
    write_message(tmp_path / "m", state)
    assert bits(read_message(tmp_path / "m", ServerState)) == bits(state)


def test_odd_numbers_keep_their_bits(tmp_path):
    patterns = torch.tensor([0x7FC00001, 0x7F800000, -0x80000000, 1, 0x7F7FFFFF], dtype=torch.int32)
    state = ServerState(
        params={"x": patterns.view(torch.float32)}
    )  # a NaN with a payload, inf, -0.0, subnormal, max
    write_message(tmp_path / "m", state)
    assert torch.equal(read_message(tmp_path / "m", ServerState).params["x"].view(torch.int32), patterns)


def test_tensors_that_are_views_or_the_same_come_back_each_on_its_own(tmp_path):
    x = random_tensor(0)
    x_grad = random_tensor(1).requires_grad_()
    params = {"x": x, "again": x, "row": x[1:], "turned": x.t(), "wide": x[:1].expand(4, 2), "leaf": x_grad}
    write_message(tmp_path / "m", ServerState(params=params))
    again = read_message(tmp_path / "m", ServerState).params
    assert {name: t.tolist() for name, t in again.items()} == {name: t.tolist() for name, t in params.items()}
    again["x"].zero_()
    assert again["again"].tolist() == x.tolist()


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.integers(-(2**63), 2**63 - 1)))
def test_plain_values_under_any_name_come_back(tmp_path_factory, held):
    file = tmp_path_factory.mktemp("plain") / "m"
    write_message(file, ServerState(params={}, held=held))
    assert read_message(file, ServerState).held == held


def reader(message: Any) -> Callable[[Path], Any]:
    return lambda file: read_message(file, type(message))


@pytest.mark.parametrize("message", MESSAGES)
def test_a_turned_bit_anywhere_is_noticed(tmp_path, message):
    file = tmp_path / "m.safetensors"
    write_message(file, message)
    for position, damaged in flips(file.read_bytes(), 400):
        file.write_bytes(damaged)
        assert noticed(reader(message), file), f"byte {position} was turned"
        assert file.read_bytes() == damaged


@pytest.mark.parametrize("message", MESSAGES)
def test_a_shortened_or_lengthened_file_is_noticed(tmp_path, message):
    file = tmp_path / "m.safetensors"
    write_message(file, message)
    content = file.read_bytes()
    shortened = [content[:length] for length in positions(len(content), 200)]
    for damaged in (b"", *shortened, content + b"\0", content + content):
        file.write_bytes(damaged)
        assert noticed(reader(message), file), f"{len(damaged)} bytes instead of {len(content)}"


def test_a_message_of_another_kind_is_refused(tmp_path):
    write_message(tmp_path / "m", SITE)
    with pytest.raises(RunError, match="damaged"):
        read_message(tmp_path / "m", ServerState)


def test_a_missing_file_is_named_with_the_way_out(tmp_path):
    with pytest.raises(RunError, match=r"nothing' .*No such file.*--out"):
        read_message(tmp_path / "nothing", SiteState)


def test_a_message_that_cannot_be_written_is_named_and_the_old_one_stays(tmp_path, monkeypatch):
    write_message(tmp_path / "m", SITE)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"m: No space left.*--out"):
        write_message(tmp_path / "m", SiteState())
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
    assert bits(read_message(tmp_path / "m", SiteState)) == bits(SITE)


def test_a_pickle_is_not_read(tmp_path):
    torch.save({"x": torch.zeros(1)}, tmp_path / "m")
    with pytest.raises(RunError, match="damaged"):
        read_message(tmp_path / "m", ServerState)


def test_the_size_of_a_message_is_told_by_path_also_of_what_is_no_tensor():
    trees: Any = {"extra": {"w": torch.zeros(2, 3), "note": "A. B."}}
    update = Update(site="ape", params={"a.b": torch.zeros(5)}, weight=3.0, metrics={"loss": 0.5}, trees=trees)
    assert wire.sizes(update) == {"params/a.b": 20, "metrics/loss": 8, "trees/extra/w": 24, "trees/extra/note": 7}
    hello = Hello(site="ape", counts=torch.tensor([2, 0]), trees={"means": {"x": torch.zeros(1)}})
    assert wire.sizes(hello) == {"hello/counts": 16, "hello/trees/means/x": 4}


@pytest.mark.parametrize(
    ("sends", "missing"),
    [
        ({"params": "weights", "metrics/loss": "loss", "trees/virtual": "images"}, False),
        ({"params": "weights", "metrics/loss": "loss", "trees/virtual/images": "images"}, False),
        ({"params": "weights", "metrics/loss": "loss", "trees": "everything"}, False),
        ({"params": "weights", "metrics/loss": "loss", "trees/virtually": "images"}, True),
        ({"metrics/loss": "loss", "trees/virtual": "images"}, True),
        ({"params": "weights", "trees/virtual": "images"}, True),
    ],
)
def test_a_part_of_an_update_under_no_declared_path_is_noticed(sends, missing):
    tensors = {"images": torch.ones(2)}
    update = Update(site="ape", params=tensors, weight=1.0, metrics={"loss": 0.5}, trees={"virtual": tensors})
    assert has_undeclared(update, sends) is missing


def test_what_is_not_declared_is_recorded_in_later_rounds_too():
    """The first rounds have only weights; a tree that nobody declared comes in the fourth."""

    class Late(FedAvg):
        def expects(self, msg, net, hello):
            trees = {"late": {"x": torch.zeros(3)}} if msg.round == 3 else {}
            return Expected(msg.params, trees)

        def site(self, msg, state, site, net, rng, **more):
            update, after = super().site(msg, state, site, net, rng, **more)
            return replace(update, trees={"late": {"x": torch.zeros(3)}} if msg.round == 3 else {}), after

    late = Late(**{f.name: getattr(tiny.fedavg(), f.name) for f in fields(FedAvg)})
    run = tiny.Run(late, tiny.federation(test=1), RunSettings(rounds=5, evaluate_every=5))
    assert ["trees/late" in record.sent for record in run.records] == [False] * 4 + [True, False]
    assert [bool(record.sent) for record in run.records] == [True] * 3 + [False, True, False]
