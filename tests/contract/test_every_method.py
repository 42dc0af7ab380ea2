"""What every registered method promises, on real and virtual data, with and without anchors, in every variant."""

import gc
import math
import re
import sys
import tomllib
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import torch
from torch.nn import functional as F

from fedlgd.core.errors import PrivacyError, SettingError
from fedlgd.core.types import Broadcast, ServerState, Stream, Update
from fedlgd.data.federation import Federation
from fedlgd.distill.settings import STARTS
from fedlgd.engines.wire import nbytes, pack
from fedlgd.methods import common, registry
from fedlgd.methods.fedavg import FedAvg
from fedlgd.methods.parts import for_rounds
from fedlgd.methods.protocol import Expected
from fedlgd.runs.config import Config, RunSettings, resolve
from tests import tiny
from tests.contract.battery import (
    CASES,
    PLAN,
    SIZES,
    Diary,
    bits,
    finite,
    leaks,
    play,
    quick,
    seen,
    uneven,
    watch,
)

every_case = pytest.mark.parametrize("case", CASES)
every_method = pytest.mark.parametrize("name", registry.names())


def _fitted(method: Any, data: Federation) -> tuple[tiny.Run, list[tuple[int, int]]]:
    """Two rounds; and (images of an epoch, steps taken) of each local training."""
    fits: list[tuple[int, int]] = []

    def sgd(net, start, n, objective, *rest, wrapped=common.sgd):
        steps = 0

        def counted(w, index):
            nonlocal steps
            steps += 1
            return objective(w, index)

        trained = wrapped(net, start, n, counted, *rest)
        assert trained.steps == steps
        fits.append((n, steps))
        return trained

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(common, "sgd", sgd)
        return play(method, data, RunSettings(rounds=2, evaluate_every=2)), fits


@cache
def alone(case: str) -> tuple[tiny.Run, list[tuple[int, int]]]:
    """One site, two epochs a round in batches of five."""
    return _fitted(tiny.settings(CASES[case], {"local.epochs": 2, "local.batch": 5}), uneven(("bee",)))


@cache
def lacking(case: str) -> tuple[tiny.Run, list[tuple[int, int]]]:
    """Two sites, one of them without a class; five steps a round, whatever the epochs."""
    data = tiny.federation(names=("ape", "bee"), train=4, test=2, missing={"bee": 1})
    return _fitted(tiny.settings(CASES[case], {"local.steps": 5, "local.epochs": 3}), data)


def test_the_battery_has_every_method_in_every_guise():
    for name in registry.names():
        guises = {case for case in CASES if CASES[case].name.partition("+")[0] == name}
        if "train_on" in {f.name for f in fields(registry.find_method(name))}:
            assert {CASES[case].train_on for case in guises} == {"real", "virtual"}
        if "anchors" in registry.find_method(name).stackable:
            assert any(CASES[case].name == f"{name}+anchors" for case in guises)
    assert len(CASES) == len({repr(method) for method in CASES.values()})


# Pure, reproducible, in any order


@every_case
def test_no_call_changes_what_it_is_given_or_the_global_generator(case):
    assert seen(case).watched.changed == []


@every_case
def test_every_call_gives_the_same_bits_again_whatever_the_global_generator(case):
    assert seen(case).watched.unequal == []


@every_case
def test_updates_are_read_once_and_in_order(case):
    assert seen(case).watched.misread == []


def _told(run: tiny.Run, rounds: int = PLAN.rounds + 1) -> list[Any]:
    """The last records but for costs and readers: a witness does everything twice, and reads all images."""
    return [replace(record, flops={}, readers=0) for record in tiny.without_seconds(run.records)[-rounds:]]


@every_case
def test_the_order_of_sites_in_the_federation_changes_no_bit(case):
    data = uneven()
    turned = replace(data, sites=data.sites[::-1])
    memory = Diary()
    run = play(CASES[case], turned, memory=memory)
    other = seen(case)
    assert _told(run) == _told(other.run)
    assert [bits(page[0]) for page in memory.pages] == [bits(page[0]) for page in other.diary.pages]
    assert [bits(page[1]) for page in memory.pages] == [bits(page[1]) for page in other.diary.pages]


@every_method
def test_another_seed_gives_other_bits(name):
    a, b = (play(quick(name), uneven(("ape",)), RunSettings(rounds=1, seed=seed)) for seed in (5, 6))
    assert a.records[-1].metrics != b.records[-1].metrics or not any(a.records[-1].metrics.values())
    assert bits(a.records[-1].scores) != bits(b.records[-1].scores)


@every_case
def test_sites_that_are_absent_keep_their_state_bit_for_bit(case):
    other = seen(case)
    pages, absences = other.diary.pages, 0
    for before, after, record in zip(pages, pages[1:], other.run.records[1:], strict=False):
        for name in set(other.data.by_name) - set(record.sampled):
            absences += 1
            assert bits(before[1][name]) == bits(after[1][name])
    assert absences == (0 if len(other.data.by_name) == 1 else PLAN.rounds)


@every_case
def test_a_run_taken_up_from_written_states_after_any_round_ends_bit_equal(case):
    other = seen(case)
    assert len(other.diary.pages) == PLAN.rounds + 1
    for page in other.diary.pages[1:-1]:
        memory = Diary.opened(page)
        run = play(CASES[case], uneven(), memory=memory)
        assert bits(memory.pages[-1]) == bits(other.diary.pages[-1])
        assert _told(run) == _told(other.run, len(run.records))


@every_case
def test_a_state_read_back_is_the_state_that_was_written(case):
    other = seen(case)
    for page, state in zip(other.diary.pages, other.run.states, strict=True):
        memory = Diary.opened(page)
        assert bits(memory.server()) == bits(state)
    for name in other.data.by_name:
        assert bits(memory.site(name)) == bits(other.diary.site(name))


@every_case
def test_rounds_are_counted_and_the_run_moves_the_model_of_every_site_that_took_part(case):
    other = seen(case)
    assert [state.round for state in other.run.states] == list(range(PLAN.rounds + 1))
    method = other.watched.method
    for record, before, after in zip(other.run.records[1:], other.run.states, other.run.states[1:], strict=False):
        assert set(record.metrics) == set(record.sampled)
        assert len(record.sampled) == (1 if len(other.data.by_name) == 1 else 2)
        if not getattr(method, "personal", False):
            assert bits(before.params) != bits(after.params)


MORE = {
    "fedlgd": {"pull.weight": 0.1, "distil.steps": 10, "distil.lr": 0.3},
    "collabdm": {"distil.steps": 40, "distil.lr": 0.3},
    "fedvck": {"distil.steps": 50},  # images begin as noise in every round
    "fedlap": {"batches": 10, "distil.lr": 1.0, "local.epochs": 10},
}
"""What a method needs to learn from so little."""


@every_method
def test_every_method_learns(name):
    """A wrong sign somewhere would show."""
    method = quick(name, **{"local.epochs": 3, "local.lr": 0.1})
    method = tiny.settings(method, MORE.get(name, {}))
    run = play(method, uneven(("ape", "cat")), RunSettings(rounds=3, evaluate_every=3))
    assert run.records[-1].accuracy > 0.8


# Small and incomplete federations


@every_case
def test_one_site_is_a_federation(case):
    run, _ = alone(case)
    assert finite(run.states[-1])
    assert set(run.records[-1].scores) == {"bee"}


@every_case
def test_a_site_that_lacks_a_class_is_no_obstacle(case):
    run, _ = lacking(case)
    assert finite(run.states[-1])
    assert all(finite(run.memory.site(name)) for name in run.names)
    assert all(math.isfinite(s.loss) for s in run.records[-1].scores.values())
    assert len(run.records[-1].scores) == 2


@every_method
def test_a_class_that_nobody_has_is_no_obstacle(name):
    data = tiny.federation(names=("ape", "bee"), train=2, test=1, missing={"ape": 2, "bee": 2})
    run = play(quick(name), data, RunSettings(rounds=2))
    assert finite(run.states[-1].params)
    assert all(math.isfinite(s.loss) for s in run.records[-1].scores.values())


@every_method
def test_one_image_a_batch_is_enough(name):
    method = quick(name, **{"local.batch": 1, "local.steps": 2, "local.lr": 0.01})
    run = play(method, tiny.federation(names=("ape", "bee"), train=2, test=1), RunSettings(rounds=2))
    assert finite(run.states[-1])


# Running statistics and counters


@every_method
def test_a_net_with_buffers_is_as_pure_and_its_counters_take_the_largest_value(name):
    """Discrepancy 29: the second site takes more steps than the first, in batches of 4."""
    net = tiny.net(norm="batch")
    other = watch(quick(name), uneven(("bee", "cat")), RunSettings(rounds=2, evaluate_every=2), net=net)
    assert (other.watched.changed, other.watched.unequal) == ([], [])
    assert finite(other.run.states[-1])
    counter = "blocks.1.num_batches_tracked"
    sent = [u.params[counter].item() for u in other.watched.received if counter in u.params]
    for state in other.run.states[1:]:
        here, sent = sent[: len(other.data.sites)], sent[len(other.data.sites) :]
        if here:
            assert state.params[counter].item() == max(here)
            assert len(here) == 1 or here[0] < here[1] or name in ("fedlgd",)


# A stream that may be larger than memory


@every_case
def test_the_server_holds_few_models_however_many_sites_answer(case):
    other = seen(case)
    pattern = other.watched.received[0]
    state, alive = other.run.states[0], []
    models: list[weakref.ref] = []

    def arriving() -> Iterator[Update]:
        for i in range(8):
            gc.collect(0)
            alive.append(sum(any(t() is not None for t in model) for model in models))
            made = {k: v.clone() for k, v in pattern.params.items()}
            models.append([weakref.ref(v) for v in made.values()])
            yield replace(pattern, site=f"s{i}", params=made)
            del made

    other.watched.method.server(state, arriving(), other.net, Stream(0))
    assert len(alive) == 8
    assert max(alive) <= 2


# What leaves a site, and what enters it


@every_case
def test_no_message_holds_a_training_image_or_the_labels(case):
    other = seen(case)
    assert leaks(other.watched.messages, uneven()) == []


STAYING = [c for c in CASES if CASES[c].train_on == "virtual" and "images" not in CASES[c].sends.values()]


@pytest.mark.parametrize("case", STAYING)
def test_virtual_sets_never_leave_their_site_even_if_they_are_real_images(case):
    method = tiny.settings(CASES[case], {"distil.start": "real", "distil.steps": 0})
    other = watch(method, uneven(), replace(PLAN, rounds=2), times=1)
    if not method.pooled:
        kept = Diary.opened(other.diary.pages[0])
        assert all(leaks([kept.site(name)], uneven()) for name in tiny.NAMES)
    assert leaks(other.watched.messages, uneven()) == []


@every_case
def test_what_a_site_reports_besides_tensors_are_single_numbers(case):
    for update in seen(case).watched.received:
        assert set(pack(update)[1]) == {"site", "params", "weight", "metrics", "trees"}
        assert isinstance(update.weight, float)
        assert all(isinstance(value, float) for value in update.metrics.values())
        assert len(update.metrics) <= 4


@every_case
def test_a_site_discloses_class_counts_at_enrolment_and_what_else_is_asked_and_declared(case):
    method = CASES[case]
    asked = getattr(getattr(method, "anchors", None), "start", "") == "statistics"
    for hello in seen(case).watched.hellos:
        assert hello.counts.shape == (3,)
        assert (hello.statistics is not None) == asked
        assert {f"hello/trees/{name}" for name in hello.trees} == {
            p for p in method.sends if p.startswith("hello/")
        }
        assert nbytes(replace(hello, trees={})) == 8 * 3 + asked * 24 * 3


# Table 5.8: P parameters, K classes, d features; numbers of elements down and up, per site and round

P, K, D = tiny.param_count(), 3, (tiny.SIDE // 4) ** 2 * tiny.WIDTH
NORMS = 2 * 2 * tiny.WIDTH
SET = 2 * K  # images of a virtual set that the server sends


@dataclass(frozen=True)
class Row:
    """Elements down and up, elements a site keeps after its first round, and what the server keeps besides P."""

    down: int
    up: int
    kept: int
    server: int
    first_down: int | None = None
    wide: int = 0  # elements up of 8 bytes
    shared: bool = False  # a set of the server is sent once


IMAGES = SET * 3 * tiny.SIDE**2
WIDER = tiny.param_count(classes=2 * K)
TABLE = {
    "fedavg": Row(P, P, 0, 0),
    "fedprox": Row(P, P, 0, 0),
    "fednova": Row(P, P + 1, 0, 0, wide=1),  # the work a_c is one float64
    "scaffold": Row(2 * P, 2 * P, P, P + 1),  # and the number of sites
    "moon": Row(P, P, P, 0),
    "fedproto-local": Row(K * D, K * (D + 1), P, K * D, first_down=0),
    "fedproto-avg": Row(P + K * D, P + K * (D + 1), 0, K * D, first_down=P),
    "vhl": Row(WIDER, WIDER, IMAGES + SET, IMAGES + SET, shared=True),
    "fedbn": Row(P - NORMS, P - NORMS, NORMS, 0),
    "local-only": Row(0, 0, P, 0),
    "pooled": Row(P, P, 0, 0),
    "dynafed": Row(P, P, 0, IMAGES + SET * K + 1),  # images with soft labels, and a step size
    "feddm": Row(P, IMAGES + K, IMAGES + SET, 0),  # and how many images of each class are present
    "fedlap": Row(P, IMAGES + K + 1, IMAGES + SET, 0),  # and the radius
}
in_table = pytest.mark.parametrize("name", TABLE)


def _elements(message: Any, but: str = "") -> int:
    return sum(t.numel() for path, t in pack(message)[0].items() if not (but and path.startswith(but)))


@in_table
def test_messages_hold_what_the_table_says(name):
    row, other = TABLE[name], seen(name if name in CASES else f"{name}-real")
    got_set = set()
    for site, message in other.watched.sent:
        first = row.first_down if message.round == 0 and row.first_down is not None else row.down
        assert _elements(message, "anchors") == first
        assert (message.anchors is not None) == (row.shared and site not in got_set)
        if message.anchors is not None:
            got_set.add(site)
            assert _elements(message.anchors) == IMAGES + SET
    assert {_elements(update) for update in other.watched.received} == {row.up}


@in_table
def test_the_ledger_counts_four_bytes_a_number_and_eight_a_label(name):
    """Labels of a set that is sent are int64, as is FedNova's a_c float64: 8 bytes each."""
    row, other = TABLE[name], seen(name if name in CASES else f"{name}-real")
    sent: set[str] = set()
    for record in other.run.records[1:]:
        first = row.first_down if record.round == 0 and row.first_down is not None else row.down
        new = set(record.sampled) - sent if row.shared else set()
        sent |= new
        assert record.bytes_down == len(record.sampled) * 4 * first + len(new) * (4 * IMAGES + 8 * SET)
        assert record.bytes_up == len(record.sampled) * (4 * row.up + 4 * row.wide)
    assert other.run.records[0].bytes_up == len(other.data.by_name) * 8 * K
    assert other.run.records[0].bytes_down == 0


@in_table
def test_states_hold_what_the_table_says(name):
    row, other = TABLE[name], seen(name if name in CASES else f"{name}-real")
    for site in {site for record in other.run.records for site in record.sampled}:
        assert _elements(other.run.memory.site(site)) == row.kept
    assert _elements(other.run.states[-1], "params") == row.server


@pytest.mark.parametrize("case", [c for c in CASES if hasattr(CASES[c], "anchors")])
def test_anchors_cost_their_pixels_and_eight_bytes_a_label_whenever_they_are_sent(case):
    other = seen(case)
    with_anchors = [m for _, m in other.watched.sent if m.anchors is not None]
    assert bool(with_anchors) == bool(CASES[case].anchors.per_class)
    for message in with_anchors:
        alone = replace(message, anchors=None)
        assert nbytes(message) - nbytes(alone) == 4 * IMAGES + 8 * SET


# Whose model is scored


@every_case
def test_a_site_is_scored_with_its_own_model_if_the_method_is_personal_and_else_with_the_global_one(case):
    other = seen(case)
    method, state, record = other.watched.method, other.run.states[-1], other.run.records[-1]
    models = []
    for site in other.data.tested:
        params = state.params
        if getattr(method, "personal", False):
            kept = other.run.memory.site(site.name).trees
            params = kept["model"] if "model" in kept else {**state.params, **kept["own"]}
        models.append(params)
        module = other.net.module(params)
        with torch.no_grad():
            logits = module(site.test.take(slice(None)).x)[1][:, :K]
        assert record.scores[site.name].accuracy == (logits.argmax(1) == site.test.y).double().mean()
        assert record.scores[site.name].loss == pytest.approx(F.cross_entropy(logits, site.test.y).item(), rel=1e-5)
    assert set(record.scores) == set(tiny.NAMES)
    assert (len({str(bits(m)) for m in models}) == 1) != getattr(method, "personal", False)


def test_the_personal_methods_are_those_that_keep_a_model_or_a_part_of_one():
    personal = {name for name in registry.names() if registry.find_method(name).personal}
    assert personal == {"desa", "fedbn", "fedproto-local", "local-only"}


# Work of a round


@every_case
def test_local_steps_are_taken_exactly_whatever_the_number_of_images(case):
    """At every site; where sites train no model, at the server."""
    run, fits = lacking(case)
    trained = 1 if CASES[case].train_on == "nothing" else len(run.names)
    assert [taken for _, taken in fits] == [5] * (2 * trained)
    assert len({n for n, _ in fits}) > 1 or trained == 1


@every_case
def test_epochs_decide_where_no_steps_are_set(case):
    _, fits = alone(case)
    method = CASES[case]
    n = SIZES["bee"] if method.train_on == "real" else 6
    anchors = getattr(method, "anchors", None)
    always = getattr(method, "in_loss", False)
    images = [n + SET if always or (anchors and anchors.per_class and anchors.train_in(t)) else n for t in (0, 1)]
    if getattr(method, "memory", 1) > 1:  # the server trains on the images of both rounds
        images = [n, 2 * n]
    assert fits == [(n, 2 * math.ceil(n / 5)) for n in images]


# Weight zero is FedAvg

OFF = {
    "fedprox": {"mu": 0.0},
    "moon": {"mu": 0.0},
    "fedproto-avg": {"weight": 0.0},
    "fedmix": {"share": 0.0},
    "fedmix-naive": {"share": 0.0},
    "vhl": {"labels": "patch", "alpha": 0.0, "align": 0.0, "spread": 0.0},
}
ON = [(name, {path: 0.1}) for name, off in OFF.items() for path, value in off.items() if value == 0]


@pytest.mark.parametrize("train_on", ["real", "virtual"])
@pytest.mark.parametrize("name", OFF)
def test_a_term_of_weight_zero_is_fedavg_bit_for_bit(name, train_on):
    a = play(quick(name, train_on=train_on, **OFF[name]), uneven())
    b = seen(f"fedavg-{train_on}").run
    for mine, theirs in zip(a.states, b.states, strict=True):
        assert tiny.equal(mine.params, theirs.params)
    for mine, theirs in zip(a.records, b.records, strict=True):
        assert (mine.scores, mine.metrics) == (theirs.scores, theirs.metrics)


@pytest.mark.parametrize("name", [name for name in OFF if "anchors" in registry.find_method(name).stackable])
def test_a_term_of_weight_zero_beside_anchors_is_fedavg_with_anchors_bit_for_bit(name):
    a = play(quick(f"{name}+anchors", train_on="virtual", **OFF[name]), uneven())
    b = seen("fedavg-anchored").run
    for mine, theirs in zip(a.states, b.states, strict=True):
        assert tiny.equal(mine.params, theirs.params)
        assert torch.equal(mine.anchors.images, theirs.anchors.images)


@pytest.mark.parametrize(("name", "on"), ON)
def test_a_term_of_some_weight_is_not_fedavg(name, on):
    a = play(quick(name, train_on="real", **OFF[name] | on), uneven())
    assert not tiny.equal(a.states[-1].params, seen("fedavg-real").run.states[-1].params)


def test_fedlgd_without_its_parts_is_fedavg_bit_for_bit():
    off = {"pull.weight": 0.0, "anchors.in_loss": "never", "refine.steps": 0}
    a, b = play(quick("fedlgd", **off), uneven()), seen("fedavg-virtual").run
    for mine, theirs in zip(a.states, b.states, strict=True):
        assert tiny.equal(mine.params, theirs.params)


def _near(a: Any, b: Any) -> None:
    for key, value in a.items():
        torch.testing.assert_close(value, b[key], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("more", [{}, {"mu": 0.5}, {"local.momentum": 0.9}])
def test_fednova_with_equal_work_at_all_sites_is_fedavg_to_rounding(more):
    """On virtual sets of one size (discrepancy 8): the proximal term and momentum change nothing of it."""
    a = play(quick("fednova", train_on="virtual", **more), uneven())
    same = "fedprox" if "mu" in more else "fedavg"
    b = play(quick(same, train_on="virtual", **more), uneven())
    for mine, theirs in zip(a.states, b.states, strict=True):
        _near(mine.params, theirs.params)


def test_fednova_with_unequal_work_is_not_fedavg():
    a, b = seen("fednova-real").run.states[1].params, seen("fedavg-real").run.states[1].params
    assert max((v - b[k]).abs().max() for k, v in a.items()) > 1e-3


def test_the_first_round_of_scaffold_is_fedavgs_bit_for_bit_where_sites_weigh_alike():
    """All variates are zero then: adding 0 to a gradient changes no bit, nor does a weight of 1."""
    a, b = seen("scaffold-virtual").run, seen("fedavg-virtual").run
    assert tiny.equal(a.states[1].params, b.states[1].params)
    assert a.records[1].metrics == b.records[1].metrics
    assert not tiny.equal(a.states[-1].params, b.states[-1].params)


def test_the_first_round_of_scaffold_on_real_images_is_the_uniform_mean():
    """Sites of one size: FedAvg's weights are then equal too, up to the rounding of n / sum n."""
    data = tiny.federation(test=1)
    a, b = (play(quick(name, train_on="real"), data, RunSettings(rounds=1)) for name in ("scaffold", "fedavg"))
    _near(a.states[1].params, b.states[1].params)


@every_case
def test_all_methods_start_from_one_model_where_they_train_one_network(case):
    """A wider head or a projection draws its own weights; everything before it is the same."""
    mine, plain = seen(case).run.states[0].params, seen("fedavg-real").run.states[0].params
    theirs = {name.removeprefix("body."): value for name, value in mine.items()}
    for name, value in theirs.items():
        if name in plain and plain[name].shape == value.shape:
            assert torch.equal(value, plain[name])
    assert "blocks.0.weight" in theirs


@pytest.mark.parametrize("case", [c for c in CASES if CASES[c].train_on == "virtual" and "redraw" not in c])
def test_all_methods_train_on_the_same_virtual_sets(case):
    other, plain = seen(case), seen("fedavg-virtual")
    theirs = {name: plain.run.virtual[0][name] for name in tiny.NAMES}
    if getattr(CASES[case], "pooled", False):
        assert torch.equal(other.data.sites[0].train.x, torch.cat([theirs[s.name] for s in uneven().sites]))
    else:
        assert bits(other.run.virtual[0]) == bits(theirs)
    if type(CASES[case]).name != "fedlgd":
        assert bits(other.run.virtual[-1]) == bits(other.run.virtual[0])


# Settings


def _paths(settings: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Dotted path, type and value of every setting."""
    hints = get_type_hints(type(settings))
    for f in fields(settings):
        value = getattr(settings, f.name)
        if is_dataclass(value):
            yield from _paths(value, f"{prefix}{f.name}.")
        else:
            yield prefix + f.name, hints[f.name], value


def _other(hint: Any, value: Any) -> Any:
    if get_origin(hint) is Literal:
        return next(choice for choice in get_args(hint) if choice != value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value / 2 or 0.25
    if isinstance(value, tuple):
        return value[1:] or get_args(get_args(hint)[0])[:1]
    if value in STARTS:
        return "statistics" if value == "noise" else "noise"
    if value is None:  # local.restarts, or a choice
        return next((get_args(kind)[0] for kind in get_args(hint) if get_origin(kind) is Literal), (3,))
    return f"{value}x"


def _again(config: Config) -> Config:
    return resolve(tomllib.loads(config.toml()))


@every_case
def test_settings_survive_the_way_through_a_file(case):
    config = Config(method=CASES[case])
    assert _again(config) == config
    assert _again(config).digest == config.digest


NOT_ALONE = {
    "scaffold": {"local.momentum", "local.weight_decay"},
    "fedlgd": {"pull.loss"},
    "feddm": {"distil.private.epsilon"},
    "fedaf": {"distil.private.epsilon"},
    "collabdm": {"distil.match", "distil.start"},
    "dynafed": {"finetune.momentum"},  # Adam has none
    "fedvck": {"distil.private.epsilon"},
    "fedlap": {"distil.private.epsilon", "distil.tiles", "dp.scores"},
}
"""Settings that refuse any other value where nothing else changes, or that must name something there is."""


@every_method
def test_every_single_setting_survives_the_way_through_a_file_and_names_another_run(name):
    plain = registry.find_method(name)()
    refused = set()
    for path, hint, value in _paths(plain):
        try:
            method = tiny.settings(plain, {path: _other(hint, value)})
        except (SettingError, PrivacyError):
            refused.add(path)
            continue
        assert method != plain
        config = Config(method=method)
        assert _again(config).method == for_rounds(method, config.plan.rounds)
        assert config.digest != Config(method=plain).digest
    private = {"distil.private.scores", *(["distil.private.epsilon"] if plain.train_on == "real" else [])}
    assert refused == NOT_ALONE.get(name, set()) | private


OWN_PRESETS = {*registry.FAMILY} - {"fedlgd", "fedmix", "fedmix-naive", "vhl"}
"""Methods whose presets follow their own papers, and not the comparison in the paper of FedLGD."""


@every_method
def test_every_preset_can_be_chosen(name):
    cls = registry.find_method(name)
    assert {"paper", "quick"} <= set(cls.presets)
    for preset in cls.presets:
        method = resolve({"method": name}, preset=preset).method
        assert method == tiny.settings(cls(), cls.presets[preset])
        assert method.train_on == (cls().train_on if preset == "strong" or name in OWN_PRESETS else "virtual")


@pytest.mark.parametrize("name", [name for name in registry.names() if name not in OWN_PRESETS])
def test_the_papers_preset_is_common_to_all_methods(name):
    """Section 5: one epoch, batches of 32, plain SGD at 0.01, 10 virtual images a class after 10 000 steps."""
    method = resolve({"method": name}, preset="paper").method
    assert method.local == FedAvg().local
    assert (method.local.epochs, method.local.batch, method.local.lr) == (1, 32, 0.01)
    assert (method.local.momentum, method.local.weight_decay, method.local.steps) == (0, 0, 0)
    assert (method.distil.per_class, method.distil.steps) == (10, 10_000)


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("fedprox", "mu", -0.1),
        ("fednova", "mu", -0.1),
        ("moon", "mu", -1.0),
        ("moon", "temperature", 0.0),
        ("fedproto-avg", "weight", -1.0),
        ("fedproto-local", "weight", -1.0),
        ("scaffold", "server_lr", 0.0),
        ("fedmix", "share", 1.0),
        ("fedmix", "means", 0),
        ("fedmix-naive", "share", -0.1),
        ("vhl", "alpha", -1.0),
        ("vhl", "align", -1.0),
        ("vhl", "spread", -1.0),
        ("vhl", "temperature", 0.0),
        ("vhl", "per_class", 0),
        ("vhl", "virtual_batch", 0),
    ],
)
def test_senseless_settings_are_refused_by_name(name, path, value):
    with pytest.raises(SettingError, match=path):
        tiny.settings(registry.find_method(name)(), {path: value})


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("fedprox", "mu"),
        ("fednova", "mu"),
        ("moon", "mu"),
        ("moon", "temperature"),
        ("fedproto-avg", "weight"),
        ("fedproto-local", "weight"),
        ("scaffold", "server_lr"),
        ("vhl", "alpha"),
        ("vhl", "temperature"),
    ],
)
def test_a_setting_that_is_not_a_number_is_refused_by_name(name, path):
    with pytest.raises(SettingError, match=path):
        tiny.settings(registry.find_method(name)(), {path: math.nan})


# Words

NO_PAPER = {"local-only", "pooled"}
FORMULA = re.compile(r"\S+ (?:=|<-|\+) \S+")


@pytest.mark.parametrize("name", [name for name in registry.names() if name not in NO_PAPER])
def test_every_methods_file_cites_its_paper(name):
    assert re.search(r"\([^()]+ et al\., \D+ 20\d\d\)", sys.modules[registry.find_method(name).__module__].__doc__)


@pytest.mark.parametrize(
    "name",
    [name for name in registry.names() if name not in NO_PAPER],
)
def test_every_method_shows_its_formula(name):
    assert FORMULA.search(registry.find_method(name).__doc__)


def _helps(cls: type, prefix: str = "") -> Iterator[tuple[str, str]]:
    for f in fields(cls):
        if is_dataclass(f.default):
            yield from _helps(type(f.default), f"{prefix}{f.name}.")
        else:
            yield prefix + f.name, f.metadata.get("help", "")


@pytest.mark.parametrize("name", [*registry.names(), *(f"fedavg+{stack}" for stack in registry.stacks())])
def test_every_setting_has_one_line_of_help(name):
    helps = dict(_helps(registry.recipe(name).settings))
    assert len(helps) > 10
    assert {path: text for path, text in helps.items() if not re.fullmatch(r"[A-Z`][^\n]{5,110}\.", text)} == {}


# The battery itself: it sees what it is there to see


@dataclass(frozen=True, kw_only=True)
class Sinner(FedAvg):
    """FedAvg with one sin."""

    sin: str = ""

    def broadcast(self, state: ServerState, site: str) -> Broadcast:
        message = super().broadcast(state, site)
        return replace(message, trees={"x": {"noise": torch.randn(2)}}) if self.sin == "random" else message

    def expects(self, msg, net, hello):
        """Whatever it sends: the battery, not the server, is to see the sin."""
        sent = {
            "images": {"images": torch.empty(3, *net.shape, dtype=torch.float64)},
            "bytes": {"images": torch.empty(1, *net.shape, dtype=torch.uint8)},
            "labels": {"labels": torch.empty(max(SIZES.values()), dtype=torch.int64)},
        }
        return Expected(msg.params, {"x": sent[self.sin]} if self.sin in sent else {})

    def site(self, msg, state, site, net, rng):
        update, state = super().site(msg, state, site, net, rng)
        if self.sin == "in place":
            next(iter(msg.params.values())).add_(1e-6)
        if self.sin == "images":
            update = replace(update, trees={"x": {"images": site.train.take(slice(3)).x.double()}})
        if self.sin == "bytes":
            update = replace(update, trees={"x": {"images": site.train.x[2:3].clone()}})
        if self.sin == "labels":
            labels = F.pad(site.train.y, (0, max(SIZES.values()) - len(site.train)), value=-1)
            update = replace(update, trees={"x": {"labels": labels}})
        return update, state

    def server(self, state, updates, net, rng):
        if self.sin == "twice":
            updates = [*updates, *updates]
        if self.sin == "first only":
            updates = [next(iter(updates))]
        return super().server(state, updates, net, rng)


def _sinner(sin: str) -> Any:
    return watch(
        tiny.settings(Sinner(sin=sin), tiny.SETTINGS | {"train_on": "real"}), uneven(), replace(PLAN, rounds=1)
    )


def test_the_battery_sees_inputs_that_change():
    assert "site" in _sinner("in place").watched.changed
    assert _sinner("").watched.changed == []


def test_the_battery_sees_the_global_generator():
    watched = _sinner("random").watched
    assert "broadcast" in watched.unequal
    assert "the global generator, in broadcast" in watched.changed


@pytest.mark.parametrize("sin", ["twice", "first only"])
def test_the_battery_sees_updates_that_are_not_read_once(sin):
    assert _sinner(sin).watched.misread


@pytest.mark.parametrize("sin", ["images", "bytes", "labels"])
def test_the_battery_sees_private_data_in_messages(sin):
    assert leaks(_sinner(sin).watched.messages, uneven())
