"""What `distil.match` compares: class means, means and deviations, or all features under kernels."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedlgd.core.errors import PrivacyError, SettingError
from fedlgd.core.losses import scaled_mmd
from fedlgd.core.types import Stream
from fedlgd.distill.distribution import draws, first_set, refine_set, target_of
from fedlgd.distill.settings import Distil, Private
from fedlgd.methods.collabdm import CollabDM
from tests import tiny
from tests.errors import refuses
from tests.vectors import close

CLASSES = torch.arange(3)
HOW = Distil(per_class=4, steps=12, pairs=2, reuse=3, real_per_class=6, width=0, lr=0.3, smooth=0, augment=())
MATCHES = ["means", "moments", "kernel"]


def _rows(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=Stream(seed).generator("gap"))


def _value(match: str, real: list[Tensor], made: list[Tensor]) -> float:
    target, gap = target_of(real, CLASSES, match)
    labels = CLASSES.repeat_interleave(torch.tensor([len(part) for part in made]))
    return float(gap(target, torch.cat(made), labels, CLASSES))


@pytest.mark.parametrize("match", MATCHES)
def test_the_same_features_have_no_gap(match):
    features = [_rows(k, 5, 4) for k in range(3)]
    close(_value(match, features, [part.flip(0) for part in features]), 0.0)


def test_moments_add_the_deviations_to_eq_1():
    real = [_rows(k, 5, 4) for k in range(3)]
    wider = [part.mean(0) + 2 * (part - part.mean(0)) for part in real]
    close(_value("means", real, wider), 0.0)
    close(_value("moments", real, wider), sum(float(part.var(0, correction=0).sum()) for part in real))


def test_one_picture_of_a_class_is_moved_by_its_mean_alone():
    real, made = [_rows(k, 5, 4) for k in range(3)], _rows(9, 3, 4).requires_grad_()
    grads = []
    for match in ("means", "moments"):
        target, gap = target_of(real, CLASSES, match)
        grads.append(torch.autograd.grad(gap(target, made, CLASSES, CLASSES), made)[0])
    torch.testing.assert_close(*grads)


def test_a_kernel_sees_what_means_and_deviations_do_not():
    """Two points at -1 and 1 against a wide and a narrow pair with the same mean and deviation."""
    two = torch.tensor([[-1.0], [1.0], [-1.0], [1.0]], dtype=torch.float64)
    far = torch.tensor([[-2.0], [0.0], [0.0], [2.0]], dtype=torch.float64) / 2**0.5
    assert _value("moments", [two] * 3, [far] * 3) < 1e-12
    assert _value("kernel", [two] * 3, [far] * 3) > 0.01


@pytest.mark.parametrize("kernels", [1, 5])
def test_a_wide_kernel_is_eq_1(kernels):
    a, b = _rows(0, 6, 4), 1 + _rows(1, 3, 4)
    wide = scaled_mmd(a, b, kernels, width=1e6)
    torch.testing.assert_close(wide, (a.mean(0) - b.mean(0)).square().sum(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("match", ["moments", "kernel"])
def test_distillation_lowers_the_gap_that_it_is_asked_for(match):
    site, net = tiny.federation(names=("ape",), train=12).by_name["ape"], tiny.net(width=8)
    params, how = tiny.params(net), replace(HOW, match=match, steps=40)
    start = first_set(site, net, replace(how, steps=0), Stream(0))
    end = refine_set(start, site.train, net, params, how, 0, Stream(1))
    real = [net.frozen(params, site.train.take(site.train.of_class(k)).x).features for k in range(3)]
    before, after = (
        _value(match, real, list(net.frozen(params, virtual.images).features.split(4))) for virtual in (start, end)
    )
    assert after < 0.5 * before


@pytest.mark.parametrize("match", MATCHES)
def test_first_sets_are_distilled_with_every_loss_and_kept_apart(match):
    site, net = tiny.federation().by_name["ape"], tiny.net()
    made = first_set(site, net, replace(HOW, match=match), Stream(0)).images
    assert made.isfinite().all()
    others = [first_set(site, net, replace(HOW, match=each), Stream(0)).images for each in MATCHES if each != match]
    assert not any(torch.equal(made, other) for other in others)


@pytest.mark.parametrize("match", MATCHES)
def test_a_bank_computes_real_features_once_for_all_steps_of_a_pair(match):
    site, net = tiny.federation(names=("ape",), train=6).by_name["ape"], tiny.net()
    how = replace(HOW, match=match, augment=("color",))
    pairs = list(draws(CLASSES, site.train, net, lambda i: net.init(Stream(i)), how, Stream(0)))
    assert len({id(pair) for pair in pairs}) == how.distinct == 4


def test_sets_by_eq_1_are_found_where_older_versions_kept_them():
    assert "match" not in HOW.made_from
    assert replace(HOW, match="kernel").made_from["match"] == "kernel"


@pytest.mark.parametrize("match", ["moments", "kernel"])
def test_private_sets_and_sent_means_know_class_means_alone(match):
    with refuses("private-match", PrivacyError, match=match):
        Distil(match=match, private=Private(epsilon=1.0))
    with refuses("collab-match", SettingError, match=match):
        CollabDM(distil=replace(CollabDM.distil, match=match))
