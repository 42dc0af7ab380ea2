"""The paper's networks to the last parameter, and the door for a user's own."""

import re
from functools import cache

import pytest
import torch
from torch import nn

from fedlgd.core.errors import FedlgdError, NetError
from fedlgd.core.net import Net
from fedlgd.core.types import Stream
from fedlgd.nets.registry import build_net, settings_of
from tests.errors import refuses

OWN = "tests.nets.own:"
net_of = cache(build_net)


def _feature_size(net: Net, device: str = "cpu") -> int:
    """Also runs the net on three images, so that the head is seen to fit; on "meta" without arithmetic."""
    params = {name: value.to(device) for name, value in net.init(Stream(0)).items()}
    out = net.frozen(params, torch.ones(3, *net.shape, device=device))
    assert out.logits.shape == (3, net.classes)
    assert device == "meta" or torch.isfinite(out.logits).all()
    return out.features.shape[1]


def _has_macs(net: Net, printed: float) -> None:
    """Forward multiply-adds of one image, to the four digits of the specification."""
    assert f"{net.flops / 2:.3e}" == f"{printed:.3e}"


@pytest.mark.parametrize(
    ("side", "classes", "params", "macs", "features"),
    [
        (28, 10, 311_050, 38.85e6, 1_152),
        (32, 10, 320_010, 50.75e6, 2_048),
        (96, 2, 336_386, 456.6e6, 18_432),
    ],
)
def test_convnet_is_the_papers(side, classes, params, macs, features):
    net = net_of("convnet", (3, side, side), classes)
    assert net.size == params
    assert sum(v.numel() for v in net.init(Stream(0)).values()) == params
    _has_macs(net, macs)
    assert _feature_size(net) == features


@pytest.mark.parametrize(
    ("side", "classes", "params", "macs", "features"),
    [
        (28, 10, 11_173_962, 456.7e6, 512),
        (32, 10, 11_173_962, 555.4e6, 512),
        (96, 2, 13_529_666, 5_001e6, 4_608),
    ],
)
def test_resnet18_is_the_released_codes(side, classes, params, macs, features):
    net = net_of("resnet18", (3, side, side), classes)
    assert net.size == params
    _has_macs(net, macs)
    assert _feature_size(net, "meta") == features


def test_resnet18_as_printed():
    net = build_net("resnet18", (3, 28, 28), 10, {"version": "printed"})
    assert net.size == 11_181_642
    _has_macs(net, 123.5e6)
    assert _feature_size(net, "meta") == 512


@pytest.mark.parametrize("name", ["convnet", "resnet18"])
def test_every_norm_of_the_default_nets_has_one_group_per_channel(name):
    net = net_of(name, (3, 28, 28), 10)
    module = net.module(net.init(Stream(0)))
    norms = [m for m in module.modules() if isinstance(m, nn.GroupNorm | nn.BatchNorm2d)]
    assert len(norms) == {"convnet": 3, "resnet18": 20}[name]
    for norm in norms:
        assert norm.num_groups == norm.num_channels
        assert norm.affine
        assert norm.eps == 1e-5


def test_instance_normalised_features_hardly_see_contrast_and_brightness():
    net = build_net("convnet", (3, 16, 16), 3, {"depth": 2, "width": 8})
    params, x = net.init(Stream(0)), torch.rand(4, 3, 16, 16, generator=Stream(0).generator())
    a, b = net.frozen(params, x).features, net.frozen(params, 3 * x).features
    assert (a - b).norm() < 0.2 * a.norm()


@pytest.mark.parametrize(
    ("settings", "features"),
    [
        ({"depth": 1}, 8 * 8 * 8),
        ({"depth": 2}, 8 * 4 * 4),
        ({"depth": 4}, 8),
        ({"depth": 2, "pooling": "max"}, 8 * 4 * 4),
        ({"depth": 2, "pooling": "none"}, 8 * 16 * 16),
        ({"depth": 2, "width": 5}, 5 * 4 * 4),
    ],
)
def test_depth_width_and_pooling_set_the_feature_size(settings, features):
    assert _feature_size(build_net("convnet", (3, 16, 16), 4, {"width": 8} | settings)) == features


def test_images_need_not_be_square_or_coloured():
    assert _feature_size(build_net("convnet", (1, 8, 20), 3, {"depth": 2, "width": 4})) == 4 * 2 * 5


@pytest.mark.parametrize(("settings", "side"), [({}, 28), ({}, 96), ({"version": "printed"}, 28)])
def test_a_resnet18_of_a_quarter_of_the_width_has_a_sixteenth_of_the_weights(settings, side):
    wide, narrow = (build_net("resnet18", (3, side, side), 10, {**settings, "width": w}) for w in (64, 16))
    assert narrow.features == wide.features // 4
    weights, few = (
        {name: value.numel() for name, value in net.init(Stream(0)).items() if "stages" in name and value.ndim == 4}
        for net in (wide, narrow)
    )
    assert {name: count / few[name] for name, count in weights.items()} == dict.fromkeys(weights, 16.0)


def test_resnet18_takes_images_that_are_not_square():
    assert _feature_size(build_net("resnet18", (3, 32, 64), 3)) == 512 * 2


@pytest.mark.parametrize(
    ("norm", "kind"), [("batch", nn.BatchNorm2d), ("instance", nn.GroupNorm), ("group", nn.GroupNorm)]
)
def test_norms_by_name(norm, kind):
    net = build_net("convnet", (3, 8, 8), 3, {"depth": 2, "width": 16, "norm": norm})
    module = net.module(net.init(Stream(0)))
    norms = [m for m in module.modules() if isinstance(m, kind)]
    assert len(norms) == 2
    if kind is nn.GroupNorm:
        assert norms[0].num_groups == {"instance": 16, "group": 8}[norm]
    assert _feature_size(net) == 16 * 4


def test_no_norm_means_fewer_parameters():
    sizes = {
        n: build_net("convnet", (3, 8, 8), 3, {"depth": 2, "width": 16, "norm": n}).size for n in ("none", "batch")
    }
    assert sizes["batch"] - sizes["none"] == 2 * 2 * 16


def test_group_norm_is_never_dropped_silently():
    net = build_net("convnet", (3, 8, 8), 3, {"depth": 2, "width": 12, "norm": "group"})
    assert sum(isinstance(m, nn.GroupNorm) for m in net.module(net.init(Stream(0))).modules()) == 2


@pytest.mark.parametrize("norm", ["layer", ""])
def test_unknown_norms_are_refused(norm):
    with refuses("net-setting-choice", NetError, key="norm"):
        build_net("convnet", (3, 8, 8), 3, {"depth": 2, "norm": norm})


@pytest.mark.parametrize(
    ("name", "settings"), [("convnet", {"pooling": "average", "depth": 2}), ("resnet18", {"version": "paper"})]
)
def test_unknown_values_of_settings_are_refused(name, settings):
    with pytest.raises(NetError):
        build_net(name, (3, 32, 32), 3, settings)


@pytest.mark.parametrize(
    ("side", "depth", "way_out"), [(8, 5, "depth=3"), (15, 4, "depth=3"), (1, 1, "pooling=none")]
)
def test_images_too_small_for_the_depth_are_refused(side, depth, way_out):
    with pytest.raises(NetError, match=rf"\(3, {side}, 20\).*net.depth is {depth}.*net.{way_out}"):
        build_net("convnet", (3, side, 20), 3, {"depth": depth})


def test_images_too_small_for_resnet18_are_refused():
    with refuses("net-image", NetError):
        build_net("resnet18", (3, 24, 32), 3)
    for shape, settings in (((3, 25, 25), {}), ((3, 8, 8), {"version": "printed"})):
        assert _feature_size(build_net("resnet18", shape, 3, settings), "meta") == 512


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"depth": 100_000_000}, "net.depth is 100000000; use a whole number from 1 to 64"),
        ({"width": 10**9}, "net.width is 1000000000; use a whole number from 1 to 4096"),
        ({"width": 0}, "net.width is 0;"),
        ({"depth": -1}, "net.depth is -1;"),
        ({"depth": 2.5}, "net.depth is 2.5;"),
        ({"width": "8"}, "net.width is '8';"),
        ({"width": True}, "net.width is True;"),
    ],
)
def test_sizes_have_bounds(settings, message):
    with pytest.raises(NetError, match=re.escape(message)):
        build_net("convnet", (3, 8, 8), 3, {"pooling": "none"} | settings)


@pytest.mark.parametrize("settings", [{"depth": 64, "width": 4096}, {"depth": 1, "width": 4096}])
def test_a_net_that_would_fill_the_memory_is_refused_before_it_is_built(settings):
    with refuses("net-too-large", NetError):
        build_net("convnet", (3, 256, 256), 3, {"pooling": "none"} | settings)


def test_a_net_is_never_made_wider_to_narrow_it():
    net = build_net("convnet", (3, 8, 8), 3, {"depth": 2, "width": 8})
    assert net.narrow(8) is net.narrow(100_000) is net
    assert net.narrow(4).features == net.features / 2


def test_an_unknown_net_is_answered_with_the_nearest_and_with_the_way_to_ones_own():
    with refuses("net-unknown", NetError, name="convent"):
        build_net("convent", (3, 8, 8), 3)


def test_an_unknown_setting_is_answered_with_the_nearest():
    with refuses("net-setting-unknown", NetError, key="widht"):
        build_net("convnet", (3, 8, 8), 3, {"widht": 4})


def test_settings_and_their_defaults_can_be_listed():
    assert settings_of("convnet") == {"depth": 3, "width": 128, "norm": "instance", "pooling": "avg"}
    assert settings_of("resnet18") == {"version": "code", "width": 64}
    assert settings_of(OWN + "Linear") == {"features": "", "bias": True}


def test_settings_are_part_of_the_label_in_a_fixed_order():
    a = build_net("convnet", (3, 8, 8), 3, {"depth": 2, "width": 4})
    b = build_net("convnet", (3, 8, 8), 3, {"width": 4, "depth": 2})
    assert a.label == b.label != build_net("convnet", (3, 8, 8), 3, {"depth": 2, "width": 5}).label


def test_a_users_own_net_works_with_its_own_settings():
    net = build_net(OWN + "Linear", (3, 4, 4), 5, {"bias": False})
    assert net.size == 3 * 4 * 4 * 5
    assert net.flops == 2 * 3 * 4 * 4 * 5
    assert _feature_size(net) == 48


def _refused(name: str) -> str:
    with pytest.raises(NetError) as caught:
        build_net(name, (3, 4, 4), 3)
    assert isinstance(caught.value, FedlgdError)
    return str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "OtherArguments",
        "Raises",
        "Three",
        "WrongClasses",
        "Maps",
        "NotTensors",
        "NotAModule",
        "Missing",
        "",
    ],
)
def test_a_net_that_breaks_the_contract_is_named_with_the_contract(name):
    message = _refused(OWN + name)
    assert OWN + name in message
    for promise in ("nn.Module", "shape=(channels, height, width)", "classes=K", "(features, logits)", "(n, K)"):
        assert promise in message


def test_the_error_of_the_net_itself_is_passed_on():
    assert "no such luck" in _refused(OWN + "Raises")
    assert re.search(r"\(2, 4\).*3 classes", _refused(OWN + "WrongClasses"))


def test_features_must_have_a_row_per_image():
    assert "(features, logits)" in _refused(OWN + "Pooled")


def test_a_module_that_does_not_exist_is_named():
    assert "nowhere.at.all" in _refused("nowhere.at.all:Net")


@pytest.mark.parametrize("name", [":Net", ".relative:Net", "tests.nets.broken:Net"])
def test_a_module_that_cannot_be_imported_is_named(name):
    assert name in _refused(name)
