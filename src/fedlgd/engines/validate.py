"""What the server accepts.

Checks of what a site sent (`check_hello`, `check_update`, `check_score`, and `check_costs` for all of them) raise
`Refused`: the round goes on without the site. Checks of a round raise `RunError`: the run stops before the commit.
"""

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedlgd.core.errors import FedlgdError, RunError
from fedlgd.core.meter import Spent
from fedlgd.core.net import Net
from fedlgd.core.score import Score
from fedlgd.core.tree import add, cast, double, only, scale, sqnorm, sub
from fedlgd.core.types import Hello, Params, ServerState, Update
from fedlgd.engines.site import Answer, Task
from fedlgd.engines.storage import version_after
from fedlgd.engines.wire import pack
from fedlgd.methods.protocol import Method

MAX_NAMED = 5  # sites, and reasons, that a message names
MAX_FAULTS = 8  # tensors of one message that a refusal names
MAX_COUNT = 10**12  # images of a site, or a weight: sums over all sites stay exact
MAX_SECONDS = 1e9  # of a task, about 30 years
MAX_SUMMAND = 1e40  # a loss, or FLOPs of a task: sums over all sites stay finite, and no float32 is higher


class Refused(FedlgdError):  # noqa: N818 (a result of a check, not a fault of the program)
    """The server does not use what a site sent. The record of the round has the message."""


def check_hello(answer: Answer, method: Method, net: Net) -> Hello:
    """What a site sent at enrolment, if it is what the method expects."""
    hello = answer.hello
    if hello is None:
        raise Refused("hello-missing")
    if hello.site != answer.site:
        raise Refused("hello-signed", signed=hello.site)
    sent = pack(hello)[0]
    _check_tensors(sent, pack(method.expects_hello(net))[0], method.expects_hello)
    _check_finite({path: value for path, value in sent.items() if path.startswith("trees/")})
    if bool(((hello.counts < 0) | (hello.counts > MAX_COUNT)).any()) or not bool(hello.counts.any()):
        raise Refused("counts-impossible", counts=hello.counts.tolist(), most=MAX_COUNT)
    if hello.statistics is not None:
        held = hello.statistics[hello.counts > 0]
        if not _all_finite(held) or bool(hello.statistics.isinf().any()):
            raise Refused("statistics-not-finite")
        if bool((held[:, 1] < 0).any()):
            raise Refused("statistics-negative")
    return hello


def check_update(answer: Answer, task: Task, method: Method, net: Net, hello: Hello) -> Update:
    """What a site sent in a round, if it is what the method expects of the site with this `hello`.

    A metric that is not a finite number becomes NaN.
    """
    update, message = answer.update, task.message
    assert message is not None
    new = version_after(task.round, message.exchange, method.exchanges)
    if answer.version not in (new, task.after):
        raise Refused("version-unknown", version=answer.version, after=task.after, new=new)
    if update is None:
        raise Refused("update-missing")
    if update.site != answer.site:
        raise Refused("update-signed", signed=update.site)
    if not (_finite(update.weight) and 0 < update.weight <= MAX_COUNT):
        raise Refused("weight-impossible", weight=update.weight, most=MAX_COUNT)
    expected = method.expects(message, net, hello)
    sent, wanted = (pack({"params": of.params, "trees": of.trees})[0] for of in (update, expected))
    _check_tensors(sent, wanted, method.expects)
    _check_finite(sent)
    for path, least in expected.least.items():
        if bool((sent[path] < least).any()):
            raise Refused("tensor-too-low", path=path, least=least)
    metrics = {str(name): float(v) if _finite(v) else math.nan for name, v in update.metrics.items()}
    return replace(update, metrics=metrics)


def check_score(answer: Answer, classes: int) -> Score:
    """A score, if it is valid. Its loss can be not finite: the model diverged."""
    score = answer.score
    if score is None:
        raise Refused("score-missing")
    if not 0 <= score.accuracy <= 1 or not (score.auc is None or 0 <= score.auc <= 1):
        raise Refused("accuracy-impossible", accuracy=score.accuracy, auc=score.auc)
    right, total = score.correct, score.total
    if not len(right) == len(total) == classes or not any(total):
        raise Refused("score-classes", correct=len(right), total=len(total), classes=classes)
    if not all(0 <= hits <= count <= MAX_COUNT for hits, count in zip(right, total, strict=True)):
        raise Refused("score-counts", most=MAX_COUNT)
    if abs(score.accuracy - sum(right) / sum(total)) > 1e-6:
        raise Refused("accuracy-differs", accuracy=score.accuracy, correct=sum(right), images=sum(total))
    if math.isfinite(score.loss) and not 0 <= score.loss <= MAX_SUMMAND:
        raise Refused("loss-impossible", loss=score.loss, most=MAX_SUMMAND)
    return score


def check_costs(spent: Spent) -> None:
    """Refuse costs that no work has; they are added up in the records."""
    for part, most in ((spent.seconds, MAX_SECONDS), (spent.cpu, MAX_SECONDS), (spent.flops, MAX_SUMMAND)):
        for phase, value in part.items():
            if not (_finite(value) and 0 <= value <= most):
                raise Refused("costs-impossible", value=value, phase=phase, most=most)


def _check_tensors(sent: Params, wanted: Params, expects: Callable[..., object]) -> None:
    """Names, shapes, kinds of numbers and layouts. The refusal lists all that differs, and names the function of
    the method, or of a part of it, that returned `wanted`."""
    missing = [f"{path!r} is missing" for path in wanted if path not in sent]
    extra = [f"{path!r} ({_form(value)}) is not expected" for path, value in sent.items() if path not in wanted]
    forms = {path: (_form(value), _form(wanted[path])) for path, value in sent.items() if path in wanted}
    other = [
        f"{path!r} is {found}, not {expected}" for path, (found, expected) in forms.items() if found != expected
    ]
    if faults := [*missing, *extra, *other]:
        declared = f"{type(getattr(expects, '__self__', None)).__name__}.{expects.__name__}"
        raise Refused("tensors-differ", declared=declared, faults=_first(faults, MAX_FAULTS))


def _check_finite(sent: Params) -> None:
    if faults := [repr(path) for path, value in sent.items() if not _all_finite(value)]:
        raise Refused("tensor-not-finite", paths=_first(faults, MAX_FAULTS))


def _form(value: Tensor) -> str:
    sparse = "" if value.layout == torch.strided else f" {value.layout}"
    return f"{str(value.dtype).removeprefix('torch.')}{sparse} {tuple(value.shape)}"


def _finite(value: Any) -> bool:
    """A number that a float can hold."""
    largest = sys.float_info.max
    return isinstance(value, int | float) and not isinstance(value, bool) and -largest <= value <= largest


def _all_finite(value: Tensor) -> bool:
    return bool(value.isfinite().all())


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
    enrolled, least = asked - len(refused), quorum_size(asked, quorum)
    if enrolled < least:
        sites = listed(refused)
        raise RunError("too-few-enrolled", sites=sites, enrolled=enrolled, asked=asked, quorum=quorum, least=least)


def check_quorum(t: int, valid: int, asked: int, refused: Mapping[str, str], quorum: float) -> None:
    """Stop before the commit if fewer than `quorum` of the sites that were asked sent a valid update."""
    least = quorum_size(asked, quorum)
    if valid < least:
        found = {"round": t + 1, "valid": valid, "asked": asked, "quorum": quorum, "least": least}
        raise RunError("too-few-updates", sites=listed(refused), **found)


def check_state(state: ServerState, t: int) -> None:
    """Stop before the commit if the model or the anchors of round t are not finite, though every update was."""
    for name, value in state.params.items():
        if not _all_finite(value):
            raise RunError("model-diverged", round=t + 1, tensor=name)
    if state.anchors and not _all_finite(state.anchors.images):
        raise RunError("anchors-diverged", round=t + 1)


def check_losses(t: int, scores: Mapping[str, Score], quorum: float) -> dict[str, str]:
    """The sites at which the model has no finite loss; stop before the commit if fewer than `quorum` have one."""
    bad = {site: f"its loss is {score.loss}" for site, score in scores.items() if not math.isfinite(score.loss)}
    if bad and len(scores) - len(bad) < quorum_size(len(scores), quorum):
        raise RunError("loss-diverged", round=t, sites=listed(bad))
    return bad


def quorum_size(asked: int, quorum: float) -> int:
    """The least number of `asked` sites that have to answer."""
    return max(1, math.ceil(quorum * asked - 1e-9))


def listed(refused: Mapping[str, str]) -> str:
    """'bee', 'cat' (it did not answer), 'dog' (weight is nan) and 40 more: equal reasons once"""
    alike: dict[str, list[str]] = {}
    for site, reason in sorted(refused.items()):
        alike.setdefault(reason, []).append(repr(site))
    return _first([f"{_first(sites)} ({reason})" for reason, sites in alike.items()])


def _first(words: list[str], most: int = MAX_NAMED) -> str:
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")
