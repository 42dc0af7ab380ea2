"""What a method declares, against what its sites sent and read."""

from dataclasses import replace

import pytest

from fedlgd.methods.protocol import WEIGHTS
from fedlgd.rundir.disclosure import UNDECLARED, Mismatch, differences, kind_of, may_read
from fedlgd.rundir.manifest import MethodInfo, Rounds
from fedlgd.rundir.records import RoundRecord, SentPart
from tests import tiny
from tests.contract import battery
from tests.rundir.test_manifest import CASES, NEWER, made, manifest_of

METHOD = MethodInfo(
    name="mine",
    label="Mine",
    train_on="virtual",
    reads=("enrolment", "selected"),
    sends={"hello/counts": "counts", **WEIGHTS, "trees/virtual": "images", "trees/virtual/radius": "a radius"},
    selected={"refine": Rounds(0, 5, 3)},
)
PART = SentPart(tensors=1, form="float32 (3,)", bytes=12, sites=1)


def record(t: int, *paths: str, readers: int = 0) -> RoundRecord:
    return RoundRecord(round=t, sent=dict.fromkeys(paths, PART), readers=readers)


HONEST = [
    record(-1, "hello/counts", readers=3),
    record(0, "params", "metrics/loss", "trees/virtual", "trees/virtual/radius", readers=3),
    record(1),
]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("params", "weights"),
        ("trees/virtual", "images"),
        ("trees/virtual/images", "images"),
        ("trees/virtual/radius", "a radius"),
        ("trees/virtually", UNDECLARED),
        ("hello/trees/means", UNDECLARED),
    ],
)
def test_the_longest_declared_path_says_what_is_sent(path, kind):
    assert kind_of(path, METHOD) == kind


def test_a_method_that_does_what_it_declares_has_no_difference():
    assert not list(differences(METHOD, HONEST))


@pytest.mark.parametrize(
    ("records", "found"),
    [
        ([*HONEST, record(1, "trees/logits")], [Mismatch("sent-undeclared", "trees/logits")]),
        ([record(-1, "hello/counts", "hello/trees/x")], [Mismatch("sent-undeclared", "hello/trees/x")]),
        ([*HONEST, record(2, readers=1), record(3, readers=1)], [Mismatch("read-undeclared", "3")]),
        ([*HONEST, record(5, readers=3)], []),
        ([*HONEST, record(15, readers=3)], [Mismatch("read-undeclared", "16")]),
        (
            [record(-1, "hello/counts"), record(0, "params", "metrics/loss")],
            [Mismatch("declared-unsent", "trees/virtual"), Mismatch("declared-unsent", "trees/virtual/radius")],
        ),
        ([record(-1), record(0), record(1)], []),
    ],
)
def test_every_difference_is_found(records, found):
    """Records without observations are those of older versions: nothing is concluded from them."""
    assert list(differences(METHOD, records)) == found


def test_reading_never_at_the_enrolment_or_always():
    assert not may_read(0, replace(METHOD, reads=()))
    assert not may_read(-1, replace(METHOD, reads=("selected",)))
    assert may_read(3, replace(METHOD, reads=("every",)))
    assert may_read(-1, replace(METHOD, reads=("every",)))


NOT_SIMULATED = ("protected", "fedavg+dp-fedavg")  # it needs a ledger; it needs more sites


EVERY = {case: CASES[case] for case in CASES if case not in NOT_SIMULATED} | {name: (name, {}) for name in NEWER}
EVERY |= {"pooled on virtual data": ("pooled", {"train_on": "virtual"})}


@pytest.mark.parametrize("case", EVERY)
def test_every_method_of_the_package_sends_and_reads_what_it_declares(case):
    name, settings = EVERY[case]
    few = (
        {"distil.private.releases": 2, "distil.private.blocks": 1} if settings.get("distil.private.epsilon") else {}
    )
    how = made(name, settings | few)
    data = tiny.federation(train=60 if how.method.budget else 6, test=1)
    data = battery.prepared(how.method, data, tiny.net(), 0)
    method, plan = tiny.settings(how.method, {}), replace(how.plan, rounds=3, evaluate_every=3)
    run = tiny.Run(method, data, plan)
    assert not list(differences(manifest_of(how).method, run.records))
    assert any(record.sent for record in run.records)
