"""CollabDM (Holland et al., ECAI 2024): sites send mean features under random networks, the server distils"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedlgd.core.device import to_cpu, to_device
from fedlgd.core.errors import SettingError
from fedlgd.core.meter import phase, track
from fedlgd.core.train import Local
from fedlgd.core.types import Broadcast, Hello, Params, ServerState, Site, SiteState, Update, VirtualSet
from fedlgd.distill import distribution
from fedlgd.distill.augment import Transform
from fedlgd.distill.init import from_noise, labels_for, pick
from fedlgd.distill.settings import Distil
from fedlgd.methods import common
from fedlgd.methods.protocol import Expected, Fit, Hellos, Net, Presets, Stream, Updates, Visit, setting
from fedlgd.methods.registry import register

PUBLISHED = {
    "distil.plan": "exact",
    "distil.steps": 401,
    "distil.real_per_class": 100,
    "distil.width": 0,
    "distil.smooth": 0.0,
    "distil.lr": 10.0,
    "weigh": "sites",
    "local.epochs": 1000,
}
"""401 networks, each for one step, and 100 real images of a class under each."""


def public_draw(net: Net, distil: Distil, seed: int, i: int) -> tuple[Params, list[Transform]]:
    """The i-th random network, and its augmentation of each class: the same for all who know the seed."""
    rng, classes = Stream(seed).at("collab"), torch.arange(net.classes)
    transforms = distribution.draw_transforms(classes, distil, net.shape[1:], rng.at("augment", i))
    return net.init(rng.at("net", i)), transforms


def site_means(site: Site, net: Net, distil: Distil, rng: Stream) -> Tensor:
    """m_{c,k}(s) = mean psi_s(A_{s,k} x) over images x of class k, for each draw s; 0 for a class without images.

    Of a class with more than `distil.real_per_class` images, so many enter each draw, chosen at random.
    """
    members = {k: own for k in range(net.classes) if len(own := site.train.of_class(k))}
    present, most = list(members), distil.real_per_class
    found = torch.zeros(distil.distinct, net.classes, net.features)
    with phase("distil"):
        for i in track("distil", distil.distinct):
            params, transforms = public_draw(net, distil, rng.seed, i)
            generator = rng.generator("real", i)
            chosen = [each if len(each) <= most else pick(each, most, generator) for each in members.values()]
            means = distribution.real_means(net, params, site.train, chosen, [transforms[k] for k in present])
            found[i, present] = to_cpu(means)
    return found


def joined_means(means: Sequence[Tensor], weights: Tensor) -> Tensor:
    """M_k(s) = sum_c w_{c,k} m_{c,k}(s) / sum_c w_{c,k},  w of (sites, classes); 0 for a class of weight 0."""
    weights = weights.double()
    total = torch.zeros_like(means[0], dtype=torch.float64)
    for own, each in zip(weights, means, strict=True):
        total += own[:, None] * each.double()
    return (total / weights.sum(0).clamp(min=1)[:, None]).to(means[0].dtype)


@register
@dataclass(frozen=True, kw_only=True)
class CollabDM(common.Training):
    r"""Site, once:  m_{c,k}(s) = mean psi_s(A_{s,k} x) for networks s that all draw from the seed of the run.
    Server:  V <- V - lr d/dV sum_k || M_k(s) - mean psi_s(A_{s,k} v) ||^2,  M_k(s) = weighted mean of m_{c,k}(s),
    then theta_{t+1} = SGD from theta_t on CE(V), with the settings `local`.

    The paper has one round. In more, the server goes on with the same means, and sites send nothing. With
    `distil.private.epsilon` each mean is one release of a noisy sum; all else is post-processing of them.
    """

    name: ClassVar[str] = "collabdm"
    presets: ClassVar[Presets] = {
        "paper": PUBLISHED,
        "quick": {
            **common.TUNED,
            "local.steps": 200,
            "distil.steps": 200,
            "distil.reuse": 8,
            "distil.per_class": 20,
            "distil.lr": 0.5,
        },
    }
    stackable: ClassVar[tuple[str, ...]] = ()
    train_on: ClassVar[Literal["nothing"]] = "nothing"  # type: ignore[misc]
    sends: ClassVar[Mapping[str, str]] = {"hello/trees/means": "feature means"}

    weigh: Literal["counts", "sites"] = setting(
        "counts", "Weight of a site in the mean of a class: its `counts` of images, or the same for all `sites`."
    )
    local: Local = Local(epochs=300, batch=256, momentum=0.9, weight_decay=5e-4)
    distil: Distil = Distil(per_class=50, start="noise", steps=1000, pairs=50, reuse=20, real_per_class=1000)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.distil.start != "noise":
            raise SettingError("collab-start", start=self.distil.start)
        if self.distil.match != "means":
            raise SettingError("collab-match", match=self.distil.match)
        if self.distil.private.on:  # a release for each draw, and nothing is refined
            private = replace(self.distil.private, releases=max(1, self.distil.distinct), refine=0.0)
            object.__setattr__(self, "distil", replace(self.distil, private=private))

    def enrol(self, site: Site, net: Net, rng: Stream) -> tuple[SiteState, Hello]:
        random, _ = distribution.random_networks(net, self.distil)
        if self.distil.private.on:
            from fedlgd.dp.distil import released_means

            draw = partial(public_draw, random, self.distil, rng.seed)
            means, counts = released_means(site, net, self.distil, rng.seed, draw)
        else:
            means, counts = site_means(site, random, self.distil, rng), site.train.counts(net.classes)
        return SiteState(), Hello(site=site.name, counts=counts, trees={"means": {"means": means}})

    def draws(self, net: Net, seed: int) -> Iterator[tuple[Net, Params, list[Transform]]]:
        """The networks that all know, each with its augmentation of each class: an attacker has them, too."""
        random, distil = distribution.random_networks(net, self.distil)
        return ((random, *public_draw(random, distil, seed, i)) for i in range(distil.distinct))

    def expects_hello(self, net: Net) -> Hello:
        random, _ = distribution.random_networks(net, self.distil)
        means = torch.empty(self.distil.distinct, net.classes, random.features)
        counts = torch.empty(net.classes, dtype=torch.int64)
        return Hello(site="", counts=counts, trees={"means": {"means": means}})

    def start(self, params: Params, hellos: Hellos, net: Net, rng: Stream) -> ServerState:
        """V from noise, for every class that a site has, and the means of all sites."""
        counts = torch.stack([hello.counts for hello in hellos])
        weights = counts if self.weigh == "counts" else counts.clamp(max=1)
        means = joined_means([hello.trees["means"]["means"] for hello in hellos], weights)
        labels = labels_for(counts.sum(0).nonzero().flatten().tolist(), self.distil.per_class)
        images = to_device(from_noise(len(labels), net.shape, rng.generator("images")))
        virtual = VirtualSet(
            images=images, labels=to_device(labels), origin="server", round=-1, tiles=self.distil.tiles
        )
        return ServerState(params=params, anchors=virtual, trees={"means": {"means": means}})

    def broadcast(self, state: ServerState, site: str) -> Broadcast:
        return Broadcast(round=state.round, params={})

    def expects(self, msg: Broadcast, net: Net, hello: Hello) -> Expected:
        return Expected({})

    def site(
        self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = common.fit
    ) -> Visit:
        """Nothing is left to do; `fit` is not used."""
        return Update(site=site.name, params={}, weight=1.0), state

    def server(self, state: ServerState, updates: Updates, net: Net, rng: Stream) -> ServerState:
        for _ in updates:
            pass
        assert state.anchors is not None
        images = self.matched(state.anchors, state.trees["means"]["means"], net, rng.seed)
        distribution.check_finite(images, self.distil.lr, "distillation at the server")
        virtual = replace(state.anchors, images=images, round=state.round)
        trained = common.fit_on(net, state.params, virtual.data, self.local, rng)
        return replace(state, params=trained.params, anchors=virtual, round=state.round + 1)

    def matched(self, virtual: VirtualSet, means: Tensor, net: Net, seed: int) -> Tensor:
        """The images of the server after `distil.steps` on the means of the sites."""
        random, distil = distribution.random_networks(net, self.distil)
        classes = to_cpu(virtual.labels.unique())

        def pair(i: int) -> distribution.Pair:
            params, transforms = public_draw(random, distil, seed, i)
            return distribution.Pair(params, [transforms[k] for k in classes], to_device(means[i, classes]))

        optimiser, images = distribution.PixelOptimiser(distil, virtual.labels), virtual.images
        with phase("distil"):
            pairs = distribution.scheduled(distil, pair)
            for _, each in zip(track("distil", distil.steps), pairs, strict=False):
                gradient = distribution.image_gradient(random, each, images, virtual.labels, distil.tiles)
                images = optimiser(images, gradient)
        return images
