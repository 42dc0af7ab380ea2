"""The loop engine: what is reproducible, what is counted, what is kept."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlgd.core.errors import SettingError
from fedlgd.core.train import score
from fedlgd.core.types import Cached, Stream
from fedlgd.engines.settings import RoundSettings, sample_sites
from fedlgd.nets.registry import build_net
from tests import tiny
from tests.vectors import vector

METHODS = {
    "fedavg-real": tiny.fedavg(train_on="real"),
    "fedavg-virtual": tiny.fedavg(),
    "fedlgd-paper": tiny.fedlgd(),
    "fedlgd-official": tiny.fedlgd("official"),
}
F = tiny.forward_flops()
MODEL = 4 * tiny.param_count()
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())

names = st.lists(st.text(max_size=5), min_size=1, max_size=60, unique=True)


# Sampling


@pytest.mark.parametrize("ratio", [0.2, 0.5, 1.0])
def test_sampled_counts_of_the_paper(ratio):
    sites = [f"s{i}" for i in range(57)]
    assert len(sample_sites(sites, ratio, Stream(0))) == vector("schedule")["selected_clients"][f"57x{ratio}"]


@settings(deadline=None, max_examples=100)
@given(sites=names, percent=st.integers(1, 100), seed=st.integers(0, 10**6))
def test_a_sample_is_a_part_of_the_right_size_without_repeats(sites, percent, seed):
    got = sample_sites(sites, percent / 100, Stream(seed))
    assert len(got) == max(1, percent * len(sites) // 100)
    assert len(set(got)) == len(got)
    assert [name for name in sites if name in got] == got
    assert got == sample_sites(sites, percent / 100, Stream(seed))


def test_every_site_is_sampled_equally_often():
    sites = list("abcde")
    count = Counter(name for t in range(1000) for name in sample_sites(sites, 0.4, Stream(0).at("sample", t)))
    assert all(340 <= count[name] <= 460 for name in sites)


def test_sampling_does_not_depend_on_the_method():
    plan = RoundSettings(rounds=4, ratio=0.34, seed=2)
    runs = [tiny.Run(m, tiny.federation(), plan) for m in METHODS.values()]
    assert len({tuple(r.sampled for r in run.records) for run in runs}) == 1
    assert len({r.sampled for r in runs[0].records[1:]}) > 1


def test_the_first_model_does_not_depend_on_the_method():
    runs = [tiny.Run(m, tiny.federation(), RoundSettings(rounds=1, seed=2)) for m in METHODS.values()]
    assert all(tiny.equal(run.states[0].params, runs[0].states[0].params) for run in runs)


# The same bits


@every_method
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(method):
    data = tiny.federation()
    a, b, c = (tiny.Run(method, data, RoundSettings(rounds=3, ratio=0.67, seed=s)) for s in (1, 1, 2))
    assert tiny.without_seconds(a.records) == tiny.without_seconds(b.records)
    for mine, theirs in zip(a.states, b.states, strict=True):
        assert tiny.equal(mine.params, theirs.params)
        if mine.anchors:
            assert torch.equal(mine.anchors.images, theirs.anchors.images)
    assert all(torch.equal(x, b.virtual[-1][k]) for k, x in a.virtual[-1].items())
    assert not tiny.equal(a.states[-1].params, c.states[-1].params)


@every_method
def test_the_order_of_sites_changes_no_bit(method):
    data = tiny.federation()
    turned = replace(data, sites=data.sites[::-1])
    plan = RoundSettings(rounds=3, ratio=0.67, seed=1)
    a, b = tiny.Run(method, data, plan), tiny.Run(method, turned, plan)
    assert tiny.without_seconds(a.records) == tiny.without_seconds(b.records)
    for mine, theirs in zip(a.states, b.states, strict=True):
        assert tiny.equal(mine.params, theirs.params)


def test_a_run_neither_reads_nor_moves_the_global_generator():
    data, plan = tiny.federation(), RoundSettings(rounds=3, seed=1)
    torch.manual_seed(0)
    a = tiny.Run(METHODS["fedlgd-paper"], data, plan)
    torch.manual_seed(99)
    before = torch.random.get_rng_state()
    b = tiny.Run(METHODS["fedlgd-paper"], data, plan)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert tiny.equal(a.states[-1].params, b.states[-1].params)


@every_method
def test_a_run_taken_up_again_is_bit_equal_to_one_that_never_stopped(method):
    data, plan = tiny.federation(), RoundSettings(rounds=4, ratio=0.67, seed=3)
    whole = tiny.Run(method, data, plan)
    first = tiny.Run(method, data, plan, rounds=2)
    rest = tiny.Run(method, data, plan, memory=first.memory)
    assert [r.round for r in first.records + rest.records] == [-1, 0, 1, 2, 3]
    assert tiny.without_seconds(first.records + rest.records) == tiny.without_seconds(whole.records)
    assert tiny.equal(rest.states[-1].params, whole.states[-1].params)


def test_a_finished_run_has_nothing_left_to_do():
    data, plan = tiny.federation(), RoundSettings(rounds=2)
    run = tiny.Run(METHODS["fedavg-virtual"], data, plan)
    assert list(tiny.play(METHODS["fedavg-virtual"], data, tiny.net(), plan, run.memory)) == []


class Fails:
    """A method whose site "cat" fails in round 2."""

    def __init__(self, method) -> None:
        self._method, self.failing = method, True

    def __getattr__(self, name):
        return getattr(self._method, name)

    def at(self, t, rounds):
        return self

    def site(self, msg, state, site, net, rng):
        if self.failing and msg.round == 2 and site.name == "cat":
            raise RuntimeError("the line is cut")
        return self._method.site(msg, state, site, net, rng)


def test_a_round_that_fails_leaves_nothing_behind():
    data, plan = tiny.federation(), RoundSettings(rounds=4, seed=3)
    whole = tiny.Run(METHODS["fedlgd-paper"], data, plan)
    method, memory = Fails(METHODS["fedlgd-paper"]), tiny.Kept()
    with pytest.raises(RuntimeError, match="cut"):
        tiny.Run(method, data, plan, memory=memory)
    assert memory.server().round == 2
    for name in tiny.NAMES:
        assert torch.equal(memory.site(name).virtual.images, whole.virtual[2][name])
    method.failing = False
    rest = tiny.Run(method, data, plan, memory=memory)
    assert tiny.without_seconds(rest.records) == tiny.without_seconds(whole.records[3:])
    assert tiny.equal(rest.states[-1].params, whole.states[-1].params)


def test_sites_that_enrolled_before_a_failure_do_not_enrol_again():
    data, plan, memory = tiny.federation(), RoundSettings(rounds=1), tiny.Kept()
    whole = tiny.Run(METHODS["fedlgd-paper"], data, plan)
    enrolled = []

    class Late(Fails):
        def enrol(self, site, net, rng):
            enrolled.append(site.name)
            if self.failing and site.name == "cat":
                raise RuntimeError("the line is cut")
            return self._method.enrol(site, net, rng)

    method = Late(METHODS["fedlgd-paper"])
    with pytest.raises(RuntimeError, match="cut"):
        tiny.Run(method, data, plan, memory=memory)
    assert memory.server() is None
    method.failing = False
    rest = tiny.Run(method, data, plan, memory=memory)
    assert enrolled == ["ape", "bee", "cat", "cat"]
    assert tiny.without_seconds(rest.records) == tiny.without_seconds(whole.records)
    assert tiny.equal(rest.states[-1].params, whole.states[-1].params)


class Watched:
    """A method whose site and server halves are checked to leave their inputs alone."""

    def __init__(self, method) -> None:
        self._method, self.calls = method, Counter()

    def __getattr__(self, name):
        return getattr(self._method, name)

    def at(self, t, rounds):
        return self

    def site(self, msg, state, site, net, rng):
        sets = [s.images for s in (msg.anchors, state.virtual, state.anchors) if s]
        given = [*msg.params.values(), *sets, site.train.x, site.train.y]
        before = [v.clone() for v in given]
        result = self._method.site(msg, state, site, net, rng)
        assert all(torch.equal(a, b) for a, b in zip(given, before, strict=True))
        self.calls["site"] += 1
        return result

    def server(self, state, updates, net, rng):
        given = [*state.params.values(), *([state.anchors.images] if state.anchors else [])]
        before, held = [v.clone() for v in given], dict(state.held)
        result = self._method.server(state, updates, net, rng)
        assert all(torch.equal(a, b) for a, b in zip(given, before, strict=True))
        assert state.held == held
        self.calls["server"] += 1
        return result


@every_method
def test_neither_half_of_a_method_changes_what_it_is_given(method):
    watched = Watched(method)
    tiny.Run(watched, tiny.federation(), RoundSettings(rounds=4, ratio=0.67))
    assert watched.calls == {"site": 8, "server": 4}


def test_norm_counters_and_statistics_are_carried_through_rounds():
    net = build_net("tests.nets.own:Normed", (3, 8, 8), 3)
    run = tiny.Run(tiny.fedavg(distil__steps=0), tiny.federation(), RoundSettings(rounds=2), using=net)
    batches = 2 * 2
    assert run.states[-1].params["norm.num_batches_tracked"].item() == batches
    assert not torch.equal(run.states[-1].params["norm.running_mean"], torch.zeros(3))


# Records


def test_enrolment_is_the_record_before_the_first_round():
    run = tiny.Run(METHODS["fedlgd-paper"], tiny.federation(), RoundSettings(rounds=2))
    assert [r.round for r in run.records] == [-1, 0, 1]
    assert run.records[0].flags == ("virtual",)
    assert run.records[0].bytes_down == 0
    assert run.records[0].scores == {}
    assert tiny.Run(METHODS["fedavg-real"], tiny.federation(), RoundSettings(rounds=1)).records[0].flags == ()


def test_scores_are_those_of_the_new_model_on_every_site_sampled_or_not():
    data, net = tiny.federation(), tiny.net()
    run = tiny.Run(METHODS["fedlgd-paper"], data, RoundSettings(rounds=3, ratio=0.34))
    for record, state in zip(run.records[1:], run.states[1:], strict=True):
        assert list(record.scores) == ["ape", "bee", "cat"]
        for name, got in record.scores.items():
            assert got == score(net, state.params, data.by_name[name].test, 3)
        assert record.accuracy == pytest.approx(sum(s.accuracy for s in record.scores.values()) / 3)
        assert list(record.metrics) == list(record.sampled)


@pytest.mark.parametrize(("rounds", "first"), [(1, [0]), (9, [0, 1, 2]), (20, [1, 3, 5]), (100, [9, 19, 29])])
def test_by_default_a_run_is_scored_about_ten_times(rounds, first):
    scored = [t for t in range(rounds) if RoundSettings(rounds=rounds).scores(t)]
    assert scored[:3] == first
    assert scored[-1] == rounds - 1
    assert len(scored) <= 10


@pytest.mark.parametrize(("every", "scored"), [(1, [0, 1, 2, 3, 4]), (2, [1, 3, 4]), (5, [4]), (99, [4])])
def test_the_model_is_scored_as_often_as_asked_and_at_the_end(every, scored):
    run = tiny.Run(METHODS["fedavg-virtual"], tiny.federation(), RoundSettings(rounds=5, evaluate_every=every))
    assert [r.round for r in run.records if r.scores] == scored
    for record in run.records:
        assert ("evaluate" in record.flops) == bool(record.scores)


def test_scoring_less_often_changes_no_bit_of_the_model():
    data = tiny.federation()
    a, b = (
        tiny.Run(METHODS["fedlgd-paper"], data, RoundSettings(rounds=3, evaluate_every=every)).states[-1]
        for every in (1, 3)
    )
    assert tiny.equal(a.params, b.params)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"rounds": 0}, "rounds"),
        ({"ratio": 0.0}, "ratio"),
        ({"ratio": 1.1}, "ratio"),
        ({"evaluate_every": -1}, "evaluate_every"),
    ],
)
def test_senseless_plans_are_refused_by_name(values, name):
    with pytest.raises(SettingError, match=name):
        RoundSettings(**values)


@pytest.mark.parametrize("name", ["fedavg-real", "fedavg-virtual"])
def test_a_class_missing_at_a_site_is_no_obstacle(name):
    data = tiny.federation(missing={"bee": 1})
    run = tiny.Run(METHODS[name], data, RoundSettings(rounds=2))
    assert all(torch.isfinite(v).all() for v in run.states[-1].params.values())
    assert run.records[-1].scores["bee"].total == (4, 4, 4)


# Bytes


def test_fedavg_moves_the_model_down_and_up_once_per_site_and_round():
    for method in (METHODS["fedavg-real"], METHODS["fedavg-virtual"]):
        run = tiny.Run(method, tiny.federation(), RoundSettings(rounds=3, ratio=0.67))
        for record in run.records[1:]:
            assert len(record.sampled) == 2
            assert (record.bytes_down, record.bytes_up) == (2 * MODEL, 2 * MODEL)


def test_at_enrolment_sites_upload_counts_and_statistics_only_where_asked():
    counts, statistics = 8 * 3, 24 * 3
    sent = {
        k: tiny.Run(m, tiny.federation(), RoundSettings(rounds=1)).records[0].bytes_up for k, m in METHODS.items()
    }
    assert sent["fedavg-real"] == sent["fedavg-virtual"] == sent["fedlgd-paper"] == 3 * counts
    assert sent["fedlgd-official"] == 3 * (counts + statistics)


ANCHORS = 4 * 6 * 3 * 8 * 8 + 8 * 6


def test_fedlgd_adds_the_anchors_where_they_are_stale_and_needed():
    run = tiny.Run(METHODS["fedlgd-paper"], tiny.federation(), RoundSettings(rounds=5))
    down = [r.bytes_down - 3 * MODEL for r in run.records[1:]]
    assert down == [0, 3 * ANCHORS, 0, 3 * ANCHORS, 0]
    assert all(r.bytes_up == 3 * MODEL for r in run.records[1:])


def test_fedlgd_as_released_sends_anchors_before_the_first_round_and_after_each_change():
    method = tiny.fedlgd("official", anchors__selected__count=2)
    run = tiny.Run(method, tiny.federation(), RoundSettings(rounds=5))
    down = [r.bytes_down - 3 * MODEL for r in run.records[1:]]
    assert down == [3 * ANCHORS, 3 * ANCHORS, 0, 3 * ANCHORS, 0]


def test_with_sampling_anchors_are_counted_per_stale_site():
    run = tiny.Run(METHODS["fedlgd-paper"], tiny.federation(), RoundSettings(rounds=8, ratio=0.67, seed=4))
    version, held = -1, {}
    for record in run.records[1:]:
        t = record.round
        stale = [name for name in record.sampled if t not in (0, 2) and held.get(name) != version]
        held |= dict.fromkeys(stale, version)
        assert record.bytes_down == 2 * MODEL + len(stale) * ANCHORS
        version = t if t in (0, 2) else version


# FLOPs


def _enrolling(sites: int, steps: int, real: int, virtual: int) -> int:
    return sites * steps * (3 * real + 2 * virtual) * F


def test_flops_of_enrolment_are_those_of_the_first_distillation():
    run = tiny.Run(METHODS["fedlgd-paper"], tiny.federation(), RoundSettings(rounds=1))
    assert run.records[0].flops == {"distil": _enrolling(3, 2, 4, 6)}
    few = tiny.fedlgd(distil__real_per_class=256, distil__steps=3)
    run = tiny.Run(few, tiny.federation(), RoundSettings(rounds=1))
    assert run.records[0].flops == {"distil": _enrolling(3, 3, 6, 6)}
    assert tiny.Run(METHODS["fedavg-real"], tiny.federation(), RoundSettings(rounds=1)).records[0].flops == {}


def test_flops_of_fedavg_are_three_passes_per_image_and_epoch():
    for train_on, images in (("real", 18), ("virtual", 6)):
        method = tiny.fedavg(train_on=train_on, local__epochs=2)
        run = tiny.Run(method, tiny.federation(), RoundSettings(rounds=2))
        for record in run.records[1:]:
            assert record.flops == {"train": 3 * 3 * 2 * images * F, "evaluate": 3 * 12 * F}


def test_flops_of_a_selected_round():
    """S_c (K min(256, n_k) + 2 n_v) F + 3 E n_v F at a site; S_g n_g 8 F at the server."""
    run = tiny.Run(METHODS["fedlgd-paper"], tiny.federation(), RoundSettings(rounds=1))
    assert run.records[1].flops == {
        "distil": 3 * 3 * (3 * 4 + 2 * 6) * F,
        "train": 3 * 3 * 6 * F,
        "server": 2 * 6 * 8 * F,
        "evaluate": 3 * 12 * F,
    }


@pytest.mark.parametrize("repeat", [False, True])
def test_flops_of_an_unselected_round(repeat):
    """Every step embeds its local images and all anchors, each once: 3 E n_v F + 3 s n_g F."""
    method = tiny.fedlgd(local__epochs=2, local__batch=5, pull__repeat=repeat)
    run = tiny.Run(method, tiny.federation(), RoundSettings(rounds=2, evaluate_every=2))
    steps = 2 * 3
    assert run.records[2].flops == {
        "train": 3 * (3 * 2 * 6 + 3 * steps * 6) * F,
        "evaluate": 3 * 12 * F,
    }


def test_flops_of_a_selected_round_as_released():
    method = tiny.fedlgd("official", refine__selected__first=0)
    run = tiny.Run(method, tiny.federation(), RoundSettings(rounds=1))
    assert run.records[1].flops["train"] == 3 * 3 * (6 + 6) * F


def test_flops_without_a_pull_embed_no_anchor_twice():
    run = tiny.Run(tiny.fedlgd(pull__weight=0.0), tiny.federation(), RoundSettings(rounds=2))
    assert run.records[2].flops["train"] == 3 * 3 * (6 + 6) * F


class Thinks:
    """A method whose sites look at five images before they start."""

    def __init__(self, method) -> None:
        self._method = method

    def __getattr__(self, name):
        return getattr(self._method, name)

    def at(self, t, rounds):
        return self

    def site(self, msg, state, site, net, rng):
        net.frozen(msg.params, state.virtual.images[:5])
        return self._method.site(msg, state, site, net, rng)


def test_all_work_of_a_site_is_charged_to_training_unless_it_says_otherwise():
    plain, more = (
        tiny.Run(m, tiny.federation(), RoundSettings(rounds=1)).records[1].flops
        for m in (METHODS["fedlgd-paper"], Thinks(METHODS["fedlgd-paper"]))
    )
    assert more == plain | {"train": plain["train"] + 3 * 5 * F}


class Box(dict):
    """A cache in memory."""

    def put(self, key: str, item: Cached) -> None:
        self[key] = item


def test_virtual_sets_from_a_cache_are_charged_as_if_made():
    data, plan, box = tiny.federation(), RoundSettings(rounds=1), Box()
    alone = tiny.Run(METHODS["fedlgd-paper"], data, plan)
    first = tiny.Run(METHODS["fedavg-virtual"], data.with_cache(box), plan)
    assert len(box) == 3
    second = tiny.Run(METHODS["fedlgd-paper"], data.with_cache(box), plan)
    assert len(box) == 3
    assert first.records[0].flops == second.records[0].flops == alone.records[0].flops
    assert second.records[0].seconds["distil"] == pytest.approx(first.records[0].seconds["distil"])
    assert second.records[0].cpu["distil"] == pytest.approx(first.records[0].cpu["distil"])
    assert tiny.without_seconds(second.records) == tiny.without_seconds(alone.records)
    assert tiny.equal(second.states[-1].params, alone.states[-1].params)


def test_seconds_are_kept_for_the_phases_that_worked():
    run = tiny.Run(METHODS["fedlgd-paper"], tiny.federation(), RoundSettings(rounds=2))
    assert set(run.records[0].seconds) == {"distil", "server"}
    assert set(run.records[1].seconds) == {"distil", "train", "server", "evaluate"}
    assert set(run.records[2].seconds) == {"train", "server", "evaluate"}
    assert all(s > 0 for r in run.records for s in r.seconds.values())
    assert all(r.cpu.keys() == r.seconds.keys() for r in run.records)
