"""Wall time, CPU time and FLOPs by phase, and ticks."""

from types import SimpleNamespace

import pytest

from fedlgd.core import meter
from fedlgd.core.meter import Spent, charge, listening, metered, phase, spend, track


@pytest.fixture
def clock(monkeypatch):
    """Two clocks that move only when told: the machine waits, or it computes on all its cores."""
    now = [100.0, 7.0]
    monkeypatch.setattr(meter.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(meter.time, "process_time", lambda: now[1])

    def wait(seconds: float, cpu: float = 0.0) -> None:
        now[0] += seconds
        now[1] += cpu

    return wait


def test_time_and_work_belong_to_the_innermost_phase(clock):
    with metered() as got:
        clock(1)
        with phase("outer"):
            clock(2)
            spend(10)
            with phase("inner"):
                clock(4)
                spend(100)
            clock(8)
            spend(1)
        clock(16)
        spend(1000)
    assert dict(got.seconds) == {"outer": 10, "inner": 4}
    assert dict(got.flops) == {"outer": 11, "inner": 100}


def test_waiting_for_other_processes_is_wall_time_and_no_cpu_time(clock):
    with metered() as got, phase("outer"):
        clock(60, cpu=2)
        with phase("inner"):
            clock(0.5, cpu=1)
        clock(1000)
    assert dict(got.seconds) == {"outer": 1060, "inner": 0.5}
    assert dict(got.cpu) == {"outer": 2, "inner": 1}


def test_the_cpu_clock_is_that_of_this_process():
    with metered() as got, phase("train"):
        sum(range(300_000))
    assert 0 < got.cpu["train"] <= meter.time.process_time()


def test_a_phase_entered_twice_adds_up(clock):
    with metered() as got:
        for _ in range(3):
            with phase("train"):
                clock(1)
                spend(5)
    assert got.seconds["train"] == 3
    assert got.flops["train"] == 15


def test_a_phase_ends_when_its_work_fails(clock):
    def fail() -> None:
        with phase("train"):
            clock(1)
            raise RuntimeError

    with metered() as got:
        with pytest.raises(RuntimeError):
            fail()
        clock(5)
        spend(5)
    assert dict(got.seconds) == {"train": 1}
    assert not got.flops


def test_work_inside_an_inner_meter_is_not_the_outer_ones(clock):
    with metered() as outer, phase("a"):
        with metered() as inner, phase("b"):
            spend(7)
        spend(1)
    assert dict(inner.flops) == {"b": 7}
    assert dict(outer.flops) == {"a": 1}


def test_charging_work_done_elsewhere_keeps_its_phases():
    with metered() as got, phase("train"):
        charge(SimpleNamespace(seconds={"distil": 2.0}, cpu={"distil": 1.0}, flops={"distil": 30}))
        charge(SimpleNamespace(seconds={"distil": 1.0}, cpu={"distil": 0.5}, flops={"distil": 3}))
    assert got.seconds["distil"] == 3
    assert got.cpu["distil"] == 1.5
    assert dict(got.flops) == {"distil": 33}


def test_listener_hears_every_tick_of_what_runs_inside():
    heard = []
    with listening(lambda *tick: heard.append(tick)):
        assert list(track("distil", 3)) == [0, 1, 2]
    list(track("match", 2))
    assert heard == [("distil", 1, 3), ("distil", 2, 3), ("distil", 3, 3)]


def test_tracking_nothing_is_silent():
    heard = []
    with listening(lambda *tick: heard.append(tick)):
        assert list(track("distil", 0)) == []
    assert heard == []


def test_a_whole_phase_has_all_that_happens_in_it(clock):
    with metered() as got:
        with phase("server", whole=True):
            clock(1)
            with phase("train"):
                clock(2, cpu=3)
                spend(10)
                with phase("distil"):
                    spend(100)
            charge(Spent(seconds={"distil": 30.0, "train": 1.0}, flops={"distil": 1000}))
        with phase("train"):
            clock(5)
    assert dict(got.seconds) == {"server": 34, "train": 5}
    assert dict(got.cpu) == {"server": 3, "train": 0}
    assert dict(got.flops) == {"server": 1110}


def test_what_another_meter_measures_is_charged_once(clock):
    with metered() as got, phase("train"):
        clock(1)
        with metered() as inner, phase("distil"):
            clock(10, cpu=7)
        charge(Spent(**inner.spent()))
        clock(2)
    assert dict(got.seconds) == {"train": 3, "distil": 10}
    assert dict(got.cpu) == {"train": 0, "distil": 7}
