"""Promises of privacy that cover all rounds of a run."""

from dataclasses import replace

from fedlgd.core.errors import PrivacyError
from fedlgd.distill.budget import Budget
from fedlgd.methods.dpfedavg import DpFedAvg, SiteDp
from fedlgd.methods.dpsgd import Dp, DpSgd
from fedlgd.methods.parts import Part
from fedlgd.methods.protocol import Method


def budget_of(method: Method) -> Budget | None:
    """The budget of a method that makes a promise of privacy."""
    if isinstance(method, DpSgd):
        return method.dp
    if isinstance(method, DpFedAvg):
        return method.site_dp
    if isinstance(method, Part):
        return budget_of(method.method)
    distil = getattr(method, "distil", None)
    return distil.private if distil is not None and distil.private.on else None


def is_private(method: Method) -> bool:
    """Whether a method makes a promise of privacy: then no real image may be shown or analysed."""
    return budget_of(method) is not None


def promise(method: Method) -> str:
    """What is promised, in one sentence; empty without a promise."""
    budget = budget_of(method)
    if budget is None:
        return ""
    if budget.test_key:
        return f"Simulation, no privacy: the noise comes from {budget.section}.test_key, which is public."
    if isinstance(budget, SiteDp):
        return f"Privacy of each site in this run: (epsilon, delta) = ({budget.epsilon:g}, {budget.delta:g})."
    scores = f"epsilon {budget.scores:g} for each of them" if budget.scores else "not covered"
    return f"Privacy of each training image: {budget.promise}. Scores on test images: {scores}."


def for_rounds(method: Method, rounds: int) -> Method:
    """The method with its budget divided among `rounds`, unless its settings give their number."""
    if not isinstance(method, Part):
        return method
    found = {name: part for name, part in method.sections.items() if isinstance(part, Dp | SiteDp)}
    for name, part in found.items():
        if 0 < part.rounds < rounds:
            raise PrivacyError(
                f"{name}.rounds is {part.rounds}, but the run has {rounds}; use rounds={part.rounds}, or leave "
                f"{name}.rounds out to divide the budget among all rounds"
            )
    decided = {name: replace(part, rounds=part.rounds or rounds) for name, part in found.items()}
    return replace(method, method=for_rounds(method.method, rounds), **decided)
