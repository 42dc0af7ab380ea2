r"""DP-SGD (Abadi et al., CCS 2016) at each site: the baseline that trains on real images with the same promise.

Each step draws every image with probability q, in secret, and follows

    g = ( sum_i clip_C(grad l(x_i)) + sigma C N(0, I) ) / (q n),   n the noisy number of images

The steps of all rounds share one budget: sigma is that of (q, rounds x steps) by the PRV accountant of Opacus,
which also computes the gradient of each image. The model of a round is released once, as in `distill/ledger.py`.
"""

import json
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedlgd.core import meter
from fedlgd.core.device import noise, to_cpu, to_device
from fedlgd.core.errors import DivergedError, NetError, PrivacyError, SettingError
from fedlgd.core.files import digest
from fedlgd.core.text import plural
from fedlgd.core.train import Local, descend
from fedlgd.core.types import Broadcast, Hello, LabelledSet, Params, Site, SiteState
from fedlgd.data.federation import site_digest
from fedlgd.dp.budget import Budget, Level, noise_for
from fedlgd.dp.distil import digest_of
from fedlgd.dp.ledger import Book, gaussian, open_book
from fedlgd.dp.release import check_delta, check_protected, noisy_counts
from fedlgd.methods.common import fit
from fedlgd.methods.parts import Part, Presets
from fedlgd.methods.protocol import Fit, Method, Net, Stream, Trained, Visit, setting

TOGETHER = 64  # images whose gradients are in memory at once
LOCAL = Local(batch=512, lr=0.5)
OWN = {"local.lr": 0.5, "local.momentum": 0.0, "local.schedule": "constant", "local.augment": (), "local.steps": 0}
"""Noisy gradients are not trained on like others."""


@dataclass(frozen=True, kw_only=True)
class Dp(Budget):
    """DP-SGD at each site. `local.batch` is the expected number of images in a step."""

    section: ClassVar[str] = "dp"

    epsilon: float = setting(4.0, "Privacy budget of all rounds together at each site.", above=0, most=100)
    clip: float = setting(1.0, "Clipping norm of the gradient of an image.", above=0)
    rounds: int = setting(0, "Rounds that share the budget; 0: all rounds of the run.", least=0, most=1_000_000)


@dataclass(frozen=True, kw_only=True)
class DpSgd(Part):
    """Trains on real images by DP-SGD. Counts, weights and models are noisy; losses are not sent."""

    kind: ClassVar[str] = "dp-sgd"
    allows: ClassVar[tuple[str, ...]] = ("robust",)
    presets: ClassVar[Presets] = {
        "paper": {"train_on": "real"},
        "quick": {"train_on": "real", **OWN},
        "strong": {"train_on": "real", **OWN},
    }

    dp: Dp = Dp()

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.method, Part):
            raise SettingError(f"dp-sgd has its own loss and cannot follow {self.method.stack}; use fedavg+dp-sgd")
        if self.train_on != "real":
            raise SettingError(
                f"train_on is {self.train_on!r}, but dp-sgd protects training on real images; use train_on=real, "
                "or virtual sets with distil.private.epsilon and without dp-sgd"
            )

    @property
    def title(self) -> str:
        return "DP-SGD"

    def enrol(self, site: Site, net: Net, rng: Stream) -> tuple[SiteState, Hello]:
        check_protected(site, net, "dp.epsilon")
        state, hello = self.method.enrol(site, net, rng)
        book, account = self._book(site, net, rng)
        level = Level(1 / (self.dp.mu * math.sqrt(self.dp.counts)))
        book.reserve(account, {"counts": level})
        counts = noisy_counts(book, account, level, site.train, net.classes)
        check_delta(counts, self.dp)
        book.reserve(account, {"train": self._level(counts, site.name)})
        sent = counts.round().clamp(min=0).long()
        return replace(state, trees={"released": {"counts": counts}}), replace(hello, counts=sent)

    def site(self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = fit) -> Visit:
        counts = to_cpu(state.trees["released"]["counts"])
        private = partial(self._fit, msg.round, counts)
        update, after = self.method.site(msg, state, site, net, rng, private)
        return replace(update, weight=float(counts.sum()), metrics={}), after

    def _fit(
        self,
        t: int,
        counts: Tensor,
        method: Method,
        model: Params,
        state: SiteState,
        site: Site,
        net: Net,
        rng: Stream,
    ) -> Trained:
        """The model of round t: trained now, or read again."""
        book, account = self._book(site, net, rng)
        level, size = self._level(counts, site.name), float(counts.sum())

        def make(generator: np.random.Generator) -> Params:
            with meter.phase("train"), noise(rng.at("noise").number()):
                return to_cpu(dp_sgd(net, model, site.train, self.local, level, self.dp.clip, size, generator))

        if t >= self.dp.rounds:
            raise PrivacyError(
                f"dp.rounds is {self.dp.rounds}, but this is round {t + 1}; use rounds={self.dp.rounds}"
            )
        trained = book.once(account, "train", f"round {t}, {digest_of(model)}", make)
        params = to_device({name: trained[name] for name in model})
        if not all(bool(value.isfinite().all()) for value in params.values()):
            raise DivergedError(f"training diverged; lower local.lr, which is {self.local.lr:g}")
        return Trained(params, level.each, math.nan)

    def _level(self, counts: Tensor, site: str) -> Level:
        """The noise of all rounds: q = batch / n, and 1 / q steps in an epoch."""
        size, dp, local = float(counts.sum()), self.dp, self.local
        if size < 2 * self.dp.counts**-0.5 / self.dp.mu:
            raise PrivacyError(
                f"site {site!r} has about {plural(max(0, round(size)), 'image')} by its noisy counts, too few to "
                "train on; use a larger dp.epsilon or dp.counts"
            )
        rate = min(1.0, local.batch / size)
        each = local.steps or local.epochs * math.ceil(1 / rate)
        counted = Level(1 / (dp.mu * math.sqrt(dp.counts)))
        if rate == 1:
            sigma = math.sqrt(max(1, dp.rounds) * each / (1 - dp.counts)) / dp.mu
        else:
            sigma = noise_for(dp.epsilon, dp.delta, rate, max(1, dp.rounds) * each, counted)
        return Level(sigma, rate, max(1, dp.rounds), each)

    def _book(self, site: Site, net: Net, rng: Stream) -> tuple[Book, str]:
        """The account of these settings at this site."""
        local = {name: value for name, value in asdict(self.local).items() if value is not None}
        asked = {"dp": asdict(replace(self.dp, total=0.0, test_key="")), "local": local}
        del asked["dp"]["scores"]  # not used here
        made_from = {"site": site.name, "data": site_digest(site), "net": net.label, **asked}
        account = f"dp-sgd, seed {rng.seed}, {digest(json.dumps(made_from, sort_keys=True).encode())}"
        return open_book(site.name, self.dp), account


def dp_sgd(
    net: Net,
    start: Params,
    data: LabelledSet,
    how: Local,
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
        chosen = torch.from_numpy((generator.random(len(data)) < level.rate).nonzero()[0])
        sums = clipped_gradients(module, leaves, data, chosen, clip)
        meter.spend(int(3 * level.rate * size * net.flops))
        noisy = [s.double() + level.sigma * clip * gaussian(generator, tuple(s.shape)).to(s.device) for s in sums]
        grads = [(each / (level.rate * size)).to(leaf) for each, leaf in zip(noisy, leaves, strict=True)]
        velocity = descend(leaves, grads, velocity, how)
    return {name: value.detach().clone() for name, value in module._module.state_dict().items()}


def clipped_gradients(
    module: Any, leaves: list[Any], data: LabelledSet, chosen: Tensor, clip: float
) -> list[Tensor]:
    """sum_i clip_C(grad CE(x_i)) over the chosen images; the norm is over all parameters together."""
    sums = [torch.zeros_like(leaf) for leaf in leaves]
    for index in chosen.split(TOGETHER) if len(chosen) else ():
        part = data.take(index)
        with _unwarned():
            F.cross_entropy(module(part.x)[1], part.y, reduction="sum").backward()
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
        raise SettingError('dp-sgd needs Opacus; install it with pip install "fedlgd[dp]"') from error
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
        raise NetError(
            f"Opacus cannot compute the gradients of single images in net {net.label!r} ({error}); use net=convnet"
        ) from error
    for leaf in wrapped.parameters():
        leaf.grad_sample = None
    return wrapped
