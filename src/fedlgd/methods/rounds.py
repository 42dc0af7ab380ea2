"""Promises of privacy that cover all rounds of a run."""

from dataclasses import replace

from fedlgd.core.errors import PrivacyError
from fedlgd.methods.dpfedavg import DpFedAvg, SiteDp
from fedlgd.methods.dpsgd import Dp, DpSgd
from fedlgd.methods.parts import Part
from fedlgd.methods.protocol import Method


def is_private(method: Method) -> bool:
    """Whether a method makes a promise of privacy: then no real image may be shown or analysed."""
    if isinstance(method, Part):
        return isinstance(method, DpSgd | DpFedAvg) or is_private(method.method)
    distil = getattr(method, "distil", None)
    return distil is not None and distil.private.on


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
