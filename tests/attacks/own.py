"""Methods of a user that send something else than weights, or something else than they declare."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedlgd.core.losses import class_means, cross_entropy
from fedlgd.core.settings import setting
from fedlgd.core.train import Local, sgd
from fedlgd.core.types import Broadcast, Hello, LabelledSet, Params, ServerState, Site, SiteState, Update
from fedlgd.dp.training import Dp
from fedlgd.methods import common
from fedlgd.methods.common import Training
from fedlgd.methods.protocol import Expected, Fit, Method, Net, Settings, Stream, Updates, Visit

PER_CLASS = 6


class OwnMethod(Method):
    """What these methods share: sites keep nothing, and get the model."""

    train_on: ClassVar[Literal["nothing"]] = "nothing"
    reads: ClassVar[tuple[str, ...]] = ("enrolment", "every")

    def enrol(self, site: Site, net: Net, rng: Stream) -> tuple[SiteState, Hello]:
        return SiteState(), Hello(site=site.name, counts=site.train.counts(net.classes))

    start, broadcast = common.start, common.broadcast


def pictures(site: Site, classes: int) -> Params:
    """The first images of each class; a class with fewer has empty ones."""
    x = torch.zeros(classes, PER_CLASS, *site.train.x.shape[1:])
    for k in range(classes):
        mine = site.train.take(site.train.of_class(k)[:PER_CLASS]).x
        x[k, : len(mine)] = mine
    return {"images": x.flatten(0, 1), "present": torch.ones(classes)}


def expected_pictures(net: Net) -> Params:
    return {"images": torch.empty(net.classes * PER_CLASS, *net.shape), "present": torch.empty(net.classes)}


@dataclass(frozen=True, kw_only=True)
class Uploading(Settings, OwnMethod):
    """FedDM without its steps: a site uploads images, and the server trains on those of all sites."""

    name: ClassVar[str] = "uploading"
    sends: ClassVar[Mapping[str, str]] = {"trees/pictures": "images"}

    copies: bool = setting(True, "Upload real images; else noise.")

    def site(self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = ...) -> Visit:
        sent = pictures(site, net.classes)
        if not self.copies:
            sent["images"] = torch.randn(sent["images"].shape, generator=rng.generator("noise"))
        return Update(site=site.name, params={}, weight=1.0, trees={"pictures": sent}), state

    def expects(self, msg: Broadcast, net: Net, hello: Hello) -> Expected:
        return Expected({}, {"pictures": expected_pictures(net)})

    def server(self, state: ServerState, updates: Updates, net: Net, rng: Stream) -> ServerState:
        sets = [update.trees["pictures"]["images"] for update in updates]
        labels = torch.arange(net.classes).repeat_interleave(PER_CLASS).repeat(len(sets))
        union = LabelledSet(torch.cat(sets), labels)

        def loss(w: Params, index: Tensor) -> Tensor:
            part = union.take(index)
            return cross_entropy(net(w, part.x).logits, part.y)

        trained = sgd(net, state.params, len(union), loss, Local(batch=8), rng)
        return replace(state, params=trained.params, round=state.round + 1)


@dataclass(frozen=True, kw_only=True)
class Averaging(Settings, OwnMethod):
    """Sites send the mean feature of each class, under the model or under a network the server does not know."""

    name: ClassVar[str] = "averaging"
    sends: ClassVar[Mapping[str, str]] = {"trees/averages": "feature means"}

    secret: bool = setting(False, "Use a network that the server does not know.")

    def site(self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = ...) -> Visit:
        data = site.train.take(slice(None))
        model = net.init(rng.at("secret")) if self.secret else msg.params
        means = class_means(net.frozen(model, data.x).features, data.y, torch.arange(net.classes)).nan_to_num()
        return Update(site=site.name, params={}, weight=1.0, trees={"averages": {"mean": means}}), state

    def expects(self, msg: Broadcast, net: Net, hello: Hello) -> Expected:
        return Expected({}, {"averages": {"mean": torch.empty(net.classes, net.features)}})

    def server(self, state: ServerState, updates: Updates, net: Net, rng: Stream) -> ServerState:
        return replace(state, round=state.round + 1)


@dataclass(frozen=True, kw_only=True)
class Denying(Training):
    """FedAvg, as it declares; beside the weights it sends images and numbers of which it says nothing."""

    name: ClassVar[str] = "denying"

    enrol, start, broadcast, server = common.enrol, common.start, common.broadcast, common.average

    def site(
        self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = common.fit
    ) -> Visit:
        trained = fit(self, msg.params, state, site, net, rng)
        trees = {"more": pictures(site, net.classes), "noise": {"numbers": torch.zeros(7)}}
        return replace(common.update(site, state, trained), trees=trees), state

    def expects(self, msg: Broadcast, net: Net, hello: Hello) -> Expected:
        return Expected(msg.params, {"more": expected_pictures(net), "noise": {"numbers": torch.empty(7)}})


@dataclass(frozen=True, kw_only=True)
class Promising(Denying):
    """It promises epsilon, and reads the images all the same."""

    name: ClassVar[str] = "promising"

    dp: Dp = Dp(epsilon=8.0, test_key="x")

    @property
    def budget(self) -> Dp:
        return self.dp
