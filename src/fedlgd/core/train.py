"""Local SGD: pure outside, in place inside."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from fedlgd.core.device import noise
from fedlgd.core.errors import SettingError, check
from fedlgd.core.net import Net
from fedlgd.core.rng import Stream
from fedlgd.core.tree import clone
from fedlgd.core.types import Params

Objective = Callable[[Params, Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """How a site trains in one round: `epochs` over its images, or exactly `steps` steps where that is not 0."""

    epochs: int = 1
    steps: int = 0
    batch: int = 32
    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check(self.epochs >= 1, "local.epochs", self.epochs, "a site trains at least 1 epoch per round")
        check(self.steps >= 0, "local.steps", self.steps, "use 0 (epochs decide) or the number of steps per round")
        check(self.batch >= 1, "local.batch", self.batch, "use 1 or more images per step")
        check(self.lr > 0, "local.lr", self.lr, "use a positive learning rate such as 0.01")
        check(0 <= self.momentum < 1, "local.momentum", self.momentum, "use 0 (off) up to below 1")
        check(self.weight_decay >= 0, "local.weight_decay", self.weight_decay, "use 0 (off) or more")


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """Where SGD ended, after how many steps, and the mean loss on the way."""

    params: Params
    steps: int
    loss: float


def sgd(net: Net, start: Params, n: int, objective: Objective, how: Local, rng: Stream) -> Trained:
    """Minimise `objective(w, index)` over shuffled batches of n items:  v <- m v + g,  w <- w - lr v."""
    w = clone(start)
    leaves = [w[name].requires_grad_() for name in w if name in net.trainable]
    velocity: list[Tensor] = []
    losses: list[Tensor] = []
    with net.training(), noise(rng.at("noise").number()):
        for index in batches(n, how, rng.generator("shuffle")):
            loss = objective(w, index)
            grads = torch.autograd.grad(loss, leaves, materialize_grads=True)
            velocity = _descend(leaves, list(grads), velocity, how)
            losses.append(loss.detach())
    mean = torch.stack(losses).double().mean().item()
    if not math.isfinite(mean):
        raise SettingError(f"training diverged (loss {mean}); lower local.lr, which is {how.lr}")
    return Trained({name: value.detach() for name, value in w.items()}, len(losses), mean)


def batches(n: int, how: Local, generator: Generator) -> Iterator[Tensor]:
    """Every epoch a new order; the last batch may be smaller and is kept."""
    per_epoch = math.ceil(n / how.batch)
    steps = how.steps or how.epochs * per_epoch
    for done in range(0, steps, per_epoch):
        yield from torch.randperm(n, generator=generator).split(how.batch)[: steps - done]


@torch.no_grad()
def _descend(leaves: list[Tensor], grads: list[Tensor], velocity: list[Tensor], how: Local) -> list[Tensor]:
    if how.weight_decay:
        grads = list(torch._foreach_add(grads, leaves, alpha=how.weight_decay))
    if how.momentum and velocity:
        grads = list(torch._foreach_add(grads, velocity, alpha=how.momentum))
    torch._foreach_add_(leaves, grads, alpha=-how.lr)
    return grads if how.momentum else []
