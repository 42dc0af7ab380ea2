"""What the server accepts from a site. A check gives the reason for a refusal, or nothing."""

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedlgd.core.errors import RunError
from fedlgd.core.meter import Spent
from fedlgd.core.score import Score
from fedlgd.core.text import plural
from fedlgd.core.tree import add, cast, double, only, scale, sqnorm, sub
from fedlgd.core.types import Hello, Params, ServerState, Update
from fedlgd.engines.wire import pack
from fedlgd.methods.protocol import Expected

MAX_NAMED = 5  # sites, and reasons, that a message names
MAX_FLOAT = sys.float_info.max
MAX_COUNT = 10**12  # images of a site, or a weight: sums over all sites stay exact
MAX_SECONDS = 1e9  # seconds of a task, about 30 years
MAX_MAGNITUDE = 1e40  # a loss, or FLOPs of a task: sums over all sites stay finite, and no float32 is higher
CHANGED = "a changed setting needs a new run: another --out"
DIVERGED = f"lower local.lr or the step of the server, or bound every update with clip_update ({CHANGED})"


def refusal(update: Update | None, site: str, expected: Expected) -> str:
    """Why the server refuses what `site` sent in a round; empty if the update is valid."""
    return next(_update_faults(update, site, expected), "")


def hello_refusal(hello: Hello | None, site: str, expected: Hello) -> str:
    """Why the server refuses what `site` sent at enrolment; empty if it is valid."""
    return next(_hello_faults(hello, site, expected), "")


def finite_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Metrics are only reported: one that is not a finite number is recorded as NaN."""
    return {str(name): float(value) if _finite(value) else math.nan for name, value in metrics.items()}


def cost_refusal(spent: Spent) -> str:
    """Why the server refuses the costs that a site reports; they are added up in the records."""
    for part, most in ((spent.seconds, MAX_SECONDS), (spent.cpu, MAX_SECONDS), (spent.flops, MAX_MAGNITUDE)):
        for phase, value in part.items():
            if not (_finite(value) and 0 <= value <= most):
                return f"its costs are not possible: {value!r} for {phase!r}; they go from 0 to {most:g}"
    return ""


def score_refusal(score: Score | None, classes: int) -> str:
    """Why the server refuses a score; empty if it is valid. A loss can be not finite: the model diverged."""
    if score is None:
        return "it sent no score"
    if not 0 <= score.accuracy <= 1 or not (score.auc is None or 0 <= score.auc <= 1):
        return f"its accuracy is {score.accuracy} and its AUC {score.auc}; both go from 0 to 1"
    if not len(score.correct) == len(score.total) == classes or not any(score.total):
        return f"it has {len(score.correct)} and {len(score.total)} counts of {classes} classes, or no image"
    if not all(0 <= right <= count <= MAX_COUNT for right, count in zip(score.correct, score.total, strict=True)):
        return f"it counts more correct images than there are, or more than {MAX_COUNT:,} images"
    if abs(score.accuracy - sum(score.correct) / sum(score.total)) > 1e-6:
        counts = f"{sum(score.correct)} of {plural(sum(score.total), 'image')}"
        return f"its accuracy is {score.accuracy}, but it counts {counts} as correct"
    if math.isfinite(score.loss) and not 0 <= score.loss <= MAX_MAGNITUDE:
        return f"its loss is {score.loss}; a loss goes from 0 to {MAX_MAGNITUDE:g}"
    return ""


def clip_update(update: Update, before: Params, bound: float, trainable: frozenset[str]) -> tuple[Update, float]:
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


def check_enrolled(asked: int, refused: Mapping[str, str], quorum: float) -> None:
    """Stop before the first round if fewer than `quorum` of the sites enrolled."""
    least = needed(asked, quorum)
    if asked - len(refused) < least:
        raise RunError(
            f"enrolment: refused {listed(refused)}; correct these sites or leave them out, or lower quorum: "
            f"{asked - len(refused)} of {plural(asked, 'site')} enrolled, quorum={quorum:g} needs {least}"
        )


def check_quorum(t: int, valid: int, asked: int, refused: Mapping[str, str], quorum: float) -> None:
    """Stop before the commit if fewer than `quorum` of the sites that were asked sent a valid update."""
    least = needed(asked, quorum)
    if valid < least:
        raise RunError(
            f"round {t + 1}: {valid} of {plural(asked, 'site')} sent a valid update, quorum={quorum:g} needs "
            f"{least}; refused: {listed(refused)}. The round is not committed; correct the cause, or lower quorum "
            f"to go on without these sites ({CHANGED})"
        )


def needed(asked: int, quorum: float) -> int:
    """The least number of `asked` sites that have to answer."""
    return max(1, math.ceil(quorum * asked - 1e-9))


def listed(refused: Mapping[str, str]) -> str:
    """'bee', 'cat' (it did not answer), 'dog' (weight is nan) and 40 more: equal reasons once"""
    alike: dict[str, list[str]] = {}
    for site, reason in sorted(refused.items()):
        alike.setdefault(reason, []).append(repr(site))
    return _first([f"{_first(sites)} ({reason})" for reason, sites in alike.items()])


def _first(words: list[str]) -> str:
    return ", ".join(words[:MAX_NAMED]) + (f" and {len(words) - MAX_NAMED} more" if len(words) > MAX_NAMED else "")


def check_state(state: ServerState) -> None:
    """Stop before the commit if the new model or the new anchors are not finite, though every update was."""
    t = state.round
    for name, value in state.params.items():
        if not _all_finite(value):
            raise RunError(f"round {t}: {name!r} of the new model is not finite: training diverged; {DIVERGED}")
    if state.anchors and not _all_finite(state.anchors.images):
        raise RunError(
            f"round {t}: the anchors are not finite: gradient matching diverged; lower anchors.lr ({CHANGED})"
        )


def diverged(t: int, scores: Mapping[str, Score], quorum: float) -> dict[str, str]:
    """The sites at which the model has no finite loss, as they say; stop before the commit if too few have one."""
    bad = {site: f"its loss is {score.loss}" for site, score in scores.items() if not math.isfinite(score.loss)}
    if bad and len(scores) - len(bad) < needed(len(scores), quorum):
        raise RunError(
            f"round {t + 1}: the test loss is not finite at {listed(bad)}: training diverged; {DIVERGED}"
        )
    return bad


def _update_faults(update: Update | None, site: str, expected: Expected) -> Iterator[str]:
    if update is None:
        yield "it sent no update"
        return
    if update.site != site:
        yield f"the update is signed {update.site!r}"
    if not (_finite(update.weight) and 0 < update.weight <= MAX_COUNT):
        yield f"weight is {update.weight!r}; it must be more than 0 and at most {MAX_COUNT:,}"
    sent, wanted = (pack({"params": of.params, "trees": of.trees})[0] for of in (update, expected))
    yield from _tensor_faults(sent, wanted)
    for path, value in sent.items():
        if not _all_finite(value):
            yield f"{path!r} has values that are not finite"
    for path, least in expected.least.items():
        if bool((sent[path] < least).any()):
            yield f"{path!r} has values below {least}"


def _hello_faults(hello: Hello | None, site: str, expected: Hello) -> Iterator[str]:
    if hello is None:
        yield "it sent nothing"
        return
    if hello.site != site:
        yield f"the message is signed {hello.site!r}"
    yield from _tensor_faults(pack(hello)[0], pack(expected)[0])
    if bool(((hello.counts < 0) | (hello.counts > MAX_COUNT)).any()) or not bool(hello.counts.any()):
        yield f"counts are {hello.counts.tolist()}; they go from 0 to {MAX_COUNT:,}, and one must be positive"
    if hello.statistics is not None:
        held = hello.statistics[hello.counts > 0]
        if not _all_finite(held) or bool(hello.statistics.isinf().any()):
            yield "statistics has values that are not finite"
        if bool((held[:, 1] < 0).any()):
            yield "statistics has a standard deviation below 0"


def _tensor_faults(sent: Params, wanted: Params) -> Iterator[str]:
    """Names, shapes, kinds of numbers and layouts."""
    for path in wanted:
        if path not in sent:
            yield f"tensor {path!r} is missing"
    for path in sent:
        if path not in wanted:
            yield f"tensor {path!r} is not expected; a method that sends it declares it in `expects`"
    for path, value in sent.items():
        found, right = _form(value), _form(wanted[path])
        if found != right:
            yield f"{path!r} is {found}, expected {right}"


def _form(value: Tensor) -> str:
    sparse = "" if value.layout == torch.strided else f" {value.layout}"
    return f"{str(value.dtype).removeprefix('torch.')}{sparse} {tuple(value.shape)}"


def _finite(value: object) -> bool:
    """A number that a float can hold."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -MAX_FLOAT <= value <= MAX_FLOAT


def _all_finite(value: Tensor) -> bool:
    return bool(value.isfinite().all())
