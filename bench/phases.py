"""The phases of a run, each as two functions with the same work: the reference and ours."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial as part
from pathlib import Path

import torch

from bench import published
from bench.tools import ours
from bench.tools.scene import LR, SITES, Scene

Call = Callable[[], object]

AGAIN = 10_000 / 49_040  # fraction of the test images of DIGITS that the released code evaluates twice


@dataclass(frozen=True)
class Phase:
    """Two functions, and the units of work of each; cost is per unit."""

    name: str
    unit: str
    published: Call
    ours: Call
    published_units: float = 1
    ours_units: float = 1


def phases(scene: Scene, folder: Path) -> dict[str, Phase]:
    """The phases by name. Lazy initialisation is done here, so that it is not measured."""
    first, later = ours.sample(ours.INITIAL, 20), ours.sample(ours.ITERATIVE, 1)
    one = replace(ours.METHOD.anchors, steps=1)
    images = len(scene.site.test) / 1000
    given = scene.members, scene.target, scene.joined, scene.order, scene.published_start
    assert given
    made = (
        Phase(
            "dm-initial", "step", part(initial_dm, scene, 1), part(ours.initial_dm, scene, first), 1, first.steps
        ),
        Phase(
            "dm-iterative",
            "step",
            part(iterative_dm, scene, 1),
            part(ours.iterative_dm, scene, later),
            1,
            later.steps,
        ),
        Phase("gm", "step", part(gm, scene, 1), part(ours.gm, scene, one), 1, ours.looks(one)),
        Phase("epoch-plain", "epoch", part(plain_epoch, scene), part(ours.plain_epoch, scene)),
        Phase("epoch-regularised", "epoch", part(regularised_epoch, scene), part(ours.regularised_epoch, scene)),
        Phase("evaluation", "1000 images", part(evaluate, scene), part(ours.evaluate, scene), images, images),
        Phase("aggregation", f"{SITES} sites", aggregation(scene), part(ours.aggregate, scene)),
        Phase("save-load", "round", part(save_and_load, scene, folder), part(ours.save_and_load, scene, folder)),
    )
    return {phase.name: phase for phase in made}


def initial_dm(scene: Scene, steps: int) -> torch.Tensor:
    """The initial virtual images of the reference."""
    images = scene.published_start.clone().requires_grad_()
    optimiser = published.optimiser(images)
    for step in range(steps):
        initial_step(scene, images, optimiser, step)
    return images.detach()


def initial_step(scene: Scene, images: torch.Tensor, optimiser: torch.optim.SGD, step: int) -> None:
    net = published.random_net(scene.net.shape, scene.net.classes, scene.width)
    real = published.draw_real(scene.real.x, scene.members, scene.rng.at("draw", step).generator())
    published.dm_step(images, optimiser, net, real, scene.transforms(step))


def iterative_dm(scene: Scene, steps: int) -> torch.Tensor:
    net, images = scene.module(), scene.virtual.images.clone().requires_grad_()
    optimiser = published.optimiser(images)
    for step in range(steps):
        real = published.draw_real(scene.real.x, scene.members, scene.rng.at("draw", step).generator())
        published.dm_step(images, optimiser, net, real, scene.transforms(step))
    return images.detach()


def gm(scene: Scene, steps: int) -> list[float]:
    """Dist of the reference at every step."""
    net, images = scene.module(), scene.anchors.images.clone().requires_grad_()
    optimiser = published.optimiser(images)
    target = [scene.target[name] for name, _ in net.named_parameters()]
    return [published.gm_step(images, scene.anchors.labels, optimiser, net, target) for _ in range(steps)]


def plain_epoch(scene: Scene) -> None:
    published.plain_epoch(scene.module(), scene.joined.x, scene.joined.y, LR, scene.order)


def regularised_epoch(scene: Scene) -> None:
    both, anchors = scene.joined, scene.anchors
    net = scene.module()
    published.regularised_epoch(net, both.x, both.y, anchors.images, anchors.labels, 10.0, LR, scene.order)


def evaluate(scene: Scene) -> None:
    """All test images, and a part of them twice."""
    net, test = scene.module(), scene.site.test.take(slice(None))
    published.evaluate(net, test.x, test.y)
    again = round(AGAIN * len(test))
    published.evaluate(net, test.x[:again], test.y[:again])


def aggregation(scene: Scene) -> Call:
    server, models = scene.module(), [scene.module(scene.after) for _ in range(SITES)]
    return lambda: published.aggregate(server, models)


def save_and_load(scene: Scene, folder: Path) -> None:
    anchors, virtual = scene.anchors.images, scene.virtual.images
    published.save_and_load(folder / "server.pt", {**scene.params, "anchors": anchors})
    published.save_and_load(folder / "site.pt", {"virtual": virtual})
