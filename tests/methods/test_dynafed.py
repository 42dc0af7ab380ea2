"""DynaFed: FedAvg until the path of its models has become images, which then tune the average."""

from typing import Any

import pytest
import torch

from fedlgd.core.errors import RunError, SettingError
from fedlgd.core.types import Broadcast, LabelledSet, ServerState, SiteState, Stream
from fedlgd.distill.gradient import pseudo_gradient
from fedlgd.engines.settings import RoundSettings
from fedlgd.methods import common
from fedlgd.methods.dynafed import DynaFed, Synthesis, synthesise, trajectory_gap, unrolled
from tests import tiny
from tests.contract import battery
from tests.errors import refuses

STILL = [lambda x: x]


def dynafed(**values: Any) -> DynaFed:
    own = {name.replace("__", "."): value for name, value in values.items()}
    return tiny.settings(DynaFed(), tiny.SETTINGS | battery.SYNTHESIS | own)


def path_of(method: DynaFed, rounds: int) -> list[Any]:
    run = tiny.Run(method, tiny.federation(), RoundSettings(rounds=rounds))
    return [state.params for state in run.states]


@pytest.mark.parametrize("off", [{"finetune.epochs": 0}, {"synthesis.snapshots": 4}])
@pytest.mark.parametrize("train_on", ["real", "virtual"])
def test_without_tuning_or_with_a_longer_path_than_rounds_it_is_fedavg_bit_for_bit(off, train_on):
    a = battery.play(battery.quick("dynafed", train_on=train_on, **off), battery.uneven())
    b = battery.seen(f"fedavg-{train_on}").run
    for mine, theirs in zip(a.states, b.states, strict=True):
        assert tiny.equal(mine.params, theirs.params)
    for mine, theirs in zip(a.records, b.records, strict=True):
        assert (mine.scores, mine.metrics) == (theirs.scores, theirs.metrics)
        assert (mine.bytes_up, mine.bytes_down) == (theirs.bytes_up, theirs.bytes_down)


def test_the_first_rounds_are_fedavg_and_later_ones_tune_the_average_on_the_images():
    method = dynafed(synthesis__snapshots=2)
    run = tiny.Run(method, tiny.federation(), RoundSettings(rounds=4))
    plain = tiny.Run(tiny.fedavg(train_on="real"), tiny.federation(), RoundSettings(rounds=4))
    same = [tiny.equal(a.params, b.params) for a, b in zip(run.states, plain.states, strict=True)]
    assert same == [True, True, True, False, False]
    assert [sorted(state.trees) for state in run.states] == [[], ["path 0"], ["set"], ["set"], ["set"]]
    made = run.states[2].trees["set"]
    assert all(tiny.equal(state.trees["set"], made) for state in run.states[3:])
    updates = []
    for name in tiny.NAMES:
        site, rng = tiny.federation().by_name[name], Stream(0).at("site", name, 2)
        message = Broadcast(round=2, params=run.states[2].params)
        updates.append(method.site(message, SiteState(), site, tiny.net(), rng)[0])
    mean, rng = common.weighted_mean(updates), Stream(0).at("server", 2)
    data = LabelledSet(made["images"], made["labels"].softmax(1))
    after = method.server(run.states[2], updates, tiny.net(), rng)
    tuned = common.fit_on(tiny.net(), mean, data, method.finetune, rng.at("finetune"))
    assert tiny.equal(after.params, tuned.params)
    assert not tiny.equal(after.params, mean)


def test_models_of_the_path_are_those_before_each_round_and_do_not_change_later():
    method = dynafed(synthesis__snapshots=4, synthesis__ahead=1)
    run = tiny.Run(method, tiny.federation(), RoundSettings(rounds=3))
    for t in range(3):
        for later in run.states[t + 1 :]:
            assert tiny.equal(later.trees[f"path {t}"], run.states[t].params)


# The gap between SGD on images and the path


def made(seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and label logits."""
    net = tiny.net()
    generator = Stream(seed).generator("made")
    return torch.randn(6, *net.shape, generator=generator), torch.randn(6, 3, generator=generator)


def test_a_step_size_of_zero_leaves_a_gap_of_one():
    net = tiny.net()
    start, target = tiny.params(net, 0), tiny.params(net, 1)
    end = unrolled(net, start, *made(), torch.tensor(0.0), STILL * 3)
    assert float(trajectory_gap(net, start, end, target).detach()) == 1.0


def test_images_that_reproduce_the_path_have_no_gap_and_others_have():
    net, start = tiny.net(), tiny.params(tiny.net(), 0)
    target = {k: v.detach() for k, v in unrolled(net, start, *made(1), torch.tensor(0.1), STILL * 3).items()}
    gaps = []
    for seed in (1, 2):
        end = unrolled(net, start, *made(seed), torch.tensor(0.1), STILL * 3)
        gaps.append(float(trajectory_gap(net, start, end, target).detach()))
    assert gaps[0] == 0.0
    assert gaps[1] > 0.01


def test_one_step_towards_the_next_model_compares_gradients_as_fedlgd_does():
    """theta* = theta - eta G:  the gap is ||g - G||^2 / ||G||^2, FedLGD's target under another distance."""
    net, data, rate = tiny.net(), tiny.labelled(tiny.net()), 0.1
    start = tiny.params(net, 0)
    names = sorted(net.trainable)

    def gradient(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        w = start | {name: start[name].clone().requires_grad_() for name in names}
        loss = torch.nn.functional.cross_entropy(net(w, x).logits, y)
        return list(torch.autograd.grad(loss, [w[name] for name in names], materialize_grads=True))

    step = dict(zip(names, gradient(data.x, data.y), strict=True))
    target = start | {name: start[name] - rate * step[name] for name in names}
    sought = pseudo_gradient(start, target, rate)
    images, labels = made()
    mine = gradient(images, labels.softmax(1))
    wanted = sum((g - sought[n]).square().sum() for g, n in zip(mine, names, strict=True)) / sum(
        sought[n].square().sum() for n in names
    )
    end = unrolled(net, start, images, labels, torch.tensor(rate), STILL)
    assert float(trajectory_gap(net, start, end, target).detach()) == pytest.approx(float(wanted), rel=1e-3)


def test_a_path_that_stands_still_is_refused():
    net = tiny.net()
    theta = tiny.params(net)
    with refuses("path-stands-still", RunError):
        synthesise([theta] * 3, net, dynafed(synthesis__snapshots=3).synthesis, Stream(0))


def test_the_gap_decreases_over_the_steps():
    method = dynafed(synthesis__snapshots=4, local__lr=0.1)
    net, path = tiny.net(), path_of(method, 3)
    gaps = []
    for steps in (0, 50):
        how = tiny.settings(method.synthesis, {"steps": steps, "augment": (), "unroll": 3, "rate": 0.3})
        found = synthesise(path, net, how, Stream(3))
        total = 0.0
        for s in range(2):
            end = unrolled(net, path[s], found["images"], found["labels"], found["rate"], STILL * 3)
            total += float(trajectory_gap(net, path[s], end, path[s + 1]).detach())
        gaps.append(total)
    assert gaps[1] < 0.8 * gaps[0]


def test_images_labels_and_step_size_are_learned_and_the_step_size_stays_positive():
    method = dynafed(synthesis__snapshots=4)
    how = tiny.settings(method.synthesis, {"steps": 3, "rate": 0.001, "rate_lr": 0.5})
    before = synthesise(path_of(method, 3), tiny.net(), tiny.settings(how, {"steps": 0}), Stream(3))
    after = synthesise(path_of(method, 3), tiny.net(), how, Stream(3))
    assert not bool(before["labels"].any())
    assert before["images"].shape == (6, 3, 8, 8)
    assert all(not torch.equal(before[name], after[name]) for name in ("images", "labels"))
    assert float(after["rate"]) > 0
    assert not any(each.requires_grad for each in after.values())


def test_a_target_is_at_most_so_many_rounds_ahead_and_a_start_not_later_than_said(monkeypatch):
    """Models of which each number is its round: the starts and means that are compared."""
    net = tiny.net()
    path = [{k: torch.full_like(v, float(t)) for k, v in tiny.params(net).items()} for t in range(9)]
    seen = []

    def gap(net, start, end, target):
        seen.append((float(start["head.bias"][0]), float(target["head.bias"][0])))
        return trajectory_gap(net, start, end, target)

    monkeypatch.setattr("fedlgd.methods.dynafed.trajectory_gap", gap)
    how = Synthesis(snapshots=9, ahead=3, latest=4, steps=60, unroll=1, per_class=1)
    synthesise(path, net, how, Stream(1))
    assert {start for start, _ in seen} == {0.0, 1.0, 2.0, 3.0, 4.0}
    assert all(start + 1 <= target <= start + 3 for start, target in seen)
    means = {round(target - start, 3) for start, target in seen}
    assert means <= {1.0, 1.333, 1.5, 1.667, 2.0, 2.333, 2.5, 2.667, 3.0}
    assert {1.5, 1.333} & means


@pytest.mark.parametrize("values", [{"snapshots": 3, "ahead": 3}, {"snapshots": 2, "ahead": 5}])
def test_a_path_without_a_target_is_refused(values):
    with refuses("path-too-short", SettingError, **values):
        Synthesis(**values)


def test_an_unknown_augmentation_is_refused():
    with refuses("augmentation-unknown", SettingError, name="melt"):
        Synthesis(augment=("melt",))


def test_a_schedule_of_tuning_is_that_of_the_rounds():
    method = dynafed(finetune__schedule="cosine")
    assert method.at(0, 10).finetune.lr == pytest.approx(method.finetune.lr)
    assert method.at(9, 10).finetune.lr < 0.1 * method.finetune.lr
    assert dynafed().at(3, 10) == dynafed()


def test_the_server_needs_nothing_but_the_models_of_fedavg():
    method = dynafed()
    assert dict(method.sends) == dict(tiny.fedavg().sends)
    assert method.expects(Broadcast(round=0, params={}), tiny.net(), None).trees == {}
    state = ServerState(params=tiny.params(tiny.net()))
    assert tiny.equal(method.broadcast(state, "ape").params, state.params)
    assert method.broadcast(state, "ape").trees == {}
