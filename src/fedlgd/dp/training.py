r"""Training on real images with a promise: DP-SGD hides single images, DP-FedAvg hides whole sites.

DP-SGD (Abadi et al., CCS 2016) runs at each site. Each step draws every image with probability q, in secret:

    g = ( sum_i clip_C(grad l(x_i)) + sigma C N(0, I) ) / (q n),   n the noisy number of images

The steps of all rounds share one budget: sigma is that of (q, rounds x steps) by the PRV accountant of Opacus,
which also computes the gradient of each image. The model of a round is released once, as in `dp/ledger.py`.

DP-FedAvg (McMahan et al., ICLR 2018) runs at the server, which is trusted:

    theta_{t+1} = theta_t + mean_c clip_S(theta_c - theta_t) + z S / m N(0, I),   m sites,  z = sqrt(rounds) / mu

The noise on each coordinate does not shrink with the size of a site, only with the number of sites: few hospitals
with a million patients each are few records. Below about 50 sites no model is left, and the method refuses.
The parts that are stacked on a method are in `methods/private.py`.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedlgd.core import meter
from fedlgd.core.device import to_device
from fedlgd.core.errors import NetError, PrivacyError, SettingError, check
from fedlgd.core.guard import unsealed
from fedlgd.core.net import Net
from fedlgd.core.settings import setting
from fedlgd.core.train import Local, descend
from fedlgd.core.tree import Mean, cast, double, only, scale, sqnorm, sub
from fedlgd.core.types import LabelledSet, Params, Site, Update
from fedlgd.distill.augment import Transform
from fedlgd.distill.gradient import Gradients
from fedlgd.distill.settings import Budget, GradientBudget
from fedlgd.dp.budget import Level, budget_mu, noise_for
from fedlgd.dp.ledger import Book, account_name, charged_settings, gaussian, generator_for, open_book
from fedlgd.dp.release import check_delta, check_protected, noisy_counts

MIN_SITES = 50  # of DP-FedAvg
MAX_GRADIENTS_IN_MEMORY = 64  # one for each image


@dataclass(frozen=True, kw_only=True)
class Dp(GradientBudget):
    """DP-SGD at each site. `local.batch` is the expected number of images in a step."""

    epsilon: float = setting(4.0, "Privacy budget of all rounds together at each site.", above=0, most=100)


def reserve_training(dp: GradientBudget, local: Local, site: Site, net: Net, book: Book, account: str) -> Tensor:
    """The noisy number of images per class. All steps of all rounds are charged before the first one."""
    check_protected(site, net, "dp.epsilon")
    level = counts_level(dp)
    book.reserve(account, {"counts": level})
    counts = noisy_counts(book, account, level, unsealed(site).train, net.classes)
    check_delta(counts, dp)
    book.reserve(account, {"train": training_level(dp, local, counts, site.name)})
    return counts


def training_level(dp: GradientBudget, local: Local, counts: Tensor, site: str) -> Level:
    """The noise of all rounds: q = batch / n, and 1 / q steps in an epoch."""
    size, mu, rounds = float(counts.sum()), budget_mu(dp), max(1, dp.rounds)
    if size < 2 * dp.counts**-0.5 / mu:
        raise PrivacyError("too-few-images-to-train", site=site, images=max(0, round(size)))
    rate = min(1.0, local.batch / size)
    each = local.steps or local.epochs * math.ceil(1 / rate)
    if rate == 1:
        sigma = math.sqrt(rounds * each / (1 - dp.counts)) / mu
    else:
        sigma = noise_for(dp.epsilon, dp.delta, rate, rounds * each, counts_level(dp))
    return Level(sigma, rate, rounds, each)


def counts_level(dp: GradientBudget) -> Level:
    """The noise of the number of images per class."""
    return Level(1 / (budget_mu(dp) * math.sqrt(dp.counts)))


def training_account(dp: Dp, local: Local, site: Site, net: Net, seed: int) -> tuple[Book, str]:
    """The book of a site, and its account for these settings."""
    given = {name: value for name, value in asdict(local).items() if value is not None}
    account = account_name("dp-sgd", seed, unsealed(site), net.label, dp=charged_settings(dp), local=given)
    return open_book(site.name, dp), account


def dp_sgd(
    net: Net,
    start: Params,
    data: LabelledSet,
    local: Local,
    level: Level,
    clip: float,
    size: float,
    generator: np.random.Generator,
) -> Params:
    """`level.each` steps on noisy sums of clipped gradients."""
    module = per_sample(net, start)
    leaves = [leaf for leaf in module.parameters() if leaf.requires_grad]
    velocity: list[Tensor] = []
    for _ in meter.track("train", level.each):
        grads = noisy_gradient(module, data, level, clip, size, generator)
        meter.spend(int(3 * level.rate * size * net.flops))
        velocity = descend(leaves, grads, velocity, local)
    return {name: value.detach().clone() for name, value in module._module.state_dict().items()}


def noisy_gradient(
    module: Any,
    data: LabelledSet,
    level: Level,
    clip: float,
    size: float,
    generator: np.random.Generator,
    transform: Transform | None = None,
) -> list[Tensor]:
    """g of the formula above, of images that are drawn in secret and changed by one `transform`."""
    leaves = [leaf for leaf in module.parameters() if leaf.requires_grad]
    chosen = torch.from_numpy((generator.random(len(data)) < level.rate).nonzero()[0])
    sums = clipped_gradients(module, leaves, data, chosen, clip, transform)
    noisy = [s.double() + level.sigma * clip * gaussian(generator, tuple(s.shape)).to(s.device) for s in sums]
    return [(each / (level.rate * size)).to(leaf) for each, leaf in zip(noisy, leaves, strict=True)]


def noisy_gradients(
    net: Net, data: LabelledSet, level: Level, clip: float, size: float, generator: np.random.Generator
) -> Gradients:
    """`noisy_gradient` at any weights; each call is a release."""

    def at(w: Params) -> Callable[[Transform], list[Tensor]]:
        module = per_sample(net, w)

        def gradient(transform: Transform) -> list[Tensor]:
            meter.spend(int(3 * level.rate * size * net.flops))
            return noisy_gradient(module, data, level, clip, size, generator, transform)

        return gradient

    return at


def clipped_gradients(
    module: Any,
    leaves: list[Any],
    data: LabelledSet,
    chosen: Tensor,
    clip: float,
    transform: Transform | None = None,
) -> list[Tensor]:
    """sum_i clip_C(grad CE(x_i)) over the chosen images; the norm is over all parameters together."""
    sums = [torch.zeros_like(leaf) for leaf in leaves]
    for index in chosen.split(MAX_GRADIENTS_IN_MEMORY) if len(chosen) else ():
        part = data.take(index)
        with _unwarned():
            x = transform(part.x) if transform else part.x
            F.cross_entropy(module(x)[1], part.y, reduction="sum").backward()
        each = [leaf.grad_sample.flatten(1) for leaf in leaves]
        norm = torch.stack([g.double().square().sum(1) for g in each]).sum(0).sqrt()
        factor = torch.where(norm.isfinite(), (clip / norm).clamp(max=1), torch.zeros_like(norm)).float()
        for total, g, leaf in zip(sums, each, leaves, strict=True):
            total += (factor @ g.nan_to_num(0.0, 0.0, 0.0)).view_as(total)
            leaf.grad_sample = leaf.grad = None
    return sums


@contextmanager
def _unwarned() -> Iterator[None]:
    """Without the warning that images have no gradient: only weights need one."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Full backward hook", UserWarning)
        yield


def per_sample(net: Net, params: Params) -> Any:
    """The network with these weights, and the gradient of each image in `grad_sample` of its parameters."""
    try:
        from opacus.grad_sample import GradSampleModule  # here, because its import takes seconds
    except ImportError as error:
        raise SettingError("opacus-missing") from error
    module = to_device(net.module(params)).train()
    for layer in module.modules():
        if isinstance(layer, nn.ReLU):
            layer.inplace = False  # hooks need the output of the layer before
    try:
        wrapped = GradSampleModule(module, loss_reduction="sum")
        with _unwarned():
            wrapped(to_device(torch.zeros(2, *net.shape)))[1].sum().backward()
        wrapped.zero_grad(set_to_none=True)
    except (RuntimeError, NotImplementedError) as error:
        raise NetError("no-gradients-of-images", net=net.label, error=error) from error
    for leaf in wrapped.parameters():
        leaf.grad_sample = None
    return wrapped


@dataclass(frozen=True, kw_only=True)
class SiteDp(Budget):
    """DP-FedAvg: one record is a site. Its budget is that of one run; there is no ledger."""

    section: ClassVar[str] = "site_dp"
    protects: ClassVar[Literal["image", "site"]] = "site"

    epsilon: float = setting(10.0, "Privacy budget of all rounds together for a site.", above=0, most=100)
    clip: float = setting(1.0, "Largest L2 norm of a site's change of the model.", above=0)
    rounds: int = setting(0, "Rounds that share the budget; 0: all rounds of the run.", least=0, most=1_000_000)

    def __post_init__(self) -> None:
        super().__post_init__()
        check(not self.scores, "site_dp.scores", self.scores, "but sites are hidden here, not images; leave it out")

    @property
    def multiplier(self) -> float:
        """z = sqrt(rounds) / mu: noise in units of the clipping norm."""
        return math.sqrt(max(1, self.rounds)) / budget_mu(self)

    @property
    def statement(self) -> str:
        if self.test_key:
            return super().statement
        return f"Privacy of each site in this run: (epsilon, delta) = ({self.epsilon:g}, {self.delta:g})."


def check_sites(sites: int, net: Net, budget: SiteDp) -> None:
    """Refuse a federation in which the noise would drown every update."""
    if sites < MIN_SITES:
        spread, rounds = budget.multiplier / sites, max(1, budget.rounds)
        values = {"spread": spread, "whole": spread * math.sqrt(net.size), "epsilon": budget.epsilon}
        raise PrivacyError("too-few-sites", sites=sites, wanted=MIN_SITES, rounds=rounds, size=net.size, **values)


def dp_fedavg(before: Params, updates: Iterable[Update], net: Net, budget: SiteDp, t: int) -> Params:
    """theta_{t+1} of the formula above; weights are equal, and only trainable tensors change."""
    mean, old = Mean(), double(only(before, net.trainable))
    for update in updates:
        change = sub(double(only(update.params, net.trainable)), old)
        mean.add(scale(change, min(1.0, budget.clip / max(float(sqnorm(change)) ** 0.5, 1e-12))))
    generator = generator_for(budget.test_key.encode(), str(t)) if budget.test_key else np.random.default_rng()
    deviation = budget.multiplier * budget.clip / mean.weight
    moved = {
        name: old[name] + change + deviation * gaussian(generator, tuple(change.shape)).to(change)
        for name, change in mean.value().items()
    }
    return {**before, **cast(moved, only(before, net.trainable))}
