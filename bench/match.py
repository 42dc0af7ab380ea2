"""Steps to the same result: the number of our steps that reach the loss of a number of reference steps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from bench import phases, published
from bench.tools import ours
from bench.tools.scene import Scene
from fedlgd.core.losses import class_means, mean_gap
from fedlgd.distill.distribution import real_means
from fedlgd.distill.gradient import matched_names
from fedlgd.methods.anchors import Anchors

SEARCHED = 8  # limit of our steps, as a multiple of the reference steps
HELD_OUT = 8  # random networks, each with its own augmentation


@dataclass(frozen=True)
class Matched:
    """`theirs` reference steps and `ours` of our steps reach `value`; ours is None if it was not reached."""

    phase: str
    theirs: int
    ours: float | None
    value: float


class Judge:
    """Eq. 1 with held-out networks and augmentations; 256 real images per class."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._draws = [self._draw(i) for i in range(HELD_OUT)]

    def _draw(self, i: int) -> tuple[dict[str, Tensor], list[published.Transform], Tensor]:
        scene, rng = self._scene, self._scene.rng.at("held-out", i)
        params, transforms = scene.net.init(rng), scene.transforms(-1 - i)
        batches = [pool[: published.REAL_PER_CLASS] for pool in scene.members]
        return params, transforms, real_means(scene.net, params, scene.real, batches, transforms)

    def loss(self, images: Tensor) -> float:
        scene = self._scene
        rows = images.view(len(scene.classes), -1, *images.shape[1:])
        total = 0.0
        for params, transforms, target in self._draws:
            x = torch.cat([transform(part) for transform, part in zip(transforms, rows, strict=True)])
            features = scene.net.frozen(params, x).features
            total += mean_gap(target, class_means(features, scene.labels, torch.tensor(scene.classes))).item()
        return total / len(self._draws)


def initial(scene: Scene, checkpoints: Sequence[int]) -> list[Matched]:
    """Initial matching, for each number of reference steps."""
    judge = Judge(scene)
    goals = dict(zip(checkpoints, _reference_losses(scene, judge, checkpoints), strict=True))
    curve = [(1, judge.loss(ours.initial_dm(scene, replace(ours.INITIAL, steps=0)).images))]
    steps = ours.INITIAL.reuse
    while curve[-1][1] > min(goals.values()) and steps <= SEARCHED * checkpoints[-1]:
        images = ours.initial_dm(scene, replace(ours.INITIAL, steps=steps)).images
        curve.append((steps, judge.loss(images)))
        steps *= 2
    return [Matched("dm-initial", theirs, steps_to(curve, goal), goal) for theirs, goal in goals.items()]


def smoothing(scene: Scene, checkpoints: Sequence[int]) -> list[Matched]:
    """Initial matching without smoothed gradients (`theirs`), and the steps with them that reach the same loss."""
    judge = Judge(scene)
    rough = replace(ours.INITIAL, smooth=0.0)
    goals = {n: judge.loss(ours.initial_dm(scene, replace(rough, steps=n)).images) for n in checkpoints}
    some = sorted({0, *(n // 2 for n in checkpoints), *checkpoints})
    smoothed = [(max(1, n), ours.initial_dm(scene, replace(ours.INITIAL, steps=n)).images) for n in some]
    curve = [(n, judge.loss(images)) for n, images in smoothed]
    return [Matched("dm-initial, smoothed", theirs, steps_to(curve, goal), goal) for theirs, goal in goals.items()]


def _reference_losses(scene: Scene, judge: Judge, checkpoints: Sequence[int]) -> list[float]:
    images = scene.published_start.clone().requires_grad_()
    optimiser, losses = published.optimiser(images), []
    for step in range(checkpoints[-1]):
        phases.initial_step(scene, images, optimiser, step)
        if step + 1 in checkpoints:
            losses.append(judge.loss(images.detach()))
    return losses


def steps_to(curve: Sequence[tuple[int, float]], goal: float) -> float | None:
    """The first step at which a curve of (steps, loss) reaches `goal`, interpolated by a power law."""
    if curve[0][1] <= goal:
        return float(curve[0][0])
    for (n0, a), (n1, b) in pairwise(curve):
        if b <= goal:
            return float(n0 * (n1 / n0) ** (math.log(a / goal) / math.log(a / b)))
    return None


def gradient(scene: Scene, theirs: int) -> Matched:
    """Gradient matching: Dist after `theirs` steps of SGD (with our plan `exact`, which takes the same steps)."""
    exact = Anchors(plan="exact", steps=theirs)
    goal = min(ours.gm(scene, exact))
    rows = sum(len(scene.params[name]) for name in matched_names(scene.params, scene.net))
    distances = ours.gm(scene, replace(ours.METHOD.anchors, steps=theirs, tolerance=goal / rows))
    reached = next((i + 1 for i, dist in enumerate(distances) if dist <= goal), None)
    return Matched("gm", theirs, reached, goal)
