"""A change that is meant to leave results alone leaves every bit alone: runs of seed 0 against stored digests."""

import json
import sys

import pytest
import torch

from tests.contract import battery, digests

STORED = json.loads(digests.STORED.read_text())
SENSITIVE = {"fedlap-private"}
"""Runs with so much noise that other instructions of one machine move their size by a quarter."""


def test_every_method_has_a_stored_digest():
    assert set(STORED["runs"]) == set(battery.CASES)


@pytest.mark.parametrize("engine", digests.ENGINES)
@pytest.mark.parametrize("case", STORED["runs"])
def test_a_run_comes_to_the_stored_bits(case, engine):
    if engine == "pool" and sys.platform != "linux":
        pytest.skip("worker processes are forked")
    wanted, found = dict(STORED["runs"][case]), digests.of_run(case, engine)
    machine = wanted.pop("machine", STORED["machine"])
    if case in SENSITIVE and digests.machine() != machine:
        pytest.skip("stored on a machine that rounds differently")
    assert found["size"] == pytest.approx(wanted["size"], rel=1e-3)
    if digests.machine() == machine:
        assert found == wanted


def test_the_digest_of_a_run_sees_a_change_of_one_bit():
    weights = {"w": torch.zeros(3)}
    nudged = {"w": torch.tensor([0.0, 0.0, 1e-45])}
    assert digests.of_tensors(weights) != digests.of_tensors(nudged)
