"""FedProto (Tan et al., AAAI 2022): sites share class prototypes; models stay local or are averaged."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedlgd.core.meter import phase
from fedlgd.core.tree import Mean
from fedlgd.core.types import Broadcast, Hello, LabelledSet, Params, ServerState, Site, SiteState
from fedlgd.methods import common
from fedlgd.methods.common import Batch, Term, fit
from fedlgd.methods.protocol import WEIGHTS, Expected, Fit, Net, Stream, Updates, Visit, setting
from fedlgd.methods.registry import register

Weigh = Literal["counts", "uniform"]


def prototype_gap(features: Tensor, labels: Tensor, prototypes: Tensor) -> Tensor:
    """mean over batch and dimensions of (psi(x) - C_y)^2; a class without prototype (a NaN row) contributes 0."""
    target = prototypes[labels]
    return torch.where(target.isnan(), 0, features - target.nan_to_num()).square().mean()


def site_prototypes(net: Net, params: Params, data: LabelledSet, chunk: int = 256) -> Params:
    """The mean feature of each class under the final local model, and its number of images."""
    with phase("train"):
        features = common.outputs_on(net, params, data, chunk).features
    counts = data.counts(net.classes).to(features)
    return {"means": common.means_by_class(features, data, net.classes), "counts": counts}


def mean_prototypes(old: Tensor | None, sent: Iterable[Params], weigh: Weigh) -> Tensor:
    """C_k = sum_c w_c C_{c,k} / sum w_c over the sites that have class k; w_c their counts, or 1.

    A class that no site sent keeps its old prototype.
    """
    total = weight = torch.zeros((), dtype=torch.float64)
    for upload in sent:
        means, counts = upload["means"], upload["counts"]
        w = counts if weigh == "counts" else (counts > 0).to(counts)
        total, weight = total + (w[:, None] * means).double(), weight + w.double()
    mean = (total / weight[:, None]).to(means.dtype)
    return mean if old is None else torch.where(mean.isnan(), old, mean)


def _term(msg: Broadcast, weight: float) -> list[Term]:
    """lambda * prototype gap, as soon as prototypes exist."""
    if "prototypes" not in msg.trees or weight == 0:
        return []
    prototypes = msg.trees["prototypes"]["means"]

    def near_prototypes(w: Params, batch: Batch) -> Tensor:
        return weight * prototype_gap(batch.features, batch.y, prototypes)

    return [near_prototypes]


@dataclass(frozen=True, kw_only=True)
class Prototypes(common.Training):
    """Settings of both variants, and what their sites send."""

    sends: ClassVar[Mapping[str, str]] = {**WEIGHTS, "trees/prototypes": "prototypes"}

    weight: float = setting(1.0, "Weight lambda of the prototype term; 0: off.", least=0)
    weigh: Weigh = setting(
        "counts", "Average prototypes by `counts` of images, or `uniform` as in the original code."
    )

    def expects(self, msg: Broadcast, net: Net, hello: Hello) -> Expected:
        """The model that was sent, if any, and the prototypes with their counts."""
        sent = {"means": torch.empty(net.classes, net.features), "counts": torch.empty(net.classes)}
        return Expected(msg.params, {"prototypes": sent}, {"trees/prototypes/counts": 0})

    def _average(self, state: ServerState, uploads: Iterable[Params]) -> dict[str, Params]:
        """The new prototypes."""
        old = state.trees.get("prototypes", {}).get("means")
        return {"prototypes": {"means": mean_prototypes(old, uploads, self.weigh)}}


@register
@dataclass(frozen=True, kw_only=True)
class FedProtoLocal(Prototypes):
    r"""The original: CE + lambda * MSE(psi(x), C_y); prototypes are averaged, models stay at their site.

    Each site is evaluated with its own model: personalised accuracy, not comparable with a global model.
    """

    name: ClassVar[str] = "fedproto-local"
    about: ClassVar[str] = (
        "FedProto (Tan et al., AAAI 2022): only class prototypes are shared, each site has its model"
    )
    personal: ClassVar[bool] = True
    sends: ClassVar[Mapping[str, str]] = {"metrics/loss": "loss", "trees/prototypes": "prototypes"}
    stackable: ClassVar[tuple[str, ...]] = ("regulariser", "momentum")

    enrol, start = common.enrol, common.start

    def broadcast(self, state: ServerState, site: str) -> Broadcast:
        return Broadcast(round=state.round, params={}, trees=state.trees)

    def site(self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = fit) -> Visit:
        model = state.trees.get("model") or common.first_model(net, rng)
        trained = fit(self, model, state, site, net, rng, terms=_term(msg, self.weight))
        prototypes = site_prototypes(net, trained.params, common.training_set(state, site))
        sent = replace(common.update(site, state, trained), params={}, trees={"prototypes": prototypes})
        return sent, replace(state, trees={"model": trained.params})

    def server(self, state: ServerState, updates: Updates, net: Net, rng: Stream) -> ServerState:
        uploads = (update.trees["prototypes"] for update in updates)
        return replace(state, trees=self._average(state, uploads), round=state.round + 1)

    def model_at(self, params: Params, kept: SiteState) -> Params:
        return kept.trees.get("model") or params


@register
@dataclass(frozen=True, kw_only=True)
class FedProtoAvg(Prototypes):
    r"""CE + lambda * MSE(psi(x), C_y), then theta_{t+1} = sum_c p_c theta_c: one global model."""

    name: ClassVar[str] = "fedproto-avg"
    about: ClassVar[str] = "FedProto (Tan et al., AAAI 2022), and models are averaged, too: one global model"

    enrol, start = common.enrol, common.start

    def broadcast(self, state: ServerState, site: str) -> Broadcast:
        return Broadcast(round=state.round, params=state.params, trees=state.trees)

    def site(self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = fit) -> Visit:
        trained = fit(self, msg.params, state, site, net, rng, terms=_term(msg, self.weight))
        prototypes = site_prototypes(net, trained.params, common.training_set(state, site))
        return replace(common.update(site, state, trained), trees={"prototypes": prototypes}), state

    def server(self, state: ServerState, updates: Updates, net: Net, rng: Stream) -> ServerState:
        models, uploads = Mean(), []
        for update in updates:
            models.add(update.params, update.weight)
            uploads.append(update.trees["prototypes"])
        trees = self._average(state, uploads)
        return replace(state, params=models.value(), trees=trees, round=state.round + 1)
