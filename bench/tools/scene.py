"""The inputs of both sides: images of one site, a model before and after a round, virtual sets, anchors."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bench import published
from fedlgd.core.net import Net
from fedlgd.core.types import LabelledSet, Params, Site, Stream, VirtualSet
from fedlgd.data.federation import pooled
from fedlgd.data.suites import load
from fedlgd.distill.augment import Transform, draw_transform
from fedlgd.distill.init import class_statistics, from_noise, from_statistics, labels_for
from fedlgd.distill.settings import Distil
from fedlgd.nets.registry import build_net

LR = 0.01
SITES = 5  # number of averaged models


@dataclass(frozen=True)
class Scene:
    """The sizes of the paper: 10 virtual images and 10 anchors per class, batches of 32."""

    site: Site
    net: Net
    width: int
    per_class: int = 10
    seed: int = 0

    @classmethod
    def of(cls, data: str, width: int, per_class: int = 10) -> "Scene":
        """The scene of the first site of a federation, or of all sites if a class has fewer than 256 images."""
        federation = load(data)
        site = federation.sites[0]
        if int(site.train.counts(len(site.classes)).min()) < published.REAL_PER_CLASS:
            site = pooled(federation).sites[0]
        net = build_net("convnet", federation.shape, len(federation.classes), {"width": width})
        return cls(site, net, width, per_class)

    @property
    def rng(self) -> Stream:
        return Stream(self.seed).at("bench")

    @cached_property
    def classes(self) -> list[int]:
        return list(range(self.net.classes))

    @cached_property
    def labels(self) -> Tensor:
        return labels_for(self.classes, self.per_class)

    @cached_property
    def published_start(self) -> Tensor:
        """Noise with class statistics divided by the size of the site, as in the released code."""
        statistics = class_statistics(self.site.train, self.classes, "site")
        return from_statistics(statistics, self.per_class, self.net.shape[1:], 1.0, self.rng.generator("start"))

    @cached_property
    def virtual(self) -> VirtualSet:
        return VirtualSet(images=self.published_start, labels=self.labels, origin=self.site.name, round=-1)

    @cached_property
    def anchors(self) -> VirtualSet:
        labels = labels_for(self.classes, 10)
        images = from_noise(len(labels), self.net.shape, self.rng.generator("anchors"))
        return VirtualSet(images=images, labels=labels, origin="server", round=-1)

    @cached_property
    def joined(self) -> LabelledSet:
        """V^c and V^g: the training set of a site."""
        x = torch.cat([self.virtual.images, self.anchors.images])
        return LabelledSet(x, torch.cat([self.labels, self.anchors.labels]))

    @cached_property
    def order(self) -> Tensor:
        return torch.randperm(len(self.joined), generator=self.rng.generator("order"))

    @cached_property
    def params(self) -> Params:
        return self.net.init(self.rng.at("init"))

    @cached_property
    def after(self) -> Params:
        """The model after one epoch on real images."""
        net = self.module()
        x, y = self.real.x[:1600], self.real.y[:1600]
        published.plain_epoch(net, x, y, LR, torch.arange(len(y)))
        return {name: value.detach().clone() for name, value in net.state_dict().items()}

    @cached_property
    def target(self) -> Params:
        return {name: (value - self.after[name]) / LR for name, value in self.params.items()}

    @cached_property
    def real(self) -> LabelledSet:
        """The training images in memory as in the released code: floats in random order."""
        order = torch.randperm(len(self.site.train), generator=self.rng.generator("real"))
        return self.site.train.take(order)

    @cached_property
    def members(self) -> list[Tensor]:
        return [self.real.of_class(k) for k in self.classes]

    def module(self, params: Params | None = None) -> published.ConvNet:
        """The network of the reference with the weights of the scene."""
        net = published.ConvNet(self.net.shape, self.net.classes, self.width)
        net.load_state_dict(params or self.params)
        return net

    def transforms(self, step: int) -> list[Transform]:
        generator = self.rng.at("augment", step).generator()
        return [draw_transform(Distil().augment, self.net.shape[1:], generator) for _ in self.classes]
