"""The findings of an audit: from the statistics of all federations to numbers, and the attack of the paper.

The attack of the paper, made precise: one model, training against test images, kernel densities. It compares images
of two origins, so that it can find a "leak" where a model saw neither: see the blind control.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from fedlgd.attacks import membership, signals
from fedlgd.attacks.membership import FPR_GRID, Array, Mask
from fedlgd.attacks.sent import SentImages
from fedlgd.attacks.shadow import Observations, OnRound, run_federation
from fedlgd.attacks.watch import Study
from fedlgd.core.types import LabelledSet, Params, Site
from fedlgd.data.federation import Federation
from fedlgd.engines.storage import RamStates
from fedlgd.methods.protocol import Net, Stream
from fedlgd.rundir.results import RATES, Finding, Kind
from fedlgd.runs.config import Config

AttackName = Literal["rmia", "lira", "paper"]

DEFAULT_DELTA = 1e-5  # of the lower bound of epsilon, for a run without a promise
ALPHA = 0.05
RMIA_OFFSETS = (0.0, 0.3, 0.6, 0.9)  # values of `a` in RMIA that are tried on shadows
DEFAULT_OFFSET = 0.3
BLIND_LABEL = "blind: saw neither side"
COPIES_LABEL = "copies of training images"
MIN_FEDERATIONS_FOR_WORST = 17  # from so many on, single images have an area of their own


def calibrated(name: str, seen: Sequence[Observations], members: Mask, attack: AttackName) -> Array:
    """Scores [federation, image] of the statistic `target/name`; the other federations are the shadows of each."""
    everyone = range(len(seen))
    if name == "model/p":
        p, population = (_stacked(seen, key) for key in ("model/p", "model/population"))
        return np.stack([_rmia(p, members, t, population) for t in everyone])
    values = _stacked(seen, name)
    statistic = values if values.ndim == 3 else values[:, :, None]
    return np.stack([membership.lira(statistic, members, t, online=attack == "lira") for t in everyone])


def _stacked(seen: Sequence[Observations], name: str) -> Array:
    return np.stack([each.statistics[name].numpy() for each in seen])


def _rmia(p: Array, members: Mask, target: int, population: Array) -> Array:
    """RMIA with the offset `a` that is best when the shadows attack each other; the target is not looked at."""
    rest = np.arange(len(p)) != target
    best = DEFAULT_OFFSET
    if rest.sum() >= 3:
        q, inside, others = p[rest], members[rest], population[rest]

        def mean_area(a: float) -> float:
            scores = (membership.rmia(q, inside, t, others, a=a) for t in range(len(q)))
            return float(np.mean([membership.roc(each, inside[t]).auc for t, each in enumerate(scores)]))

        best = max(RMIA_OFFSETS, key=mean_area)
    return membership.rmia_untied(p, members, target, population, a=best)


def finding(
    scores: Array, members: Mask, rng: Stream, delta: float = DEFAULT_DELTA, widened: float = 1.0, **about: Any
) -> Finding:
    """The numbers of these scores [federation, image]; `widened` as in `bootstrap`.

    The lower bound of epsilon has confidence 95 %: the larger of two, 97.5 % each, for the first federation alone.
    """
    numbers = np.random.Generator(np.random.Philox(rng.number()))
    bands = membership.bootstrap(scores, members, numbers, RATES, widened=widened)
    inside = int(members.sum())
    tpr = {f"{rate:g}": each for rate, each in bands.tpr.items()}
    bounds = (
        membership.audited_epsilon(scores[0], members[0], delta, ALPHA / 2),
        membership.epsilon_from_rates(scores[0], members[0], RATES[0], delta, ALPHA / 2),
    )
    return Finding(
        federations=len(scores),
        n_in=inside,
        n_out=members.size - inside,
        auc=bands.auc,
        tpr=tpr,
        exact={
            rate: each and membership.clopper_pearson(round(each.middle * inside), inside)
            for rate, each in tpr.items()
        },
        roc=tuple(
            zip(*(each.round(6).tolist() for each in (FPR_GRID, bands.curve, bands.low, bands.high)), strict=True)
        ),
        epsilon_lower=max(bounds),
        worst=_worst(scores, members),
        **about,
    )


def _worst(scores: Array, members: Mask) -> float | None:
    """The 99th percentile over images of the area between its own federations; None with few of them."""
    if len(scores) < MIN_FEDERATIONS_FOR_WORST:
        return None
    mixed = [u for u in range(scores.shape[1]) if members[:, u].any() and not members[:, u].all()]
    return float(np.quantile([membership.roc(scores[:, u], members[:, u]).auc for u in mixed], 0.99))


ATTACK_TITLES: Mapping[str, str] = {
    "model/p": "RMIA",
    "model/phi": "LiRA",
    "virtual/trace": "trace",
    "virtual/nearest": "nearest image",
    "anchors/trace": "trace",
    "anchors/nearest": "nearest image",
    "updates/along": "cosine with the update",
    "releases/filter": "matched filter",
    "uploads/trace": "trace",
    "uploads/nearest": "nearest image",
    "features/trace": "trace",
}
"""The names of attacks in tables."""


def findings_of(
    seen: Sequence[Observations],
    attack: AttackName,
    parts: Mapping[str, Mask],
    rng: Stream,
    kind: Kind,
    label: str,
    delta: float,
) -> list[Finding]:
    """Every attack on these federations: one on the model, and all others for which they have a statistic.

    Canaries are scored apart.
    """
    members = np.stack([each.members.numpy() for each in seen])
    accuracies = [each.accuracy for each in seen if each.accuracy is not None]
    accuracy = float(np.mean(accuracies)) if accuracies else None
    unused, found = "model/phi" if attack == "rmia" else "model/p", []
    for name in (name for name in ATTACK_TITLES if name != unused and _in_all(name, seen)):
        scores, target = calibrated(name, seen, members, attack), name.partition("/")[0]
        for suffix, part in parts.items():
            about: dict[str, Any] = {"label": label, "kind": kind, "target": target, "accuracy": accuracy}
            about["statistic"] = ATTACK_TITLES[name] + suffix
            found.append(finding(scores[:, part], members[:, part], rng.at(label, name, suffix), delta, **about))
    return found


def _in_all(name: str, seen: Sequence[Observations]) -> bool:
    return all(name in each.statistics for each in seen)


def copy_findings(seen: Sequence[Observations], attack: AttackName, rng: Stream) -> list[Finding]:
    """The attacks on images against copies of training images, as many as the site uploads: these must leak."""
    members = np.stack([each.members.numpy() for each in seen])
    about: dict[str, Any] = {"label": COPIES_LABEL, "kind": "positive", "target": "uploads"}
    found = []
    for name in filter(lambda name: _in_all(f"copies/{name}", seen), ("trace", "nearest")):
        scores = calibrated(f"copies/{name}", seen, members, attack)
        title = ATTACK_TITLES[f"uploads/{name}"]
        found.append(finding(scores, members, rng.at("copies", name), statistic=title, **about))
    return found


def blind_findings(
    study: Study, net: Net, untrained: Params, seen: Sequence[Observations], rng: Stream
) -> list[Finding]:
    """The same statistics against releases that saw neither side, which must be at chance: the untrained model,
    test images in place of a virtual set or of an upload, and the first updates and means of the other sites."""
    members = np.stack([each.members.numpy() for each in seen])
    attacked, x, y = study.attacked, study.reference.x[::2], study.reference.y[::2]
    values: dict[tuple[str, str], Array] = {}
    if _in_all("model/p", seen):
        phi = signals.confidence(signals.forward_pass(net, untrained, attacked.x).logits, attacked.y)
        values["model", "confidence of the untrained model"] = np.tile(phi.numpy(), (len(seen), 1))
    against = {"virtual": partial(study.of_images, x, y), "uploads": partial(study.of_upload, SentImages(x, y))}
    for target in (target for target in against if _in_all(f"{target}/nearest", seen)):
        for name, found in against[target]().items():
            if _in_all(f"{target}/{name}", seen):
                values[target, f"{name}, against test images"] = np.tile(found.numpy(), (len(seen), 1))
    if _in_all("blind/along", seen):
        values["updates", "cosine with first updates of other sites"] = _stacked(seen, "blind/along")
    if _in_all("blind/means", seen):
        values["features", "trace, first means of another site"] = _stacked(seen, "blind/means")
    return [
        finding(
            scores, members, rng.at("blind", name), label=BLIND_LABEL, kind="blind", target=target, statistic=name
        )
        for (target, name), scores in values.items()
    ]


MAX_IMAGES_PER_SIDE = 2000  # members, and as many others, in the attack of the paper
Sample = tuple[LabelledSet, torch.Tensor]
"""Attacked images, and which of them are members."""


def draw_sample(site: Site, rng: Stream) -> Sample:
    """As many training images (members) as test images, in random order."""
    n = min(MAX_IMAGES_PER_SIDE, len(site.train), len(site.test))
    parts = []
    for name, data in (("train", site.train), ("test", site.test)):
        parts.append(data.take(torch.randperm(len(data), generator=rng.generator("paper", name))[:n]))
    both = LabelledSet(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))
    return both, torch.arange(2 * n) < n


def observe_model(net: Net, params: Params, sample: Sample, accuracy: float | None) -> Observations:
    """The paper does not name its scalar: the log of the gradient's norm, and three alternatives."""
    data, members = sample
    found = signals.gradient_norms(net, params, data)
    statistics = {
        "log gradient norm": found.norm.clamp(min=1e-30).log(),
        "gradient norm": found.norm,
        "gradient norm of the last layer": found.last_layer,
        "loss": found.loss,
    }
    return Observations(members=members, statistics=statistics, accuracy=accuracy)


def run_and_observe(
    config: Config, federation: Federation, net: Net, sample: Sample, on_round: OnRound
) -> Observations:
    """Run a control of the paper's attack on all images, and observe its model."""
    net = config.method.adapt(net)
    state, accuracy = run_federation(config, federation, net, RamStates(), on_round)
    return observe_model(net, state.params, sample, accuracy)


def paper_findings(seen: Observations, in_sample: bool, rng: Stream, kind: Kind, label: str) -> list[Finding]:
    r"""The attack with each statistic; the first is the headline, and controls have it alone.

    Each half of the images is scored by densities that were fitted on the other half. So the areas A_1 and A_2 of
    the halves rise and fall together: both are large if the halves happen to agree (their correlation is 0.7 on
    noise). A bootstrap over images, which fits no density again, treats them as independent. By

    Var((A_1 + A_2) / 2) = (1 + corr) Var(A_1) / 2 <= Var(A_1)

    intervals are sqrt(2) times as wide as it says. Densities fitted in-sample are biased: no width mends them.
    """
    inside, found = seen.members.numpy(), []
    for name, values in list(seen.statistics.items())[: None if kind == "run" else 1]:
        sides = membership.kde(values.numpy()[inside], values.numpy()[~inside], in_sample)
        about: dict[str, Any] = {"label": label, "kind": kind, "target": "model", "accuracy": seen.accuracy}
        about["statistic"] = name + (", in-sample: biased" if in_sample else "")
        widened = 1.0 if in_sample else math.sqrt(2)
        scores, at = np.concatenate(sides)[None], rng.at(label, name)
        found.append(finding(scores, inside[None], at, widened=widened, **about))
    return found
