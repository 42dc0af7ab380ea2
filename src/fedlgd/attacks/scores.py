"""From the statistics of all federations to the numbers of an audit."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from fedlgd.attacks import membership
from fedlgd.attacks.membership import FPR_GRID, Array, Mask
from fedlgd.attacks.shadow import Observations, Study
from fedlgd.attacks.signals import confidence, forward_pass
from fedlgd.core.net import Net
from fedlgd.core.rng import Stream
from fedlgd.core.types import Params
from fedlgd.rundir.results import RATES, Finding, Kind

AttackName = Literal["rmia", "lira", "paper"]

DEFAULT_DELTA = 1e-5  # of the lower bound of epsilon, for a run without a promise
ALPHA = 0.05
RMIA_OFFSETS = (0.0, 0.3, 0.6, 0.9)  # values of `a` in RMIA that are tried on shadows
DEFAULT_OFFSET = 0.3
BLIND_LABEL = "blind: saw neither side"
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


def finding(scores: Array, members: Mask, rng: Stream, delta: float = DEFAULT_DELTA, **about: Any) -> Finding:
    """The numbers of these scores [federation, image].

    The lower bound of epsilon has confidence 95 %: the larger of two, 97.5 % each, for the first federation alone.
    """
    numbers = np.random.Generator(np.random.Philox(rng.number()))
    bands = membership.bootstrap(scores, members, numbers, RATES)
    counts = int(members.sum()), int((~members).sum())
    bounds = (
        membership.audited_epsilon(scores[0], members[0], delta, ALPHA / 2),
        membership.epsilon_from_rates(scores[0], members[0], RATES[0], delta, ALPHA / 2),
    )
    return Finding(
        federations=len(scores),
        n_in=counts[0],
        n_out=counts[1],
        auc=bands.auc,
        tpr={f"{rate:g}": each for rate, each in bands.tpr.items()},
        exact={
            f"{rate:g}": None
            if each is None
            else membership.clopper_pearson(round(each.middle * counts[0]), counts[0])
            for rate, each in bands.tpr.items()
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
}
"""The names of attacks in tables."""


def names_of_attacked(seen: Sequence[Observations], attack: AttackName) -> list[str]:
    """The statistics to use: one of the model, and all others that the federations have."""
    unused = "model/phi" if attack == "rmia" else "model/p"
    return [name for name in ATTACK_TITLES if name != unused and name in seen[0].statistics]


def findings_of(
    seen: Sequence[Observations],
    attack: AttackName,
    parts: Mapping[str, Mask],
    rng: Stream,
    kind: Kind,
    label: str,
    delta: float,
) -> list[Finding]:
    """Every attack on these federations; canaries are scored apart."""
    members = np.stack([each.members.numpy() for each in seen])
    accuracies = [each.accuracy for each in seen if each.accuracy is not None]
    accuracy = float(np.mean(accuracies)) if accuracies else None
    found = []
    for name in names_of_attacked(seen, attack):
        scores, target = calibrated(name, seen, members, attack), name.partition("/")[0]
        for suffix, part in parts.items():
            about: dict[str, Any] = {"label": label, "kind": kind, "target": target, "accuracy": accuracy}
            about["statistic"] = ATTACK_TITLES[name] + suffix
            found.append(finding(scores[:, part], members[:, part], rng.at(label, name, suffix), delta, **about))
    return found


def blind_findings(
    study: Study, net: Net, untrained: Params, seen: Sequence[Observations], rng: Stream
) -> list[Finding]:
    """The same statistics against releases that saw neither side, which must be at chance: the untrained model,
    test images in place of a virtual set, and the first updates of the other sites."""
    members = np.stack([each.members.numpy() for each in seen])
    attacked, test = study.attacked, study.reference
    phi = confidence(forward_pass(net, untrained, attacked.x).logits, attacked.y)
    values = {("model", "confidence of the untrained model"): np.tile(phi.numpy(), (len(seen), 1))}
    if "virtual/trace" in seen[0].statistics:
        for name, found in study.of_images(test.x[::2], test.y[::2]).items():
            values["virtual", f"{name}, against test images"] = np.tile(found.numpy(), (len(seen), 1))
    if "blind/along" in seen[0].statistics:
        values["updates", "cosine with first updates of other sites"] = _stacked(seen, "blind/along")
    return [
        finding(
            scores, members, rng.at("blind", name), label=BLIND_LABEL, kind="blind", target=target, statistic=name
        )
        for (target, name), scores in values.items()
    ]
