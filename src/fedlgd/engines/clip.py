"""A bound on what one site can change in one round: the norm of its update."""

from dataclasses import replace

from fedlgd.core.tree import add, cast, double, only, scale, sqnorm, sub
from fedlgd.core.types import Params, Update


def clipped(update: Update, before: Params, bound: float, trainable: frozenset[str]) -> tuple[Update, float]:
    r"""theta_t + min(1, bound / ||d||) d,  d = theta_c - theta_t over all trainable tensors, in float64.

    Also returns ||d||. Buffers (the statistics of norm layers) are neither measured nor scaled. An update within
    the bound is returned as it is.
    """
    names = trainable & before.keys()
    start = double(only(before, names))
    step = sub(double(only(update.params, names)), start)
    norm = float(sqnorm(step)) ** 0.5 if step else 0.0
    if norm <= bound:
        return update, norm
    moved = cast(add(start, scale(step, bound / norm)), before)
    return replace(update, params={**update.params, **moved}), norm
