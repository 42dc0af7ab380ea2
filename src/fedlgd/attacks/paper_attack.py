"""The membership attack of the paper, made precise: one model, training against test images, kernel densities.

It compares images of two origins, so that it can find a "leak" where a model saw neither: see the blind control.
"""

from collections.abc import Callable
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np
import torch

from fedlgd.attacks import membership
from fedlgd.attacks.scores import finding
from fedlgd.attacks.shadow import Observations
from fedlgd.attacks.signals import gradient_norms
from fedlgd.core.device import Place
from fedlgd.core.net import Net
from fedlgd.core.rng import Stream
from fedlgd.core.types import LabelledSet, Params, Site
from fedlgd.data.federation import Federation
from fedlgd.engines.loop import serve
from fedlgd.engines.site import Sites
from fedlgd.engines.storage import RamStates, RamStorage
from fedlgd.rundir.records import RoundRecord
from fedlgd.rundir.results import Finding, Kind
from fedlgd.runs.config import Config

MAX_IMAGES_PER_SIDE = 2000  # members, and as many others


def draw_sample(site: Site, rng: Stream) -> tuple[LabelledSet, torch.Tensor]:
    """As many training images (members) as test images, in random order, and which of them are members."""
    n = min(MAX_IMAGES_PER_SIDE, len(site.train), len(site.test))
    parts = []
    for name, data in (("train", site.train), ("test", site.test)):
        parts.append(data.take(torch.randperm(len(data), generator=rng.generator("paper", name))[:n]))
    both = LabelledSet(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))
    return both, torch.arange(2 * n) < n


def observe_model(
    net: Net, params: Params, attacked: tuple[LabelledSet, torch.Tensor], accuracy: float | None
) -> Observations:
    """The paper does not name its scalar: the log of the gradient's norm, and three alternatives."""
    data, members = attacked
    found = gradient_norms(net, params, data)
    statistics = {
        "log gradient norm": found.norm.clamp(min=1e-30).log(),
        "gradient norm": found.norm,
        "gradient norm of the last layer": found.last_layer,
        "loss": found.loss,
    }
    return Observations(members=members, statistics=statistics, accuracy=accuracy)


def run_and_observe(
    config: Config,
    federation: Federation,
    net: Net,
    attacked: tuple[LabelledSet, torch.Tensor],
    on_round: Callable[[RoundRecord], None],
) -> Observations:
    """Run a control on all images, and attack its model."""
    method, plan, memory = config.method, config.plan, RamStorage()
    net = method.adapt(net)
    work = partial(map, Sites(method, federation, net, plan, RamStates(), Place()))
    for record in serve(method, federation, net, plan, memory, work, Place()):
        on_round(record)
    state = memory.server()
    assert state is not None
    return observe_model(net, state.params, attacked, fmean(score.accuracy for score in record.scores.values()))


def paper_findings(seen: Observations, in_sample: bool, rng: Stream, kind: Kind, label: str) -> list[Finding]:
    """The attack with each statistic; the first is the headline, and controls have it alone."""
    inside, found = seen.members.numpy(), []
    for name, values in list(seen.statistics.items())[: None if kind == "run" else 1]:
        sides = membership.kde(values.numpy()[inside], values.numpy()[~inside], in_sample)
        about: dict[str, Any] = {"label": label, "kind": kind, "target": "model", "accuracy": seen.accuracy}
        scores = np.concatenate(sides)[None]
        statistic = name + (", in-sample: biased" if in_sample else "")
        found.append(finding(scores, inside[None], rng.at(label, name), statistic=statistic, **about))
    return found
