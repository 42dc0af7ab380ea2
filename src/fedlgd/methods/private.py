"""Parts with differential privacy: DP-SGD at each site, and DP-FedAvg at the server.

The mechanisms (clipping, noise, accounting) are in `fedlgd.dp`. The registry imports this module when one of its
parts is asked for, so that other runs do not enter `fedlgd.dp`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from torch import Tensor

from fedlgd.core import meter
from fedlgd.core.device import noise, to_cpu, to_device
from fedlgd.core.errors import DivergedError, PrivacyError, SettingError
from fedlgd.core.guard import blank_site, unsealed
from fedlgd.core.train import Local
from fedlgd.core.types import Broadcast, Hello, Params, ServerState, Site, SiteState
from fedlgd.dp import training
from fedlgd.dp.ledger import params_digest
from fedlgd.methods.common import fit
from fedlgd.methods.parts import Part
from fedlgd.methods.protocol import Fit, Hellos, Method, Net, Presets, Stream, Trained, Updates, Visit

LOCAL = Local(batch=512, lr=0.5)
UNTUNED = {
    "local.lr": 0.5,
    "local.momentum": 0.0,
    "local.schedule": "constant",
    "local.augment": (),
    "local.steps": 0,
}
"""Noisy gradients are not trained on like others."""


@dataclass(frozen=True, kw_only=True)
class DpSgd(Part):
    """Trains on real images by DP-SGD. Counts, weights and models are noisy; losses are not sent."""

    kind: ClassVar[str] = "dp-sgd"
    title: ClassVar[str] = "DP-SGD"
    allows: ClassVar[tuple[str, ...]] = ("robust", "fedopt")
    sends: ClassVar[Mapping[str, str]] = {"params": "weights"}
    presets: ClassVar[Presets] = {
        "paper": {"train_on": "real"},
        "quick": {"train_on": "real", **UNTUNED},
        "strong": {"train_on": "real", **UNTUNED},
    }

    dp: training.Dp = training.Dp()

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.method, Part):
            raise SettingError("dp-sgd-after-part", part=self.method.stack)
        if self.train_on != "real":
            raise SettingError("dp-sgd-on-virtual", train_on=self.train_on)
        if not self.local.plain:
            raise SettingError("dp-sgd-with-adam", optimiser=self.local.optimiser)

    @property
    def budget(self) -> training.Dp:
        return self.dp

    def enrol(self, site: Site, net: Net, rng: Stream) -> tuple[SiteState, Hello]:
        state, hello = self.method.enrol(blank_site(site), net, rng)
        book, account = training.training_account(self.dp, self.local, site, net, rng.seed)
        counts = training.reserve_training(self.dp, self.local, site, net, book, account)
        sent = counts.round().clamp(min=0).long()
        return replace(state, trees={"released": {"counts": counts}}), replace(hello, counts=sent)

    def site(self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = fit) -> Visit:
        counts = to_cpu(state.trees["released"]["counts"])

        def private(method: Method, model: Params, *_: object) -> Trained:
            return self._train(msg.round, counts, model, site, net, rng)

        update, after = self.method.site(msg, state, blank_site(site), net, rng, private)
        return replace(update, weight=float(counts.sum()), metrics={}), after

    def _train(self, t: int, counts: Tensor, model: Params, site: Site, net: Net, rng: Stream) -> Trained:
        """The model of round t: trained now, or read again."""
        book, account = training.training_account(self.dp, self.local, site, net, rng.seed)
        level, size = training.training_level(self.dp, self.local, counts, site.name), float(counts.sum())

        def make(generator: np.random.Generator) -> Params:
            with meter.phase("train"), noise(rng.at("noise").number()):
                how = (self.local, level, self.dp.clip, size, generator)
                return to_cpu(training.dp_sgd(net, model, unsealed(site).train, *how))

        if t >= self.dp.rounds:
            raise PrivacyError("round-beyond-budget", rounds=self.dp.rounds, round=t + 1)
        trained = book.once(account, "train", f"round {t}, {params_digest(model)}", make)
        params = to_device({name: trained[name] for name in model})
        if not all(bool(value.isfinite().all()) for value in params.values()):
            raise DivergedError("training-diverged", lr=self.local.lr)
        return Trained(params, level.each, math.nan)


@dataclass(frozen=True, kw_only=True)
class DpFedAvg(Part):
    """Averages clipped changes of the model with equal weights, and adds noise."""

    kind: ClassVar[str] = "dp-fedavg"
    title: ClassVar[str] = "DP-FedAvg"
    allows: ClassVar[tuple[str, ...]] = ("fedopt",)

    site_dp: training.SiteDp = training.SiteDp()

    @property
    def budget(self) -> training.SiteDp:
        return self.site_dp

    def start(self, params: Params, hellos: Hellos, net: Net, rng: Stream) -> ServerState:
        training.check_sites(len(hellos), net, self.site_dp)
        return self.method.start(params, hellos, net, rng)

    def server(self, state: ServerState, updates: Updates, net: Net, rng: Stream) -> ServerState:
        params = training.dp_fedavg(state.params, updates, net, self.site_dp, state.round)
        return replace(state, params=params, round=state.round + 1)
