"""The work of a round, by rule from the settings of a method: for an estimate of the run time."""

import math
from dataclasses import fields, replace
from typing import Any, NamedTuple

from fedlgd.core.train import Local
from fedlgd.core.types import Site
from fedlgd.distill.settings import Budget, Distil
from fedlgd.methods.anchors import Anchors
from fedlgd.methods.common import Training
from fedlgd.methods.parts import Part
from fedlgd.methods.protocol import Method
from fedlgd.methods.refine import Refine

TRIED = 2  # training steps and gradient matching steps of a trial


class Cost(NamedTuple):
    """The work of one round at a site and at the server. Rounds of the same `kind` have equal work.

    `train` is the work of training: images, or steps if every step costs the same. `distil` and `server` state how
    often the round repeats the work of the same round of `trial_of`.
    """

    kind: tuple[bool, ...]
    train: float
    distil: float
    server: float


def is_known(method: Method) -> bool:
    """Whether the cost of a method can be told from its settings."""
    if isinstance(method, Part):
        return is_known(method.method)
    return isinstance(method, Training) and not method.pooled


def first_sets(method: Any) -> Distil | None:
    """The settings of the first virtual sets, which methods with equal settings share; None: it has none."""
    return method.distil if method.train_on == "virtual" else None


def trial_of(method: Any) -> Method:
    """The method with so few steps that a round takes seconds."""
    if isinstance(method, Part):
        method = replace(method, method=trial_of(method.method))
    tried: Method = replace(method, **{f.name: _tried(getattr(method, f.name), method) for f in fields(method)})
    return tried


def _tried(part: Any, method: Any) -> Any:
    match part:
        case Local():
            return replace(part, steps=TRIED)
        case Distil():
            return part.shrunk()
        case Refine():
            return replace(part, pairs=1, steps=min(1 if method.distil.plan == "exact" else part.reuse, part.steps))
        case Anchors():
            return replace(part, steps=min(TRIED, part.steps))
        case Budget(section="dp"):
            return replace(part, rounds=1, test_key="estimate")  # type: ignore[call-arg]
    return part


def cost_of(method: Any, t: int, site: Site, classes: int) -> Cost:
    """The cost of round t (-1: enrolment). Gradient matching is assumed to take all steps."""
    small: Any = trial_of(method)
    refine, anchors = getattr(method, "refine", None), getattr(method, "anchors", None)
    by_step, distil, server = False, 0.0, 1.0
    kind: list[bool] = []
    if t < 0 and small.distil.steps:
        distil = method.distil.steps / small.distil.steps
    if refine:
        kind.append(t in refine.selected)
        distil = max(1, refine.steps) / max(1, small.refine.steps) if refine.move_in(t) else distil
    if anchors and anchors.per_class:
        kind += [t in anchors.selected, anchors.train_in(t)]
        by_step = anchors.pull_in(t, method.pull)
        last = anchors.plan == "target"  # which also evaluates the result of the last step
        server = (anchors.steps + last) / (small.anchors.steps + last) if anchors.move_in(t) else 1.0
    images = images_of(method, t, site, classes)
    return Cost(tuple(kind), training_work(method.local, images, by_step), distil, server)


def images_of(method: Any, t: int, site: Site, classes: int) -> int:
    """The number of images in the cross-entropy of a site in round t."""
    images, anchors = len(site.train), getattr(method, "anchors", None)
    if method.train_on == "virtual":
        images = method.distil.pictures * int((site.train.counts(classes) > 0).sum())
    return images + (anchors.per_class * classes if anchors and anchors.train_in(t) else 0)


def training_work(local: Local, images: int, by_step: bool) -> float:
    steps = local.count(images)
    epochs, rest = divmod(steps, math.ceil(images / local.batch))
    return steps if by_step else epochs * images + rest * local.batch
