"""Optimisers of pixels: against torch's own."""

from dataclasses import replace

import pytest
import torch

from fedlgd.core.types import Stream
from fedlgd.distill.distribution import BETAS, PixelOptimiser, first_set, match, refine_set, smooth_gradient
from fedlgd.distill.settings import Distil, Refinement
from fedlgd.methods.refine import Refine
from tests import tiny


def gradients(steps: int) -> torch.Tensor:
    return torch.randn(steps, 3, 2, 4, 4, generator=Stream(0).generator("g"))


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_every_step_is_torchs(optimiser):
    images = torch.zeros(3, 2, 4, 4)
    leaf = images.clone().requires_grad_()
    theirs = (
        torch.optim.SGD([leaf], lr=0.3, momentum=0.5)
        if optimiser == "sgd"
        else torch.optim.Adam([leaf], lr=0.3, betas=BETAS)
    )
    ours = PixelOptimiser(Refinement(lr=0.3, momentum=0.5, smooth=0.0, optimiser=optimiser), None)
    for gradient in gradients(6):
        images = ours(images, gradient)
        leaf.grad = gradient
        theirs.step()
        torch.testing.assert_close(images, leaf.detach(), rtol=1e-5, atol=1e-6)


def test_gradients_are_smoothed_before_they_are_remembered():
    how = Distil(lr=0.3, momentum=0.5, smooth=1.5)
    one, other = PixelOptimiser(how, None), PixelOptimiser(replace(how, smooth=0.0), None)
    x = y = torch.zeros(3, 2, 4, 4)
    for gradient in gradients(3):
        x, y = one(x, gradient), other(y, smooth_gradient(gradient, 1.5))
    assert torch.equal(x, y)


def test_refinement_by_sgd_with_the_rate_of_the_distillation_is_the_published_one_bit_for_bit():
    net, site = tiny.net(), tiny.federation().sites[0]
    first = Distil(per_class=2, steps=3, lr=0.7, smooth=0.0)
    virtual, params = first_set(site, net, replace(first, steps=0), Stream(0)), tiny.params(net)
    same = Refine(steps=3, pairs=first.pairs, reuse=first.reuse, real_per_class=first.real_per_class)
    adam = replace(same, optimiser="adam", lr=0.02)
    plain, sgd, other = (
        refine_set(virtual, site.train, net, params, how, 0, Stream(1)).images
        for how in (first, same.settings(first), adam.settings(first))
    )
    assert torch.equal(plain, sgd)
    assert not torch.equal(plain, other)
    assert (other - virtual.images).abs().max() < 3.5 * 0.02


@pytest.mark.parametrize("plan", ["bank", "exact"])
def test_the_mean_of_fifty_images_moves_as_fast_as_that_of_ten_with_a_bank(plan):
    how, moved = Distil(lr=0.3, momentum=0.0, smooth=0.0, plan=plan), {}
    for n in (1, 10, 50):
        labels = torch.cat([torch.zeros(n, dtype=torch.long), torch.ones(3, dtype=torch.long)])
        gradient = torch.where(labels == 0, 1 / n, 1 / 3)[:, None, None, None].expand(-1, 2, 4, 4)
        step = -PixelOptimiser(how, labels)(torch.zeros(n + 3, 2, 4, 4), gradient)
        moved[n] = float(step[labels == 0].mean())
        torch.testing.assert_close(step[labels == 1], torch.full((3, 2, 4, 4), 0.1))  # as it is for few images
    assert moved[1] == pytest.approx(0.3)
    assert moved[10] == pytest.approx(0.03)
    assert moved[50] == pytest.approx(0.03 if plan == "bank" else 0.006)


@pytest.mark.parametrize("how", ["means", "moments"])
def test_a_class_of_twenty_images_is_matched_as_one_of_ten_with_each_of_them_twice(how):
    net, site = tiny.net(), tiny.federation().sites[0]
    distil = Distil(steps=4, match=how, augment=(), real_per_class=4)
    images, labels = torch.rand(30, *net.shape, generator=Stream(2).generator("x")), torch.arange(3).repeat(10)
    many = images.repeat_interleave(2, 0), labels.repeat_interleave(2)

    def matched(images: torch.Tensor, labels: torch.Tensor, distil: Distil) -> torch.Tensor:
        return match(images, labels, site.train, net, lambda _: tiny.params(net), distil, Stream(1))

    ten, exact = matched(images, labels, distil), replace(distil, plan="exact")
    assert not torch.allclose(ten, images, atol=1e-3)
    torch.testing.assert_close(matched(*many, distil), ten.repeat_interleave(2, 0), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(matched(*many, exact)[::2], matched(images, labels, exact), atol=1e-4)


def test_sets_of_more_than_ten_images_from_before_the_rate_grew_are_made_again():
    few, many = Distil(per_class=10), Distil(per_class=11)
    assert "grows" not in few.made_from
    assert many.made_from["grows"]
    assert "grows" not in replace(many, plan="exact").made_from
