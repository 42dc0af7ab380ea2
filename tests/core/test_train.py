"""Local SGD: what it computes, and what it leaves alone."""

import math

import pytest
import torch
from torch import Tensor

from fedlgd.core.errors import SettingError
from fedlgd.core.net import Net
from fedlgd.core.train import Local, Objective, batches, sgd
from fedlgd.core.tree import clone
from fedlgd.core.types import LabelledSet, Params, Stream
from fedlgd.nets.registry import build_net
from tests import tiny
from tests.errors import refuses
from tests.vectors import vector


def _objective(net: Net, data: LabelledSet) -> Objective:
    def objective(w: Params, index: Tensor) -> Tensor:
        return tiny.cross_entropy(net, w, data.take(index))

    return objective


def _own(name: str) -> Net:
    return build_net(f"tests.nets.own:{name}", (3, 4, 4), 3)


def _train(net: Net, start: Params, how: Local, rng: Stream = Stream(5)) -> Params:
    data = tiny.labelled(net, per_class=3)
    return sgd(net, start, len(data), _objective(net, data), how, rng).params


@pytest.mark.parametrize("name", ["ipc50", "ipc10", "retina"])
def test_batches_per_epoch_of_the_paper(name):
    v = vector("schedule")["batches_per_epoch"]
    local, anchors = {"ipc50": (500, 100), "ipc10": (100, 100), "retina": (20, 20)}[name]
    for n, key in ((local, "local_only"), (local + anchors, "plus_global")):
        assert len(list(batches(n, Local(), Stream(0).generator()))) == v[f"{name}_{key}"]


def test_every_epoch_sees_every_image_once_in_a_new_order_and_keeps_the_rest():
    got = list(batches(10, Local(epochs=3, batch=4), Stream(0).generator()))
    assert [len(b) for b in got] == [4, 4, 2] * 3
    epochs = [torch.cat(got[i : i + 3]).tolist() for i in (0, 3, 6)]
    assert all(sorted(e) == list(range(10)) for e in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert epochs[0] != list(range(10))


@pytest.mark.parametrize(
    ("steps", "sizes"), [(1, [4]), (2, [4, 4]), (3, [4, 4, 2]), (5, [4, 4, 2, 4, 4]), (7, [4, 4, 2] * 2 + [4])]
)
def test_a_number_of_steps_replaces_the_epochs_exactly(steps, sizes):
    got = list(batches(10, Local(epochs=9, steps=steps, batch=4), Stream(0).generator()))
    assert [len(b) for b in got] == sizes
    by_epoch = list(batches(10, Local(epochs=9, batch=4), Stream(0).generator()))
    assert all(torch.equal(a, b) for a, b in zip(got, by_epoch, strict=False))


def test_steps_and_mean_loss_are_reported():
    net = tiny.net()
    data, seen = tiny.labelled(net, per_class=3), []

    def objective(w: Params, index: Tensor) -> Tensor:
        loss = tiny.cross_entropy(net, w, data.take(index))
        seen.append(loss.item())
        return loss

    got = sgd(net, tiny.params(net), 9, objective, Local(epochs=2, batch=4), Stream(0))
    assert got.steps == len(seen) == 6
    assert got.loss == pytest.approx(sum(seen) / 6, rel=1e-12)


def test_shuffling_belongs_to_the_stream():
    net = tiny.net()
    start, how = tiny.params(net), Local(batch=2, lr=0.1)
    a, b, c = (_train(net, start, how, Stream(seed)) for seed in (1, 1, 2))
    assert tiny.equal(a, b)
    assert not tiny.equal(a, c)


def test_the_start_is_untouched_and_the_result_stands_alone():
    net = tiny.net()
    start = tiny.params(net)
    before = clone(start)
    got = _train(net, start, Local(batch=4, momentum=0.9, weight_decay=0.1))
    assert tiny.equal(start, before)
    assert not any(v.requires_grad for v in start.values())
    assert not any(v.requires_grad for v in got.values())
    storage = {v.untyped_storage().data_ptr() for v in start.values()}
    assert all(v.untyped_storage().data_ptr() not in storage for v in got.values())
    assert all(not torch.equal(got[k], v) for k, v in start.items())


def test_one_plain_step_moves_against_the_gradient():
    net = tiny.net()
    data, start = tiny.labelled(net), tiny.params(net)
    leaves = {k: v.clone().requires_grad_() for k, v in start.items()}
    gradient = torch.autograd.grad(
        tiny.cross_entropy(net, leaves, data), list(leaves.values()), materialize_grads=True
    )
    got = sgd(net, start, len(data), _objective(net, data), Local(batch=100, lr=0.5), Stream(0)).params
    for (name, value), g in zip(start.items(), gradient, strict=True):
        torch.testing.assert_close(got[name], value - 0.5 * g)


def test_norm_statistics_are_learned_in_the_copy_only():
    net = _own("Normed")
    start = tiny.params(net)
    got = _train(net, start, Local(batch=4))
    assert start["norm.num_batches_tracked"].item() == 0
    assert got["norm.num_batches_tracked"].item() == 3
    assert torch.equal(start["norm.running_mean"], torch.zeros(3))
    assert not torch.equal(got["norm.running_mean"], start["norm.running_mean"])


def test_dropout_drops_in_training_and_belongs_to_the_stream():
    net, plain = _own("Dropping"), _own("Linear")
    start, how = tiny.params(plain), Local(batch=4, lr=0.1)
    a, b = _train(net, start, how), _train(net, start, how)
    assert tiny.equal(a, b)
    assert not tiny.equal(a, _train(plain, start, how))
    assert not tiny.equal(a, _train(net, start, how, Stream(6)))


def test_dropout_does_not_depend_on_the_global_generator():
    net = _own("Dropping")
    start, results = tiny.params(net), []
    for seed in (1, 2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            results.append(_train(net, start, Local(batch=4, lr=0.1)))
    assert tiny.equal(*results)


def test_training_leaves_the_global_generator_and_the_mode_of_the_net_alone():
    net = _own("Dropping")
    start = tiny.params(net)
    x = torch.ones(2, 3, 4, 4)
    before, state = net(start, x).logits, torch.random.get_rng_state()
    _train(net, start, Local(batch=4))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(net(start, x).logits, before)


def test_a_matrix_no_score_depends_on_stays_where_it_is():
    net = _own("Idle")
    start = tiny.params(net)
    got = _train(net, start, Local(batch=4))
    assert torch.equal(got["idle.weight"], start["idle.weight"])
    assert not torch.equal(got["head.weight"], start["head.weight"])


def test_parameters_a_net_froze_are_not_trained():
    net = _own("HalfFrozen")
    start = tiny.params(net)
    got = _train(net, start, Local(batch=4))
    assert torch.equal(got["head.bias"], start["head.bias"])


def test_divergence_is_an_error_that_names_the_learning_rate():
    net = _own("Linear")
    start = {k: v * math.inf for k, v in tiny.params(net).items()}
    with refuses("training-diverged", SettingError, lr=0.25):
        _train(net, start, Local(batch=4, lr=0.25))


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"epochs": 0}, "epochs"),
        ({"batch": 0}, "batch"),
        ({"lr": 0.0}, "lr"),
        ({"lr": -1.0}, "lr"),
        ({"lr": math.nan}, "lr"),
        ({"steps": -1}, "steps"),
        ({"momentum": 1.0}, "momentum"),
        ({"momentum": -0.1}, "momentum"),
        ({"weight_decay": -0.1}, "weight_decay"),
    ],
)
def test_senseless_settings_are_refused_by_name(values, name):
    with pytest.raises(SettingError, match=rf"local\.{name}"):
        Local(**values)


def test_defaults_are_the_papers():
    assert Local() == Local(epochs=1, steps=0, batch=32, lr=0.01, momentum=0.0, weight_decay=0.0)


@pytest.mark.parametrize("optimiser", ["adam", "adamw"])
def test_adam_takes_the_steps_of_kingma_and_ba_by_hand(optimiser):
    net = tiny.net()
    start, data = tiny.double(tiny.params(net)), tiny.labelled(net, per_class=3, dtype=torch.float64)
    how, gradients = Local(steps=3, batch=9, lr=0.02, weight_decay=0.1, optimiser=optimiser), []

    def objective(w: Params, index: Tensor) -> Tensor:
        loss = tiny.cross_entropy(net, w, data.take(index))
        gradients.append(
            dict(
                zip(
                    w,
                    torch.autograd.grad(loss, list(w.values()), retain_graph=True, materialize_grads=True),
                    strict=True,
                )
            )
        )
        return loss

    found = sgd(net, start, len(data), objective, how, Stream(5)).params
    w, m, v = clone(start), dict.fromkeys(start, 0.0), dict.fromkeys(start, 0.0)
    for i, gradient in enumerate(gradients, 1):
        for name, g in gradient.items():
            if optimiser == "adam":
                g = g + how.weight_decay * w[name]
            else:
                w[name] = w[name] * (1 - how.lr * how.weight_decay)
            m[name], v[name] = 0.9 * m[name] + 0.1 * g, 0.999 * v[name] + 0.001 * g.square()
            step = (m[name] / (1 - 0.9**i)) / ((v[name] / (1 - 0.999**i)).sqrt() + 1e-8)
            w[name] = w[name] - how.lr * step
    for name, value in w.items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-12)


def test_sgd_by_name_is_the_default_bit_for_bit_and_leaves_the_configuration_as_it_was():
    net = tiny.net()
    start = tiny.params(net)
    assert tiny.equal(_train(net, start, Local(optimiser="sgd")), _train(net, start, Local()))
    assert Local().optimiser is None


def test_adam_with_momentum_of_sgd_is_refused():
    with refuses("momentum-with-adam", SettingError, optimiser="adam", momentum=0.9):
        Local(optimiser="adam", momentum=0.9)
