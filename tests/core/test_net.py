"""An architecture without weights: what it costs, how it starts, what it leaves alone."""

import math
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from fedlgd.core.errors import NetError
from fedlgd.core.meter import metered, phase
from fedlgd.core.net import ACTIVATION, Flops, Net
from fedlgd.core.types import LabelledSet, Params, Stream
from fedlgd.nets.registry import build_net
from tests import tiny
from tests.errors import refuses


def _passes(net: Net, params: Params, x: Tensor, frozen: bool = False) -> float:
    with metered() as meter, phase("p"):
        (net.frozen if frozen else net)(params, x)
    return meter.flops["p"] / (len(x) * tiny.forward_flops())


def test_forward_flops_are_two_per_multiply_add():
    assert tiny.net().flops == tiny.forward_flops()


@pytest.mark.parametrize(
    "layer",
    [
        nn.ConvTranspose2d(3, 5, 3),
        nn.Conv2d(3, 6, 3, groups=3, stride=2, dilation=2),
        nn.Sequential(nn.Flatten(1, 2), nn.GRU(8, 4, batch_first=True)),
        nn.Sequential(nn.Flatten(1, 2), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)),
        lambda x: F.scaled_dot_product_attention(x, x, x) @ x.mT,
        lambda x: torch.einsum("nchw,ncwk->nchk", x, x),
    ],
)
def test_flops_are_those_that_torch_counts(layer):
    x = torch.zeros(1, 3, 8, 8)
    with Flops() as ours, torch.no_grad():
        layer(x)
    with FlopCounterMode(display=False) as theirs, torch.no_grad():
        layer(x)
    assert ours.total == theirs.get_total_flops() > 0


def test_a_network_is_built_without_the_compiler_of_torch():
    build = "from fedlgd.nets.registry import build_net; build_net('convnet', (3, 8, 8), 2, {'depth': 1}).flops"
    check = f"import sys; {build}; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_size_counts_weights_by_hand():
    assert tiny.net().size == tiny.param_count()


def test_a_pass_costs_one_two_or_three_forwards():
    net = tiny.net()
    params, x = tiny.params(net), torch.randn(5, *net.shape)
    leaves = {k: v.clone().requires_grad_() for k, v in params.items()}
    assert _passes(net, params, x) == 1
    assert _passes(net, params, x.clone().requires_grad_()) == 2
    assert _passes(net, leaves, x) == 3
    assert _passes(net, leaves, x, frozen=True) == 1


def test_params_decide_the_output_and_not_the_scratch_module():
    net = tiny.net()
    x = torch.randn(3, *net.shape)
    a, b = tiny.params(net, 1), tiny.params(net, 2)
    first = net(a, x).logits
    assert not torch.equal(first, net(b, x).logits)
    assert torch.equal(first, net(a, x).logits)


def test_frozen_passes_carry_no_gradient():
    net = tiny.net()
    leaves = {k: v.requires_grad_() for k, v in tiny.params(net).items()}
    out = net.frozen(leaves, torch.randn(2, *net.shape).requires_grad_())
    assert not out.features.requires_grad
    assert not out.logits.requires_grad


def test_logits_are_the_head_on_the_features():
    net = tiny.net()
    params, x = tiny.params(net), torch.randn(3, *net.shape)
    out = net(params, x)
    torch.testing.assert_close(out.logits, out.features @ params["head.weight"].T + params["head.bias"])
    assert out.features.shape == (3, tiny.WIDTH * (tiny.SIDE // 4) ** 2)


def test_initial_weights_belong_to_the_stream():
    net = tiny.net()
    assert tiny.equal(net.init(Stream(1).at("a")), net.init(Stream(1).at("a")))
    assert not tiny.equal(net.init(Stream(1).at("a")), net.init(Stream(1).at("b")))


def test_initial_weights_follow_the_frameworks_defaults():
    """Convolutions and linear layers U(-1/sqrt(fan_in), 1/sqrt(fan_in)); norms scale 1, shift 0."""
    net = build_net("convnet", (3, 16, 16), 10, {"width": 64, "depth": 2})
    params = net.init(Stream(0))
    for name, fan_in in (("blocks.0", 27), ("blocks.4", 9 * 64), ("head", 64 * 16)):
        bound = 1 / math.sqrt(fan_in)
        for part in ("weight", "bias"):
            value = params[f"{name}.{part}"]
            assert value.abs().max() <= bound
            assert value.abs().max() > 0.8 * bound
            assert value.mean().abs() < 0.3 * bound
    for name in ("blocks.1", "blocks.5"):
        assert torch.equal(params[f"{name}.weight"], torch.ones(64))
        assert torch.equal(params[f"{name}.bias"], torch.zeros(64))


def test_building_and_initialising_leave_the_global_generator_alone():
    before = torch.random.get_rng_state()
    net = tiny.net()
    net.init(Stream(3))
    net.module(net.init(Stream(4)))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_train_mode_lasts_as_long_as_its_context():
    net = build_net("tests.nets.own:Normed", (3, 4, 4), 3)
    params, x = net.init(Stream(0)), 5 + torch.randn(4, 3, 4, 4)

    def tracked() -> int:
        return int(params["norm.num_batches_tracked"])

    net(params, x)
    assert tracked() == 0
    with net.training():
        net(params, x)
        assert tracked() == 1
        net.frozen(params, x)
        assert tracked() == 1
        net(params, x)
        assert tracked() == 2
    net(params, x)
    assert tracked() == 2


class Mixed(nn.Module):
    """One layer of each kind that a mode changes."""

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        self.norm, self.alone = nn.BatchNorm2d(3), nn.InstanceNorm2d(3, track_running_stats=True)
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(48, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.drop(self.alone(self.norm(x))).flatten(1)
        return features, self.head(features)


def test_a_pass_by_batch_statistics_changes_no_buffer_and_drops_nothing():
    net = build_net("tests.core.test_net:Mixed", (3, 4, 4), 3)
    params, x = net.init(Stream(0)), 5 + 3 * torch.randn(4, 3, 4, 4)
    before = {k: v.clone() for k, v in params.items()}
    out = net.by_batch(params, x).features.view_as(x)
    torch.testing.assert_close(out.mean((2, 3)), torch.zeros(4, 3), rtol=0, atol=1e-5)
    torch.testing.assert_close(out.var((2, 3), correction=0), torch.ones(4, 3), rtol=0, atol=1e-2)
    assert tiny.equal(params, before)
    with net.training():
        assert torch.equal(net.by_batch(params, x).features.view_as(x), out)
        net(params, x)
    assert params["norm.num_batches_tracked"] == 1
    assert not torch.equal(params["alone.running_mean"], before["alone.running_mean"])


def test_a_pass_by_batch_statistics_is_an_ordinary_one_without_norms_of_batches():
    net = tiny.net()
    params, x = tiny.params(net), torch.randn(5, *net.shape)
    assert torch.equal(net.by_batch(params, x).features, net(params, x).features)


def test_norms_that_a_module_keeps_in_eval_mode_stay_there():
    class Kept(Mixed):
        def train(self, mode: bool = True) -> "Kept":
            super().train(mode)
            self.norm.eval()
            self.alone.eval()
            return self

    net = Net(lambda outputs: Kept((3, 4, 4), outputs), (3, 4, 4), 3, "kept")
    params, x = net.init(Stream(0)), 5 + 3 * torch.randn(4, 3, 4, 4)
    assert torch.equal(net.by_batch(params, x).features, net.frozen(params, x).features)


def test_a_net_says_whether_an_image_depends_on_the_others_of_its_batch():
    nets = {norm: tiny.net(norm=norm).per_image for norm in ("instance", "group", "batch", "none")}
    assert nets == {"instance": True, "group": True, "batch": False, "none": True}
    assert build_net("tests.nets.own:Linear", (3, 4, 4), 3).per_image
    assert not build_net("tests.nets.own:Normed", (3, 4, 4), 3).per_image


def test_a_batch_of_one_value_per_channel_is_an_error_with_a_way_out():
    flat = build_net("tests.nets.own:Normed", (3, 1, 1), 3)
    for run in (flat.by_batch, _in_training(flat)):
        with refuses("batch-without-variance", NetError, images=1):
            run(flat.init(Stream(0)), torch.randn(1, 3, 1, 1))


def _in_training(net: Net):
    def run(params: Params, x: Tensor):
        with net.training():
            return net(params, x)

    return run


def test_mode_comes_back_when_training_fails():
    net = build_net("tests.nets.own:Normed", (3, 4, 4), 3)
    params = net.init(Stream(0))

    def fail() -> None:
        with net.training():
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    net(params, torch.randn(4, 3, 4, 4))
    assert params["norm.num_batches_tracked"] == 0


def test_a_module_of_its_own_has_the_weights_and_shares_none():
    net = tiny.net()
    params, x = tiny.params(net), torch.randn(3, *net.shape)
    module = net.module(params)
    assert not module.training
    torch.testing.assert_close(module(x).logits, net(params, x).logits, rtol=0, atol=0)
    before = {k: v.clone() for k, v in params.items()}
    with torch.no_grad():
        for p in module.parameters():
            p.zero_()
    assert tiny.equal(params, before)
    assert not torch.equal(net(params, x).logits, torch.zeros(3, 3))


def test_a_widened_net_has_more_scores_and_knows_where_it_came_from():
    net = tiny.net()
    wide = net.widened(6)
    x = torch.randn(2, *net.shape)
    out = wide(wide.init(Stream(0)), x)
    assert out.logits.shape == (2, 6)
    assert out.features.shape == net(net.init(Stream(0)), x).features.shape
    assert wide.classes == net.classes == 3
    assert wide.base is net.base is net
    assert wide.label != net.label
    assert wide.size - net.size == 3 * (tiny.WIDTH * 4 + 1)


def test_a_wrapped_net_runs_inside_another_also_when_widened():
    class Doubled(nn.Module):
        def __init__(self, inner: nn.Module, outputs: int) -> None:
            super().__init__()
            self.inner, self.outputs = inner, outputs

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            features, logits = self.inner(x)
            assert logits.shape[1] == self.outputs
            return features, 2 * logits

    net = tiny.net()
    params, x = tiny.params(net), torch.randn(2, *net.shape)
    twice = net.wrapped(Doubled, "doubled")
    inner = {f"inner.{k}": v for k, v in params.items()}
    assert torch.equal(twice(inner, x).logits, 2 * net(params, x).logits)
    assert twice.base is net
    wide = twice.widened(5)
    assert wide(wide.init(Stream(0)), x).logits.shape == (2, 5)
    assert wide.base is net


def test_parts_of_norm_layers_and_all_buffers_are_a_sites_own():
    assert tiny.net().own == {f"blocks.{i}.{part}" for i in (1, 5) for part in ("weight", "bias")}
    normed = build_net("tests.nets.own:Normed", (3, 4, 4), 3)
    assert normed.own == {
        f"norm.{part}" for part in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    }


def test_size_counts_trainable_parameters_only():
    assert build_net("tests.nets.own:HalfFrozen", (3, 4, 4), 3).size == 3 * 4 * 4 * 3


def test_buffers_are_part_of_the_params_but_not_trainable():
    net = build_net("tests.nets.own:Normed", (3, 4, 4), 3)
    assert net.trainable == {"head.weight", "head.bias", "norm.weight", "norm.bias"}
    assert set(net.init(Stream(0))) - net.trainable == {
        "norm.running_mean",
        "norm.running_var",
        "norm.num_batches_tracked",
    }


# Passes in chunks


def _doubles(net: Net, seed: int = 0) -> dict[str, Tensor]:
    return {k: v.double().requires_grad_() for k, v in net.init(Stream(seed)).items()}


def test_a_pass_in_chunks_is_the_same_pass(monkeypatch):
    net = tiny.net()
    x = torch.randn(7, *net.shape, dtype=torch.float64, generator=Stream(0).generator("x")).requires_grad_()
    params = _doubles(net)

    def values(chunk: int) -> list[Tensor]:
        monkeypatch.setitem(net.__dict__, "chunk", chunk)
        out = net(params, x)
        loss = out.logits.square().sum() + out.features.sin().sum()
        return [*out, *torch.autograd.grad(loss, [x, *params.values()], materialize_grads=True)]

    for chunk in (1, 2, 3, 6):
        for got, wanted in zip(values(chunk), values(100), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


def test_chunks_are_equal_and_small_enough(monkeypatch):
    net = tiny.net()
    sizes: list[int] = []
    net._module.register_forward_pre_hook(lambda _, given: sizes.append(len(given[0])))
    monkeypatch.setitem(net.__dict__, "chunk", 4)
    net.frozen(tiny.params(net), torch.zeros(10, *net.shape))
    assert sorted(sizes) == [3, 3, 4]


def test_the_largest_activation_decides_how_many_images_pass_at_once():
    width, side = 128, 28
    net = build_net("convnet", (3, side, side), 10, {"width": width})
    assert net.chunk == ACTIVATION // (4 * width * side * side) == 20
    assert build_net("convnet", (3, 512, 512), 10, {"width": 64}).chunk == 1


@pytest.mark.parametrize("name", ["tests.nets.own:Normed", "convnet"])
def test_a_net_whose_images_depend_on_each_other_sees_whole_batches(name, monkeypatch):
    net = build_net(name, (3, 8, 8), 3, {"norm": "batch"} if name == "convnet" else {})
    sizes: list[int] = []
    net._module.register_forward_pre_hook(lambda _, given: sizes.append(len(given[0])))
    monkeypatch.setitem(net.__dict__, "chunk", 1)
    net.frozen(net.init(Stream(0)), torch.zeros(5, 3, 8, 8))
    assert sizes == [5]


def test_features_are_counted_and_a_narrow_net_has_fewer():
    net = tiny.net(width=8)
    assert net.features == net(tiny.params(net), torch.zeros(1, *net.shape)).features.shape[1]
    assert net.narrow is not None
    assert net.narrow(2).features == net.features // 4
    assert build_net("tests.nets.own:Linear", (3, 8, 8), 3).narrow is None


@pytest.mark.parametrize("index", [slice(1, 4), torch.tensor([2, 0])])
def test_input_of_a_network_is_channel_by_channel_however_pixels_are_stored(index):
    """Norms of interleaved channels are slow on a CPU."""
    pixels = torch.arange(5 * 4 * 4 * 3, dtype=torch.uint8).view(5, 4, 4, 3).permute(0, 3, 1, 2)
    interleaved, plain = (LabelledSet(x, torch.arange(5)) for x in (pixels, pixels.contiguous()))
    assert interleaved.take(index).x.is_contiguous()
    assert torch.equal(interleaved.take(index).x, plain.take(index).x)
