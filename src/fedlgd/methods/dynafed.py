"""DynaFed (Pi et al., CVPR 2023): FedAvg whose server tunes on images made from the path of its own models"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from fedlgd.core.device import to_device
from fedlgd.core.errors import DivergedError, RunError, SettingError
from fedlgd.core.losses import cross_entropy
from fedlgd.core.meter import track
from fedlgd.core.train import Local
from fedlgd.core.tree import Mean
from fedlgd.core.types import Broadcast, LabelledSet, Params, ServerState, Site, SiteState
from fedlgd.distill.augment import OPERATIONS, Transform, draw_transform
from fedlgd.distill.init import from_noise
from fedlgd.methods import common
from fedlgd.methods.protocol import Fit, Net, Presets, Settings, Stream, Updates, Visit, setting
from fedlgd.methods.registry import register

LEAST_RATE = 1e-6  # of the learned step size, which Adam could make negative
SET = "set"  # the tree of the images, their label logits and the step size


@dataclass(frozen=True, kw_only=True)
class Synthesis(Settings):
    """How the server makes images whose training follows the path of the global models. It is done once."""

    section: ClassVar[str] = "synthesis"

    snapshots: int = setting(20, "Rounds of plain FedAvg, whose models are the path.", least=2, most=10_000)
    per_class: int = setting(15, "Images per class of the federation.", least=1, most=100_000)
    steps: int = setting(200, "Steps on the images.", least=0, most=10_000_000)
    unroll: int = setting(5, "Steps of SGD on the images that are compared with the path.", least=1, most=1000)
    ahead: int = setting(3, "The target is a mean of models up to so many rounds ahead.", least=1, most=1000)
    latest: int = setting(50, "The latest round at which a comparison starts.", least=0, most=10_000)
    lr: float = setting(0.05, "Learning rate of the pixels (Adam).", above=0)
    label_lr: float = setting(0.01, "Learning rate of the label logits (Adam).", above=0)
    rate: float = setting(0.04, "The first step size of the SGD that is compared.", least=0)
    rate_lr: float = setting(1e-5, "Learning rate of that step size (Adam); 0: it stays.", least=0)
    augment: tuple[str, ...] = setting(
        ("color", "crop", "cutout", "scale", "rotate"),
        "Operations of the augmentation, drawn for each step; []: off.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.snapshots <= self.ahead:
            raise SettingError("path-too-short", snapshots=self.snapshots, ahead=self.ahead)
        if unknown := [name for name in self.augment if name not in OPERATIONS]:
            raise SettingError("augmentation-unknown", name=unknown[0], available=[*OPERATIONS])

    def shrunk(self) -> "Synthesis":
        """As few steps as can be measured."""
        return replace(self, steps=min(1, self.steps))


@dataclass(frozen=True, kw_only=True)
class FineTuning(Local):
    """How the server trains the averaged model on the images, from the round after the path on."""

    section: ClassVar[str] = "finetune"

    epochs: int = setting(20, "Epochs in a round; 0: none, which is FedAvg.", least=0, most=100_000)
    batch: int = setting(256, "Batch size.", least=1, most=1_000_000)
    lr: float = setting(1e-4, "Learning rate.", above=0)
    optimiser: Literal["sgd", "adam", "adamw"] = setting("adam", "Optimiser: `adam`, `adamw` or `sgd`.")


def unrolled(
    net: Net, start: Params, images: Tensor, labels: Tensor, rate: Tensor, transforms: Sequence[Transform]
) -> Params:
    """w_{j+1} = w_j - eta grad CE(A_j(x), softmax(l); w_j) from w_0 = `start`, a step for each A_j.

    All images are one batch, and the result can be differentiated with respect to x, l and eta.
    """
    names = sorted(net.trainable)
    w = start | {name: start[name].detach().requires_grad_() for name in names}
    for transform in transforms:
        loss = cross_entropy(net.by_batch(w, transform(images)).logits, labels.softmax(1))
        grads = torch.autograd.grad(loss, [w[name] for name in names], create_graph=True, materialize_grads=True)
        w = w | {name: w[name] - rate * grad for name, grad in zip(names, grads, strict=True)}
    return w


def trajectory_gap(net: Net, start: Params, end: Params, target: Params) -> Tensor:
    """||w - theta*||^2 / ||theta_s - theta*||^2 over trainable parameters: 0 at the target, 1 at the start."""
    names = sorted(net.trainable)
    length = sum((start[name] - target[name]).square().sum() for name in names)
    if not float(length):
        raise RunError("path-stands-still")
    return sum(((end[name] - target[name]).square().sum() for name in names), start=torch.zeros(())) / length


def synthesise(path: Sequence[Params], net: Net, how: Synthesis, rng: Stream) -> Params:
    """Images x from N(0, 1), label logits l from 0 and a step size eta after `how.steps` of Adam on the gap between
    SGD on them and the path: from theta_s, s at random, to the mean of 2 to `ahead` models, drawn with replacement
    from theta_{s+1}, ..., theta_{s+ahead}.
    """
    generator = rng.generator("draws")
    images = to_device(from_noise(net.classes * how.per_class, net.shape, rng.generator("images")))
    labels, rate = images.new_zeros(len(images), net.classes), images.new_tensor(how.rate)
    leaves = [each.requires_grad_() for each in (images, labels, rate)]
    rates = (how.lr, how.label_lr, how.rate_lr)
    adam = torch.optim.Adam([{"params": [leaf], "lr": lr} for leaf, lr in zip(leaves, rates, strict=True)])
    last = min(how.latest, len(path) - 1 - how.ahead)
    for _ in track("distil", how.steps):
        s = int(torch.randint(last + 1, (), generator=generator))
        number = int(torch.randint(min(2, how.ahead), how.ahead + 1, (), generator=generator))
        target = Mean()
        for i in torch.randint(s + 1, s + how.ahead + 1, (number,), generator=generator).tolist():
            target.add(path[i])
        transforms = [draw_transform(how.augment, net.shape[1:], generator) for _ in range(how.unroll)]
        end = unrolled(net, path[s], images, labels, rate, transforms)
        gap = trajectory_gap(net, path[s], end, target.value())
        for leaf, grad in zip(leaves, torch.autograd.grad(gap, leaves), strict=True):
            leaf.grad = grad
        adam.step()
        with torch.no_grad():
            rate.clamp_(min=LEAST_RATE)
    found = {"images": images.detach(), "labels": labels.detach(), "rate": rate.detach()}
    if not all(bool(each.isfinite().all()) for each in found.values()):
        raise DivergedError("distillation-diverged", work="synthesis at the server", lr=how.lr)
    return found


@register
@dataclass(frozen=True, kw_only=True)
class DynaFed(common.Training):
    r"""Rounds 0..L-1 are FedAvg:  theta_{t+1} = sum_c p_c theta_c.  Then once, for images x, labels l, a step eta,
    min E || w - theta* ||^2 / || theta_s - theta* ||^2,  w = theta_s after SGD steps of eta on CE(A(x), l),
    theta* = mean of models soon after theta_s.  Later rounds:  theta_{t+1} = sum_c p_c theta_c, tuned on CE(x, l).

    Sites do what they do in FedAvg. The server needs nothing but its own averaged models.
    """

    name: ClassVar[str] = "dynafed"
    presets: ClassVar[Presets] = {
        "paper": {"local.optimiser": "adam", "local.lr": 1e-3, "synthesis.steps": 3000, "synthesis.unroll": 20},
        "quick": {**common.TUNED, "synthesis.snapshots": 10, "synthesis.steps": 50, "synthesis.per_class": 5},
    }
    stackable: ClassVar[tuple[str, ...]] = ("refine", "redraw", "regulariser", "momentum", "dp-sgd")

    synthesis: Synthesis = Synthesis()
    finetune: FineTuning = FineTuning()

    def at(self, t: int, rounds: int) -> Self:
        now, tuned = super().at(t, rounds), self.finetune.at(t, rounds)
        return now if tuned is self.finetune else replace(now, finetune=tuned)

    enrol, start, broadcast = common.enrol, common.start, common.broadcast

    def site(
        self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = common.fit
    ) -> Visit:
        trained = fit(self, msg.params, state, site, net, rng)
        return common.update(site, state, trained), state

    def server(self, state: ServerState, updates: Updates, net: Net, rng: Stream) -> ServerState:
        """The average; in the first rounds theta_t joins the path, then the path becomes images, then they tune."""
        t, after = state.round, common.average(self, state, updates, net, rng)
        if not (self.finetune.epochs or self.finetune.steps):
            return after
        if t >= self.synthesis.snapshots:
            made = state.trees[SET]
            data = LabelledSet(made["images"], made["labels"].softmax(1))
            return replace(
                after, params=common.fit_on(net, after.params, data, self.finetune, rng.at("finetune")).params
            )
        path = {**state.trees, f"path {t}": state.params}
        if t + 1 < self.synthesis.snapshots:
            return replace(after, trees=path)
        models = [path[f"path {i}"] for i in range(len(path))]
        return replace(after, trees={SET: synthesise(models, net, self.synthesis, rng.at("synthesis"))})
