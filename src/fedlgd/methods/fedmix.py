"""FedMix (Yoon et al., ICLR 2021): mixes images with means of images that sites share once

A site splits its images at random into groups, and uploads the mean image and the mean label of each at enrolment.
The server pools them and sends the pool to every site once. Sites then approximate Mixup (Zhang et al., ICLR 2018)
of their own images with those of others, which they do not have.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedlgd.core import meter
from fedlgd.core.device import to_device, uncompiled
from fedlgd.core.errors import PrivacyError
from fedlgd.core.losses import cross_entropy
from fedlgd.core.net import Output
from fedlgd.core.types import Broadcast, Hello, LabelledSet, Params, ServerState, Site, SiteState
from fedlgd.methods import common
from fedlgd.methods.common import Criterion, fit
from fedlgd.methods.protocol import WEIGHTS, Fit, Hellos, Net, Stream, Visit, setting
from fedlgd.methods.registry import register

MEANS, POOL = "means", "pool"  # what a site uploads, and what the server sends
FORMS = ("images", "labels")  # of each mean; other trees of the server are those of parts
RECOGNISABLE = 8  # a mean of fewer images can show one of them
CHUNK = 256  # images in memory while a mean is computed
TAYLOR_PASSES = 3  # beyond the 3 of training: the slope of the loss (1), and its backward pass (2)

Mixed = tuple[Tensor, Output]
"""The loss of a mixed batch, and the output that it is computed from."""


def group_means(data: LabelledSet, groups: Sequence[Tensor], classes: int, most: int) -> Params:
    """xbar_g = mean_{i in g} x_i,  ybar_g = mean_{i in g} onehot(y_i)  of each group, as `most` rows.

    Messages of all sites have the same form: a row without a group is 0, also its label.
    """
    labels = to_device(torch.zeros(most, classes))
    images = to_device(torch.zeros(most, *data.take(slice(0, 1)).x.shape[1:]))
    for g, group in enumerate(groups):
        total = sum(data.take(part).x.double().sum(0) for part in group.split(CHUNK))
        images[g] = total / len(group)
        labels[g] = torch.bincount(to_device(data.y[group]), minlength=classes).double() / len(group)
    return {"images": images, "labels": labels}


def naive_mixup(net: Net, w: Params, part: LabelledSet, mean: Tensor, label: Tensor, share: float) -> Mixed:
    r"""(1 - lambda) CE(f(x~), y) + lambda CE(f(x~), ybar),   x~ = (1 - lambda) x + lambda xbar"""
    out = net(w, (1 - share) * part.x + share * mean)
    return (1 - share) * cross_entropy(out.logits, part.y) + share * soft_cross_entropy(out.logits, label), out


def taylor_mixup(net: Net, w: Params, part: LabelledSet, mean: Tensor, label: Tensor, share: float) -> Mixed:
    r"""`naive_mixup` to the first order in lambda xbar, around x' = (1 - lambda) x:

    (1 - lambda) CE(f(x'), y) + lambda CE(f(x'), ybar) + lambda (1 - lambda) sum_i <d CE(f(x'), y) / dx'_i, xbar>

    CE is a mean over the batch, so its slope in x'_i has the 1 / B of the mean, and the last term is a sum.
    """
    x = ((1 - share) * part.x).requires_grad_()
    with uncompiled():
        out = net(w, x)
    own = cross_entropy(out.logits, part.y)
    (slope,) = torch.autograd.grad(own, x, create_graph=True)
    meter.spend(TAYLOR_PASSES * len(x) * net.flops)
    own, others = (1 - share) * own, share * soft_cross_entropy(out.logits, label)
    return own + others + share * (1 - share) * (slope * mean).sum(), out


def soft_cross_entropy(logits: Tensor, label: Tensor) -> Tensor:
    """mean_i -sum_k ybar_k log softmax(f(x_i))[k]"""
    return F.cross_entropy(logits, label.to(logits).expand_as(logits))


@dataclass(frozen=True, kw_only=True)
class MeanAugmented(common.Training):
    """What both variants have in common: the means, the pool, and their settings."""

    sends: ClassVar[Mapping[str, str]] = {**WEIGHTS, f"hello/trees/{MEANS}": "image means"}
    stackable: ClassVar[tuple[str, ...]] = ("regulariser", "momentum", "robust", "fedopt")
    taylor: ClassVar[bool]
    """Whether Mixup is expanded, or taken with a mean as if that were an image."""

    share: float = setting(0.1, "Share lambda of a mean in a mixed image; 0 is FedAvg.", least=0, below=1)
    means: int = setting(
        1, "Most means that a site sends, of equally many images each; 1: one of all.", least=1, most=1_000_000
    )
    per_mean: int = setting(
        RECOGNISABLE, "Fewest images M in a mean; a site with fewer images sends none.", least=1, most=1_000_000
    )
    allow_copies: bool = setting(False, "Allow means of fewer than 8 images, which can show one of them.")
    own: bool = setting(False, "Also mix with the means of the site itself, not only with those of others.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.per_mean < RECOGNISABLE and not self.allow_copies:
            raise PrivacyError("means-of-few-images", per_mean=self.per_mean, least=RECOGNISABLE)

    def enrol(self, site: Site, net: Net, rng: Stream) -> tuple[SiteState, Hello]:
        state, hello = common.enrol(self, site, net, rng)
        data = common.training_set(state, site)
        count = min(self.means, len(data) // self.per_mean)
        order = torch.randperm(len(data), generator=rng.generator(MEANS))
        groups = order.tensor_split(count) if count else ()
        return state, replace(hello, trees={MEANS: group_means(data, groups, net.classes, self.means)})

    def expects_hello(self, net: Net) -> Hello:
        form = {"images": torch.empty(self.means, *net.shape), "labels": torch.empty(self.means, net.classes)}
        return replace(super().expects_hello(net), trees={MEANS: form})

    def start(self, params: Params, hellos: Hellos, net: Net, rng: Stream) -> ServerState:
        """The means of each site, without empty rows. A site that enrols later adds none."""
        there = {hello.site: hello.trees[MEANS]["labels"].sum(1) > 0 for hello in hellos}
        pool = {
            form: {hello.site: hello.trees[MEANS][form][there[hello.site]] for hello in hellos} for form in FORMS
        }
        return ServerState(params=params, trees=pool)

    def broadcast(self, state: ServerState, site: str) -> Broadcast:
        """The model, and the pool unless the site has it."""
        message = common.broadcast(self, state, site)
        if site in state.held:
            return message
        pool = {
            form: torch.cat(
                [rows for name, rows in state.trees[form].items() if self.own or name != site] or [torch.empty(0)]
            )
            for form in FORMS
        }
        return replace(message, trees={POOL: pool}, kept=0) if len(pool["images"]) else message

    def site(self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = fit) -> Visit:
        if POOL in msg.trees:
            state = replace(state, trees={**state.trees, POOL: msg.trees[POOL]})
        if self.share and POOL in state.trees:
            mixed = self._mixed(state.trees[POOL], rng)
            trained = fit(self, msg.params, state, site, net, rng, criterion=mixed)
        else:
            trained = fit(self, msg.params, state, site, net, rng)
        return common.update(site, state, trained), state

    server = common.average

    def _mixed(self, pool: Params, rng: Stream) -> Criterion:
        """The loss of a batch with one mean of the pool, drawn for each batch."""
        generator, mixup = rng.generator(POOL), taylor_mixup if self.taylor else naive_mixup

        def criterion(net: Net, w: Params, part: LabelledSet) -> Mixed:
            g = int(torch.randint(len(pool["images"]), (), generator=generator))
            return mixup(net, w, part, pool["images"][g], pool["labels"][g], self.share)

        return criterion


@register
@dataclass(frozen=True, kw_only=True)
class FedMix(MeanAugmented):
    r"""(1-l) CE(x', y) + l CE(x', ybar) + l (1-l) <dCE/dx', xbar>,  x' = (1-l) x,  l = lambda; then FedAvg.

    (xbar, ybar): the mean of a group of images of another site. Without lambda^2 it is Mixup with the whole group.
    """

    name: ClassVar[str] = "fedmix"

    share: float = setting(0.05, "Share lambda of a mean in a mixed image; 0 is FedAvg.", least=0, below=1)
    taylor: ClassVar[bool] = True


@register
@dataclass(frozen=True, kw_only=True)
class NaiveMix(MeanAugmented):
    r"""(1-l) CE(x~, y) + l CE(x~, ybar),  x~ = (1-l) x + l xbar,  l = lambda: Mixup with means; then FedAvg."""

    name: ClassVar[str] = "fedmix-naive"
    about: ClassVar[str] = "NaiveMix (Yoon et al., ICLR 2021): Mixup with the means of images that sites share once"

    taylor: ClassVar[bool] = False
