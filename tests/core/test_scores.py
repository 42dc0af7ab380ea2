"""Scoring by hand, in eval mode, on whatever batch size."""

import math

import msgspec
import pytest
import torch

from fedlgd.core.meter import metered
from fedlgd.core.net import Net
from fedlgd.core.score import Score
from fedlgd.core.train import area, score
from fedlgd.core.types import LabelledSet
from fedlgd.nets.registry import build_net
from fedlgd.rundir.records import RoundRecord
from tests import tiny
from tests.nets import own

SHAPE = (1, 1, 3)
IDENTITY = {"head.weight": torch.eye(3), "head.bias": torch.zeros(3)}


def _linear() -> Net:
    return build_net("tests.nets.own:Linear", SHAPE, 3)


def _data() -> LabelledSet:
    """Logits are the pixels: predictions 0, 0, 2, 1 against labels 0, 1, 2, 2."""
    x = torch.tensor([[2.0, 0, 0], [1.0, 0, 0], [0, 0, 3.0], [0, 1.0, 0]])
    return LabelledSet(x.view(4, *SHAPE), torch.tensor([0, 1, 2, 2]))


def test_accuracy_loss_and_counts_by_hand():
    got = score(_linear(), IDENTITY, _data(), 3)
    losses = [
        math.log(math.exp(2) + 2) - 2,
        math.log(math.e + 2),
        math.log(math.exp(3) + 2) - 3,
        math.log(math.e + 2),
    ]
    assert got.accuracy == 0.5
    assert got.loss == pytest.approx(sum(losses) / 4, rel=1e-6)
    assert got.correct == (1, 0, 1)
    assert got.total == (1, 1, 2)


def test_classes_without_a_test_image_count_zero():
    data = _data()
    got = score(_linear(), IDENTITY, LabelledSet(data.x[:1], data.y[:1]), 3)
    assert got.accuracy == 1.0
    assert got.correct == got.total == (1, 0, 0)


@pytest.mark.parametrize("batch", [1, 3, 7, 1000])
def test_batch_size_changes_nothing(batch):
    net = tiny.net()
    data, params = tiny.labelled(net, per_class=5), tiny.params(net)
    whole, parts = score(net, params, data, 3), score(net, params, data, 3, batch)
    assert parts.correct == whole.correct
    assert parts.loss == pytest.approx(whole.loss, rel=1e-5)


def test_only_the_classes_of_the_task_compete():
    net = Net(lambda _: own.Extra(SHAPE, 3), SHAPE, 3, "extra")
    params = {
        "head.weight": torch.cat([torch.eye(3), torch.zeros(1, 3)]),
        "head.bias": torch.tensor([0, 0, 0, 1e3]),
    }
    assert score(net, params, _data(), 3) == score(_linear(), IDENTITY, _data(), 3)


def test_bytes_are_scaled_to_network_input():
    scale = _data().scale
    pixels = torch.tensor([[255, 0, 0]], dtype=torch.uint8).view(1, *SHAPE)
    data = LabelledSet(pixels.expand(1, 1, 1, 3), torch.tensor([0]), type(scale)((0.5,), (0.5,)))
    got = score(_linear(), IDENTITY, data, 3)
    assert got.loss == pytest.approx(math.log(math.e + 2 * math.exp(-1)) - 1, rel=1e-5)


def test_scoring_is_in_eval_mode_even_while_training():
    net, plain = (build_net(f"tests.nets.own:{name}", (3, 4, 4), 3) for name in ("Dropping", "Linear"))
    data, params = tiny.labelled(net), tiny.params(plain)
    with net.training():
        assert score(net, params, data, 3) == score(plain, params, data, 3)


def test_norm_statistics_stay():
    net = build_net("tests.nets.own:Normed", (3, 4, 4), 3)
    params = tiny.params(net)
    before = {k: v.clone() for k, v in params.items()}
    with net.training():
        score(net, params, tiny.labelled(net), 3)
    assert tiny.equal(params, before)


def test_one_forward_pass_per_image_is_charged_to_evaluation():
    net = tiny.net()
    data, params = tiny.labelled(net, per_class=5), tiny.params(net)
    with metered() as meter:
        score(net, params, data, 3, batch=4)
    assert dict(meter.flops) == {"evaluate": 15 * tiny.forward_flops()}


PAIR = (1, 1, 2)
PAIR_PARAMS = {"head.weight": torch.eye(2), "head.bias": torch.zeros(2)}


def _pair(*rows: tuple[float, float, int]) -> Score:
    """Rows of two logits and a label."""
    x = torch.tensor([row[:2] for row in rows]).view(-1, *PAIR)
    data = LabelledSet(x, torch.tensor([row[2] for row in rows]))
    return score(build_net("tests.nets.own:Linear", PAIR, 2), PAIR_PARAMS, data, 2, batch=2)


def test_the_area_under_the_curve_by_hand():
    """Margins -1 and 1 of the first class, 0, 1 and 3 of the second: 1 + 0, 1 + half, 1 + 1 of 6 pairs."""
    got = _pair((1.0, 0.0, 0), (0.0, 1.0, 0), (0.0, 0.0, 1), (1.0, 2.0, 1), (0.0, 3.0, 1))
    assert got.auc == pytest.approx(4.5 / 6)


def test_a_shift_of_both_logits_changes_nothing():
    rows = [(0.5, 0.25, 0), (0.25, 0.5, 1), (0.75, 0.25, 1)]
    moved = [(a + 8.0, b + 8.0, y) for a, b, y in rows]
    assert _pair(*moved).auc == _pair(*rows).auc == 0.5


def test_there_is_no_area_without_both_classes_or_with_more_than_two():
    assert _pair((0.0, 1.0, 1), (1.0, 0.0, 1)).auc is None
    assert score(_linear(), IDENTITY, _data(), 3).auc is None


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_model_that_diverged_has_no_area(bad):
    assert area(torch.tensor([0.0, bad]), torch.tensor([False, True])) is None


def test_many_ties_cost_no_precision():
    scores = torch.arange(200_000) // 50_000
    positive = torch.arange(200_000) % 2 == 1
    assert area(scores.double(), positive) == 0.5


def test_balanced_accuracy_is_the_mean_over_the_classes_that_are_there():
    got = Score(accuracy=0.9, loss=0.1, correct=(90, 0, 0), total=(90, 10, 0))
    assert got.balanced == 0.5


def test_records_written_before_there_was_an_area_are_read():
    old = b'{"round":3,"scores":{"a":{"accuracy":0.5,"loss":1.0,"correct":[1],"total":[2]}}}'
    assert msgspec.json.decode(old, type=RoundRecord).scores["a"].auc is None
    new = RoundRecord(round=0, scores={"a": Score(0.5, 1.0, (1, 0), (1, 1), 0.75)})
    assert msgspec.json.decode(msgspec.json.encode(new), type=RoundRecord) == new
