"""Slow, obvious versions of what servers do, in numpy and float64, number by number from the specification."""

from collections.abc import Mapping, Sequence

import numpy as np

Model = Mapping[str, np.ndarray]
COUNTER = np.int64


def fedavg(models: Sequence[Model], weights: Sequence[float]) -> dict[str, np.ndarray]:
    """theta = sum_c p_c theta_c, p_c = w_c / sum w; a counter takes the largest value."""
    total = sum(weights)
    mean = {}
    for name, first in models[0].items():
        if first.dtype == COUNTER:
            mean[name] = np.array(max(int(model[name]) for model in models))
            continue
        mean[name] = np.zeros_like(first)
        for model, weight in zip(models, weights, strict=True):
            mean[name] = mean[name] + (weight / total) * model[name]
    return mean


def fednova(
    before: Model, models: Sequence[Model], weights: Sequence[float], work: Sequence[float], trainable: set[str]
) -> dict[str, np.ndarray]:
    """theta_t - (sum p_c a_c) sum p_c (theta_t - theta_c) / a_c; what is not trained is averaged."""
    total = sum(weights)
    tau = sum(w / total * a for w, a in zip(weights, work, strict=True))
    after = fedavg(models, weights)
    for name in trainable:
        step = np.zeros_like(before[name])
        for model, weight, a in zip(models, weights, work, strict=True):
            step = step + weight / total * (before[name] - model[name]) / a
        after[name] = before[name] - tau * step
    return after


def scaffold(
    before: Model,
    variate: Model,
    models: Sequence[Model],
    changes: Sequence[Model],
    sites: int,
    server_lr: float,
    trainable: set[str],
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """theta + eta_g mean_S (y - theta);  c + 1/N sum_S (c_i+ - c_i), N = all sites."""
    after = fedavg(models, [1.0] * len(models))
    for name in trainable:
        moves = [model[name] - before[name] for model in models]
        after[name] = before[name] + server_lr * sum(moves) / len(models)
    c = {name: value + sum(change[name] for change in changes) / sites for name, value in variate.items()}
    return after, c


def prototypes(
    old: np.ndarray | None, means: Sequence[np.ndarray], counts: Sequence[np.ndarray], weigh: str
) -> np.ndarray:
    """C_k over the sites that have class k; a class nobody has keeps its old row, or NaN."""
    classes, dimensions = means[0].shape
    rows = np.full((classes, dimensions), np.nan) if old is None else old.copy()
    for k in range(classes):
        here = [(m[k], c[k]) for m, c in zip(means, counts, strict=True) if c[k] > 0]
        if here and weigh == "uniform":
            rows[k] = sum(m for m, _ in here) / len(here)
        elif here:
            rows[k] = sum(c * m for m, c in here) / sum(c for _, c in here)
    return rows


def fedbn(models: Sequence[Model], weights: Sequence[float], own: set[str]) -> dict[str, np.ndarray]:
    """FedAvg of what is not a site's own."""
    return fedavg([{k: v for k, v in model.items() if k not in own} for model in models], weights)
