"""VHL (Tang et al., ICML 2022): aligns features on images of an untrained generator

The images do not depend on data: an untrained style generator, or upsampled class noise. Each class has its own
latent Gaussian, and the same random stream gives the same set at every site.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from fedlgd.core.losses import cross_entropy, supervised_contrastive
from fedlgd.core.types import Broadcast, LabelledSet, Params, Scale, ServerState, Site, SiteState, VirtualSet
from fedlgd.distill.init import labels_for
from fedlgd.methods import common
from fedlgd.methods.anchors import stale_anchors
from fedlgd.methods.common import Batch, Term, fit
from fedlgd.methods.protocol import Fit, Hellos, Net, Stream, Visit, setting
from fedlgd.methods.registry import register

SCALE = Scale()  # of the images made here: from -1 to 1
LATENT, CHANNELS = 64, 64
CENTRE, WITHIN = 0.5, 0.3  # std of the class centres, and of a class around its centre


def from_style(classes: int, per_class: int, shape: tuple[int, int, int], rng: Stream) -> Tensor:
    """One random style generator maps z ~ N(m_k, 0.3^2 I), m_k ~ N(0, 0.5^2 I), to images of class k."""
    generator = rng.generator("style")
    centres = CENTRE * torch.randn(classes, 1, LATENT, generator=generator)
    z = (centres + WITHIN * torch.randn(classes, per_class, LATENT, generator=generator)).flatten(0, 1)
    return _as_input(_synthesise(z, shape, generator), shape)


def from_class_noise(classes: int, per_class: int, shape: tuple[int, int, int], rng: Stream) -> Tensor:
    """8x8 Gaussian images around a class mean ~ N(0, 1), std 0.5, upsampled bilinearly."""
    generator = rng.generator("noise")
    small = (shape[0], 8, 8)
    means = torch.randn(classes, 1, *small, generator=generator)
    images = means + 0.5 * torch.randn(classes, per_class, *small, generator=generator)
    return _as_input(images.flatten(0, 1), shape)


def _synthesise(z: Tensor, shape: tuple[int, int, int], generator: Generator) -> Tensor:
    """Mapping with pixel norm, a constant 4x4 input, modulated convolutions, and the sum of all RGB layers."""
    z = z * (z.square().mean(1, keepdim=True) + 1e-8).rsqrt()
    style = F.leaky_relu(z @ _weight(generator, LATENT, LATENT), 0.2)
    x = torch.randn(1, CHANNELS, 4, 4, generator=generator).expand(len(z), -1, -1, -1)
    image = torch.zeros(len(z), shape[0], 4, 4)
    for level in range(max(1, math.ceil(math.log2(max(shape[1:]) / 4)) + 1)):
        if level:
            x, image = _double(x), _double(image)
        kernel = torch.randn(CHANNELS, CHANNELS, 3, 3, generator=generator)
        x = F.leaky_relu(_modulated(x, style, kernel, generator), 0.2)
        rgb = torch.randn(shape[0], CHANNELS, 1, 1, generator=generator) / math.sqrt(CHANNELS)
        image = image + F.conv2d(x, rgb)
    return image


def _modulated(x: Tensor, style: Tensor, kernel: Tensor, generator: Generator) -> Tensor:
    """A convolution with input channels scaled by the style, and output normalised to unit variance."""
    scale = 1 + style @ _weight(generator, LATENT, x.shape[1])
    weight = kernel * scale[:, None, :, None, None]
    weight = weight * (weight.square().sum((2, 3, 4), keepdim=True) + 1e-8).rsqrt()
    n, out, channels, k, _ = weight.shape
    grouped = F.conv2d(x.reshape(1, n * channels, *x.shape[2:]), weight.flatten(0, 1), padding=k // 2, groups=n)
    return grouped.view(n, out, *x.shape[2:])


def _weight(generator: Generator, rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns, generator=generator) / math.sqrt(rows)


def _double(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)


def _as_input(images: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Resized, standardised to mean 0.5 and std 0.25, clipped to valid pixels, as input under `SCALE`."""
    resized = F.interpolate(images, size=shape[1:], mode="bilinear", align_corners=False, antialias=True)
    standard = (resized - resized.mean()) / resized.std()
    return ((0.5 + 0.25 * standard).clamp(0, 1) - 0.5) / 0.5


@register
@dataclass(frozen=True, kw_only=True)
class VHL(common.Training):
    r"""CE(batch) + alpha CE(V, y + K) + a SupCon(batch + V, V detached) + b SupCon(V), V the shared virtual images.

    V is made once, from the run's seed, for all sites: pictures, which each site normalises as it does its images,
    v -> (0.5 + 0.5 v - mean_c) / std_c. All weights 0 with labels "patch" is FedAvg.
    """

    name: ClassVar[str] = "vhl"

    stackable: ClassVar[tuple[str, ...]] = ("refine", "redraw", "regulariser", "momentum", "robust", "fedopt")

    per_class: int = setting(10, "Virtual images per class.", least=1, most=100_000)
    source: Literal["style", "noise"] = setting(
        "style", "Source of the images: an untrained `style` generator, or upsampled class `noise`."
    )
    labels: Literal["extra", "patch"] = setting(
        "extra", "`extra`: labels K..2K-1 and a head of 2K outputs; `patch`: labels 0..K-1."
    )
    alpha: float = setting(1.0, "Weight of the cross-entropy of the virtual images.", least=0)
    align: float = setting(1.0, "Weight a of the term that aligns features with the virtual images.", least=0)
    spread: float = setting(0.1, "Weight b of the term among the virtual images.", least=0)
    temperature: float = setting(0.07, "Temperature of both contrastive terms.", above=0)
    virtual_batch: int = setting(128, "Virtual images in each step.", least=1, most=1_000_000)

    def adapt(self, net: Net) -> Net:
        return net.widened(2 * net.classes) if self.labels == "extra" else net

    enrol = common.enrol

    def start(self, params: Params, hellos: Hellos, net: Net, rng: Stream) -> ServerState:
        make = from_style if self.source == "style" else from_class_noise
        images = make(net.classes, self.per_class, net.shape, rng.at("virtual"))
        labels = labels_for(range(net.classes), self.per_class)
        virtual = VirtualSet(images=images, labels=labels, origin="server", round=-1, scale=SCALE)
        return ServerState(params=params, anchors=virtual)

    def broadcast(self, state: ServerState, site: str) -> Broadcast:
        virtual = stale_anchors(state, site)
        return Broadcast(round=state.round, params=state.params, anchors=virtual)

    def site(self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = fit) -> Visit:
        if msg.anchors:
            state = replace(state, anchors=msg.anchors)
        assert state.anchors is not None
        terms = self._terms(state.anchors.under(site.train.scale).data, net, rng)
        trained = fit(self, msg.params, state, site, net, rng, terms=terms)
        return common.update(site, state, trained), state

    server = common.average

    def _terms(self, virtual: LabelledSet, net: Net, rng: Stream) -> list[Term]:
        if not (self.alpha or self.align or self.spread):
            return []
        generator = rng.generator("virtual")

        def homogeneity(w: Params, batch: Batch) -> Tensor:
            chosen = torch.randperm(len(virtual), generator=generator)[: self.virtual_batch]
            return self._homogeneity(net, w, batch, virtual.take(chosen))

        return [homogeneity]

    def _homogeneity(self, net: Net, w: Params, batch: Batch, virtual: LabelledSet) -> Tensor:
        out = net(w, virtual.x)
        offset = net.classes if self.labels == "extra" else 0
        together = torch.cat([batch.features, out.features.detach()]), torch.cat([batch.y, virtual.y])
        return (
            self.alpha * cross_entropy(out.logits, virtual.y + offset)
            + self.align * supervised_contrastive(*together, self.temperature)
            + self.spread * supervised_contrastive(out.features, virtual.y, self.temperature)
        )
