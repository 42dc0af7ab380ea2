"""Training-time augmentation: each image by an independent slow version, its bounds, and that off is off."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedlgd.core.errors import SettingError
from fedlgd.core.train import Local
from fedlgd.core.types import LabelledSet, Stream
from fedlgd.distill.augment import color, jittered
from fedlgd.engines.settings import RoundSettings
from fedlgd.methods.fedavg import FedAvg
from tests import tiny
from tests.errors import refuses

ALL = ("rotate", "zoom", "shift", "color")


def images(n: int = 5, h: int = 8, w: int = 12) -> Tensor:
    return torch.randn(n, 3, h, w, generator=Stream(1).generator(), dtype=torch.float64)


def slow(image: Tensor, u: list[float]) -> Tensor:
    """One image, one output pixel after the other, bilinear with repeated borders."""
    _, h, w = image.shape
    angle, zoom = math.radians(15 * (2 * u[0] - 1)), 1.2 ** (2 * u[1] - 1)
    right, down = (2 * u[2] - 1) * w / 8, (2 * u[3] - 1) * h / 8
    made = torch.empty_like(image)
    for i in range(h):
        for j in range(w):
            y, x = i - (h - 1) / 2, j - (w - 1) / 2
            at_x = zoom * (math.cos(angle) * x - math.sin(angle) * y) + right + (w - 1) / 2
            at_y = zoom * (math.sin(angle) * x + math.cos(angle) * y) + down + (h - 1) / 2
            at_x, at_y = min(max(at_x, 0.0), w - 1.0), min(max(at_y, 0.0), h - 1.0)
            a, b = int(at_y), int(at_x)
            fy, fx = at_y - a, at_x - b
            c, d = min(a + 1, h - 1), min(b + 1, w - 1)
            top = (1 - fx) * image[:, a, b] + fx * image[:, a, d]
            bottom = (1 - fx) * image[:, c, b] + fx * image[:, c, d]
            made[:, i, j] = (1 - fy) * top + fy * bottom
    return color(made[None], *u[4:])[0]


def test_every_image_has_its_own_draw_as_in_the_slow_version():
    x = images()
    u = torch.rand(len(x), 7, generator=Stream(2).generator())
    wanted = torch.stack([slow(image, row.tolist()) for image, row in zip(x, u, strict=True)])
    torch.testing.assert_close(jittered(x, ALL, Stream(2).generator()), wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("operation", ALL)
def test_operations_are_separate_and_change_the_image(operation):
    x = images()
    made = jittered(x, (operation,), Stream(3).generator())
    assert not torch.equal(made, x)
    assert made.shape == x.shape
    if operation == "shift":  # a constant image stays constant: borders are repeated
        flat = torch.full_like(x, 2.0)
        torch.testing.assert_close(jittered(flat, ALL[:3], Stream(3).generator()), flat)


def test_no_operation_leaves_the_images_and_the_generator_alone():
    generator = Stream(4).generator()
    x = images()
    assert jittered(x, (), generator) is x
    assert torch.equal(torch.rand(3, generator=generator), torch.rand(3, generator=Stream(4).generator()))


def test_a_run_trains_on_augmented_batches_and_repeats_itself():
    data, net = tiny.federation(), tiny.net()
    plan = RoundSettings(rounds=2)
    plain, augmented, again = (
        tiny.Run(tiny.settings(FedAvg(), {"local.augment": augment}), data, plan, using=net).states[-1].params
        for augment in ((), ALL, ALL)
    )
    assert all(torch.equal(augmented[name], again[name]) for name in augmented)
    assert any(not torch.equal(augmented[name], plain[name]) for name in augmented)


def test_a_method_of_ones_own_can_prepare_its_batches():
    class Dark(FedAvg):
        def batch(self, part: LabelledSet, generator: torch.Generator) -> LabelledSet:
            return LabelledSet(torch.zeros_like(part.x), part.y)

    data, net = tiny.federation(), tiny.net()
    method = tiny.settings(FedAvg(), {})
    dark = Dark(local=method.local, distil=method.distil)
    first = next(name for name in net.trainable if net.init(Stream(0))[name].ndim == 4)
    start = net.init(Stream(0).at("init"))[first]
    assert torch.equal(
        tiny.Run(dark, data, RoundSettings(rounds=1), using=net).states[-1].params[first], start
    )  # black: no gradient
    assert not torch.equal(
        tiny.Run(method, data, RoundSettings(rounds=1), using=net).states[-1].params[first], start
    )


def test_an_unknown_operation_is_refused_with_the_choices():
    with refuses("setting-choice", SettingError, setting="local.augment"):
        Local(augment=("spin",))  # type: ignore[arg-type]


def test_oblong_images_are_turned_without_shear():
    """A turn keeps lengths in pixels: the sampling grid of a unit step right and down is orthogonal."""
    x = images(1)
    rows = torch.arange(8.0, dtype=torch.float64)[:, None].expand(8, 12)
    columns = torch.arange(12.0, dtype=torch.float64).expand(8, 12)
    plane = torch.stack([rows, columns, rows])[None]
    turned = jittered(plane, ("rotate",), Stream(5).generator())[0]
    across = torch.stack([turned[0, 3, 6] - turned[0, 3, 5], turned[1, 3, 6] - turned[1, 3, 5]])
    along = torch.stack([turned[0, 4, 5] - turned[0, 3, 5], turned[1, 4, 5] - turned[1, 3, 5]])
    assert float(across @ along) == pytest.approx(0, abs=1e-6)
    assert float(across.norm()) == pytest.approx(1, abs=1e-6)
    assert F.mse_loss(jittered(x, ("rotate",), Stream(5).generator()), x) > 0


def test_a_batch_that_has_only_anchors_is_not_changed():
    assert jittered(images(0), ALL, Stream(0).generator()).shape == (0, 3, 8, 12)
