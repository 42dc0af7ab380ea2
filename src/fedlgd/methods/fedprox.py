"""FedProx (Li et al., MLSys 2020): stay near the model you were sent."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fedlgd.core.errors import check
from fedlgd.core.net import Net
from fedlgd.core.rng import Stream
from fedlgd.core.tree import only, sqnorm, sub
from fedlgd.core.types import Broadcast, Params, Site, SiteState, Update
from fedlgd.methods import common
from fedlgd.methods.objective import Batch, Term
from fedlgd.methods.registry import register


def proximal(w: Params, start: Params, mu: float, trainable: frozenset[str]) -> Tensor:
    """mu/2 ||w - theta_t||^2 over the trainable parameters."""
    return mu / 2 * sqnorm(sub(only(w, trainable), only(start, trainable)))


def proximal_terms(start: Params, mu: float, net: Net) -> list[Term]:
    """The proximal term for a step, or nothing at mu = 0."""

    def near(w: Params, batch: Batch) -> Tensor:
        return proximal(w, start, mu, net.trainable)

    return [near] if mu else []


@register
@dataclass(frozen=True, kw_only=True)
class FedProx(common.Averaging):
    r"""min_w F_c(w) + mu/2 ||w - theta_t||^2 at each site, then FedAvg's average.

    mu: weight of the proximal term; 0 is FedAvg.
    """

    name: ClassVar[str] = "fedprox"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = common.AVERAGING_PRESETS

    mu: float = 0.01

    def __post_init__(self) -> None:
        check(self.mu >= 0, "mu", self.mu, "use 0 (FedAvg) or a positive weight such as 0.01")

    enrol = common.enrol
    start = common.start
    broadcast = common.broadcast

    def site(self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream) -> tuple[Update, SiteState]:
        terms = proximal_terms(msg.params, self.mu, net)
        trained, state = common.train(self, msg, state, site, net, rng, terms)
        return common.update(site, state, trained), state

    server = common.average
