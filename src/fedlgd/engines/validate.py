"""What the server accepts from a site. Each check gives the reason for a refusal, or nothing."""

import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from fedlgd.core.errors import RunError
from fedlgd.core.pack import pack
from fedlgd.core.records import Score
from fedlgd.core.types import Hello, Params, ServerState, Update
from fedlgd.methods.protocol import Expected

NAMED = 5  # sites, and reasons, that a message names
LARGEST = sys.float_info.max
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


def check_quorum(t: int, valid: int, asked: int, refused: Mapping[str, str], quorum: float) -> None:
    """Stop before the commit if fewer than `quorum` of the sites that were asked sent a valid update."""
    needed = max(1, math.ceil(quorum * asked - 1e-9))
    if valid < needed:
        raise RunError(
            f"round {t + 1}: {valid} of {asked} sites sent a valid update, quorum={quorum:g} needs {needed}; "
            f"refused: {listed(refused)}. The round is not committed; correct the cause, or lower quorum to go "
            f"on without these sites ({CHANGED})"
        )


def listed(refused: Mapping[str, str]) -> str:
    """'bee', 'cat' (it did not answer), 'dog' (weight is nan) and 40 more: equal reasons once"""
    alike: dict[str, list[str]] = {}
    for site, reason in sorted(refused.items()):
        alike.setdefault(reason, []).append(repr(site))
    return _first([f"{_first(sites)} ({reason})" for reason, sites in alike.items()])


def _first(words: list[str]) -> str:
    return ", ".join(words[:NAMED]) + (f" and {len(words) - NAMED} more" if len(words) > NAMED else "")


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


def check_scores(t: int, scores: Mapping[str, Score]) -> None:
    """Stop before the commit if the model has no finite loss at a site."""
    bad = {site: f"{score.loss}" for site, score in scores.items() if not math.isfinite(score.loss)}
    if bad:
        raise RunError(
            f"round {t + 1}: the test loss is not finite at {listed(bad)}: training diverged; {DIVERGED}"
        )


def _update_faults(update: Update | None, site: str, expected: Expected) -> Iterator[str]:
    if update is None:
        yield "it sent no update"
        return
    if update.site != site:
        yield f"the update is signed {update.site!r}"
    if not (_finite(update.weight) and update.weight > 0):
        yield f"weight is {update.weight!r}; it must be finite and more than 0"
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
    if bool((hello.counts < 0).any()) or not bool(hello.counts.any()):
        yield f"counts are {hello.counts.tolist()}; none may be negative, and one must be positive"
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
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST


def _all_finite(value: Tensor) -> bool:
    return bool(value.isfinite().all())
