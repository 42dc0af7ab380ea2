"""Our implementation of each phase: the functions of a run with default settings."""

from dataclasses import replace
from pathlib import Path

from bench.tools.scene import LR, SITES, Scene
from fedlgd.core.train import Local, score, sgd
from fedlgd.core.tree import Mean
from fedlgd.core.types import Params, ServerState, SiteState, VirtualSet
from fedlgd.distill.distribution import first_set, refine_set
from fedlgd.distill.gradient import match_gradient
from fedlgd.distill.settings import Distil
from fedlgd.engines.wire import read_message, write_message
from fedlgd.methods.anchors import Anchors
from fedlgd.methods.common import plain, pulled
from fedlgd.methods.fedlgd import FedLGD
from fedlgd.methods.regularisers import Pull

METHOD = FedLGD()
INITIAL = METHOD.distil
ITERATIVE = METHOD.refine.settings(METHOD.distil)
LOCAL = Local(lr=LR)


def sample(how: Distil, draws: int) -> Distil:
    """A short measurement with all parts in proportion: some draws, and the steps with each draw."""
    return replace(how, pairs=draws, steps=draws * how.reuse)


def initial_dm(scene: Scene, how: Distil) -> VirtualSet:
    how = replace(how, per_class=scene.per_class)
    return first_set(scene.site, scene.net, how, scene.rng.at("distil"))


def iterative_dm(scene: Scene, how: Distil) -> VirtualSet:
    return refine_set(scene.virtual, scene.site.train, scene.net, scene.params, how, 0, scene.rng.at("refine"))


def looks(how: Anchors) -> int:
    """The number of gradients for this many steps; plan `target` also evaluates the last result."""
    return how.steps + (how.plan == "target")


def gm(scene: Scene, how: Anchors) -> list[float]:
    """Dist at every evaluation."""
    return match_gradient(scene.anchors, scene.net, scene.params, scene.target, how, 0)[1]


def plain_epoch(scene: Scene) -> Params:
    both = scene.joined
    return sgd(scene.net, scene.params, len(both), plain(scene.net, both), LOCAL, scene.rng).params


def regularised_epoch(scene: Scene) -> Params:
    objective = pulled(scene.net, scene.virtual.data, scene.anchors.data, Pull())
    return sgd(scene.net, scene.params, len(scene.joined), objective, LOCAL, scene.rng).params


def evaluate(scene: Scene) -> float:
    return score(scene.net, scene.params, scene.site.test, scene.net.classes).accuracy


def aggregate(scene: Scene) -> Params:
    mean = Mean()
    for i in range(SITES):
        mean.add(scene.params if i else scene.after)
    return mean.value()


def save_and_load(scene: Scene, folder: Path) -> None:
    """Write the state of the server and of one site to disk, read it and verify it."""
    write_message(folder / "server.safetensors", ServerState(params=scene.params, anchors=scene.anchors))
    write_message(folder / "site.safetensors", SiteState(virtual=scene.virtual))
    read_message(folder / "server.safetensors", ServerState)
    read_message(folder / "site.safetensors", SiteState)
