"""Methods of a user, written against `fedlgd.methods` alone: those of `examples/methods`, and three more."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedlgd import FedAvg, methods
from fedlgd.methods import Broadcast, Expected, Fit, Hello, Net, Params, ServerState, Site, SiteState, Stream, Visit


@dataclass(frozen=True, kw_only=True)
class FeatureMeans(methods.Training):
    """FedAvg whose sites also send the mean feature of each class; a term keeps features near the mean of all.

    means_of: `real` reads the private images in every round, also with `train_on="virtual"`.
    """

    name: ClassVar[str] = "feature-means"
    sends: ClassVar[dict[str, str]] = {**methods.Training.sends, "trees/means": "feature means"}

    means_of: Literal["training", "real"] = methods.setting(
        "training", "Means of what a site trains on, or of images."
    )
    weight: float = methods.setting(0.1, "Weight of the term; 0: off.", least=0)

    enrol, start = methods.enrol, methods.start

    @property
    def reads(self) -> tuple[str, ...]:
        return ("enrolment", "every") if self.means_of == "real" else super().reads

    def broadcast(self, state: ServerState, site: str) -> Broadcast:
        return Broadcast(round=state.round, params=state.params, trees=state.trees)

    def expects(self, msg: Broadcast, net: Net, hello: Hello) -> Expected:
        means = {"means": torch.empty(net.classes, net.features), "present": torch.empty(net.classes)}
        return Expected(msg.params, {"means": means}, {"trees/means/present": 0})

    def site(
        self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = methods.fit
    ) -> Visit:
        trained = fit(self, msg.params, state, site, net, rng, terms=self._terms(msg))
        data = site.train if self.means_of == "real" else methods.training_set(state, site)
        batch = data.take(slice(None))
        one_hot = torch.nn.functional.one_hot(batch.y, net.classes).float()
        sums = one_hot.T @ net.frozen(trained.params, batch.x).features
        counts = one_hot.sum(0)
        means = {"means": sums / counts.clamp(min=1)[:, None], "present": (counts > 0).float()}
        return replace(methods.update(site, state, trained), trees={"means": means}), state

    def _terms(self, msg: Broadcast) -> list[methods.Term]:
        if "means" not in msg.trees:
            return []
        means = msg.trees["means"]["means"]

        def near(w: Params, batch: methods.Batch) -> Tensor:
            return self.weight * (batch.features - means[batch.y]).square().mean()

        return [near]

    def server(self, state: ServerState, updates: methods.Updates, net: Net, rng: Stream) -> ServerState:
        after = methods.average(self, state, updates, net, rng)
        sent = [update.trees["means"] for update in updates]
        present = torch.stack([each["present"] for each in sent]).sum(0)
        total = torch.stack([each["means"] for each in sent]).sum(0)
        return replace(after, trees={"means": {"means": total / present.clamp(min=1)[:, None]}})


@dataclass(frozen=True, kw_only=True)
class FalseClaims(methods.Training):
    """Says that sites send weights and read their images at enrolment, and uploads images in every round."""

    name: ClassVar[str] = "false-claims"
    train_on: ClassVar[str] = "virtual"

    enrol, start, broadcast, server = methods.enrol, methods.start, methods.broadcast, methods.average

    def expects(self, msg: Broadcast, net: Net, hello: Hello) -> Expected:
        return Expected(msg.params, {"extra": {"x": torch.empty(1, *net.shape)}})

    def site(
        self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = methods.fit
    ) -> Visit:
        update, state = FedAvg.site(self, msg, state, site, net, rng, fit)
        return replace(update, trees={"extra": {"x": site.train.take(slice(1)).x}}), state
