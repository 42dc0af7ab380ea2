"""Local SGD, a pure function that works in place internally, and the scores of a model on a labelled set."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from fedlgd.core.device import noise, to_cpu
from fedlgd.core.errors import DivergedError, SettingError
from fedlgd.core.meter import phase
from fedlgd.core.net import Net
from fedlgd.core.score import Score
from fedlgd.core.settings import Settings, setting
from fedlgd.core.tree import clone
from fedlgd.core.types import LabelledSet, Params, Stream

Objective = Callable[[Params, Tensor], Tensor]

ADAMS: dict[str | None, Any] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
TRIAL_STEPS = 2  # of training and of gradient matching, to measure what a step costs


@dataclass(frozen=True, kw_only=True)
class Local(Settings):
    """Settings of local training in one round."""

    section: ClassVar[str] = "local"

    epochs: int = setting(1, "Epochs per round.", least=1, most=100_000)
    steps: int = setting(0, "SGD steps per round; 0: use `epochs`.", least=0, most=10_000_000)
    batch: int = setting(32, "Batch size.", least=1, most=1_000_000)
    lr: float = setting(0.01, "Learning rate.", above=0)
    momentum: float = setting(0.0, "Momentum of SGD, reset in every round; 0: off.", least=0, below=1)
    weight_decay: float = setting(0.0, "Weight decay of SGD; 0: off.", least=0)
    schedule: Literal["constant", "cosine"] = setting(
        "constant", "Learning rate over the rounds: `constant`, or `cosine` from `lr` to 0 at the end of the run."
    )
    restarts: tuple[int, ...] | None = setting(
        None, "Rounds after which `cosine` starts again from `lr`; set when a finished run gets more rounds."
    )
    optimiser: Literal["sgd", "adam", "adamw"] | None = setting(
        None,
        "Optimiser of local training: `sgd` (default), or `adam` or `adamw` with moments reset in every round.",
    )
    augment: tuple[Literal["rotate", "zoom", "shift", "color"], ...] = setting(
        (), "Augmentation of training batches, drawn for each image: rotate, zoom, shift, color; []: off."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        stages = self.restarts or ()
        if list(stages) != sorted({*stages} - {0}) or min(stages, default=1) < 0:
            raise SettingError("restarts-not-ascending", restarts=list(stages))
        if self.momentum and not self.plain:
            raise SettingError("momentum-with-adam", optimiser=self.optimiser, momentum=self.momentum)

    @property
    def plain(self) -> bool:
        """Whether it is SGD: a step is a sum of gradients. Adam divides each of its steps by their size."""
        return self.optimiser in (None, "sgd")

    def at(self, t: int, rounds: int) -> Self:
        """The settings of round t, between T_i and T_{i+1} of the start, the restarts and the end of the run:

        eta_t = eta (1 + cos(pi (t - T_i) / (T_{i+1} - T_i))) / 2  (SGDR, Loshchilov and Hutter, ICLR 2017, Eq. 5).
        """
        if self.schedule == "constant":
            return self
        limits = (0, *(self.restarts or ()), rounds)
        first, end = max(each for each in limits if each <= t), min(each for each in limits if each > t)
        lr = self.lr * (1 + math.cos(math.pi * (t - first) / (end - first))) / 2
        return replace(self, lr=lr, schedule="constant", restarts=None)

    def count(self, n: int) -> int:
        """K: the steps of a round on n images."""
        return self.steps or self.epochs * math.ceil(n / self.batch)

    def shrunk(self) -> "Local":
        """As few steps as can be measured."""
        return replace(self, steps=TRIAL_STEPS)

    def images(self, n: int) -> int:
        """The images that a round on n of them takes; an epoch ends with a smaller batch."""
        return self.steps * min(self.batch, n) if self.steps else self.epochs * n

    def work(self, steps: int) -> float:
        r"""sum_i a_i = [K - m (1 - m^K) / (1 - m)] / (1 - m), the total weight of the gradients of K steps.

        v_j = sum_{i<=j} m^{j-i} g_i, so  theta_0 - theta_K = eta sum_j v_j = eta sum_i a_i g_i  with the weights
        a_i = (1 - m^{K-i+1}) / (1 - m): early gradients count more. Without momentum it is K.
        """
        m = self.momentum
        return (steps - m * (1 - m**steps) / (1 - m)) / (1 - m)

    def rate(self, steps: int) -> float:
        """eta_t mean_i a_i; eta_t without momentum. steps=0: the limit of many, eta_t / (1 - m)."""
        return self.lr * (self.work(steps) / steps if steps else 1 / (1 - self.momentum))


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """The result of SGD: parameters, number of steps, mean loss during training, and the last velocity."""

    params: Params
    steps: int
    loss: float
    velocity: Params = field(default_factory=dict)


def sgd(
    net: Net,
    start: Params,
    n: int,
    objective: Objective,
    local: Local,
    rng: Stream,
    velocity: Params | None = None,
    until: Callable[[Params], bool] | None = None,
) -> Trained:
    """Minimise `objective(w, index)` over shuffled batches of n items:  v <- m v + g,  w <- w - lr v.

    v starts at `velocity`, or at 0. With `local.optimiser` the steps are those of torch.optim.Adam or AdamW. It
    ends before the first step from a w for which `until(w)` holds; the mean loss of no step is 0.
    """
    w = clone(start)
    names = [name for name in w if name in net.trainable]
    leaves = [w[name].requires_grad_() for name in names]
    v = [velocity[name] for name in names] if velocity else []
    adam = None if local.plain else ADAMS[local.optimiser](leaves, lr=local.lr, weight_decay=local.weight_decay)
    losses: list[Tensor] = []
    with net.training(), noise(rng.at("noise").number()):
        for index in batches(n, local, rng.generator("shuffle")):
            if until and until(w):
                break
            loss = objective(w, index)
            grads = torch.autograd.grad(loss, leaves, materialize_grads=True)
            if adam:
                for leaf, grad in zip(leaves, grads, strict=True):
                    leaf.grad = grad
                adam.step()
            else:
                v = descend(leaves, list(grads), v, local)
            losses.append(loss.detach())
    mean = torch.stack(losses).double().mean().item() if losses else 0.0
    if not (math.isfinite(mean) and all(bool(value.isfinite().all()) for value in w.values())):
        raise DivergedError("training-diverged", lr=local.lr)
    moved = dict(zip(names, v, strict=False))
    return Trained({name: value.detach() for name, value in w.items()}, len(losses), mean, moved)


def batches(n: int, local: Local, generator: Generator) -> Iterator[Tensor]:
    """Shuffled batches; every epoch has a new order, and the last batch can be smaller."""
    per_epoch, steps = math.ceil(n / local.batch), local.count(n)
    for done in range(0, steps, per_epoch):
        yield from torch.randperm(n, generator=generator).split(local.batch)[: steps - done]


@torch.no_grad()
def descend(leaves: list[Tensor], grads: list[Tensor], velocity: list[Tensor], local: Local) -> list[Tensor]:
    """One step of SGD in place; returns the velocity."""
    if local.weight_decay:
        grads = list(torch._foreach_add(grads, leaves, alpha=local.weight_decay))
    if local.momentum and velocity:
        grads = list(torch._foreach_add(grads, velocity, alpha=local.momentum))
    torch._foreach_add_(leaves, grads, alpha=-local.lr)
    return grads if local.momentum else []


def score(
    net: Net, params: Params, data: LabelledSet, classes: int, batch: int = 256, most: float = math.inf
) -> Score:
    """Accuracy, mean cross-entropy and per-class counts; with two classes also the area under the ROC curve.

    Only the first `classes` logits are used. most: the largest loss of an image.
    """
    margins: list[Tensor] = []
    correct = torch.zeros(classes, dtype=torch.int64)
    loss = torch.zeros((), dtype=torch.float64)
    with phase("evaluate"), torch.inference_mode():
        for start in range(0, len(data), batch):
            part = data.take(slice(start, start + batch))
            logits = net.frozen(params, part.x).logits[:, :classes]
            losses = F.cross_entropy(logits, part.y, reduction="sum" if most == math.inf else "none")
            if most < math.inf:
                losses = losses.nan_to_num(most).clamp(max=most).sum()
            loss += to_cpu(losses.double())
            correct += to_cpu(torch.bincount(part.y[logits.argmax(1) == part.y], minlength=classes))
            if classes == 2:
                margins.append(to_cpu(logits[:, 1].double() - logits[:, 0].double()))
    return Score(
        accuracy=int(correct.sum()) / len(data),
        loss=loss.item() / len(data),
        correct=tuple(correct.tolist()),
        total=tuple(data.counts(classes).tolist()),
        auc=area(torch.cat(margins), data.y == 1) if margins else None,
    )


def area(scores: Tensor, positive: Tensor) -> float | None:
    """Area under the ROC curve,  P(s+ > s-) + P(s+ = s-) / 2,  from mean ranks:

    (sum of the ranks of the positive - n+ (n+ + 1) / 2) / (n+ n-).  None without both classes, or with NaN.
    """
    ours, others = int(positive.sum()), int((~positive).sum())
    if not (ours and others and bool(torch.isfinite(scores).all())):
        return None
    _, place, ties = torch.unique(scores, return_inverse=True, return_counts=True)
    rank = ties.cumsum(0).double() - (ties.double() - 1) / 2
    total = float(rank[place[positive]].sum())
    return (total - ours * (ours + 1) / 2) / (ours * others)
