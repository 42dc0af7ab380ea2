"""Federations by name."""

import difflib
from collections.abc import Callable
from dataclasses import dataclass

from fedlgd.core.errors import DataError
from fedlgd.data.builtin import builtin_digits
from fedlgd.data.federation import Federation, limited


@dataclass(frozen=True)
class Suite:
    """A named federation and how to open it."""

    about: str
    open: Callable[..., Federation]


SUITES: dict[str, Suite] = {
    "builtin-digits": Suite(
        "five digit sites with real domain shift, 28x28 RGB, made from images inside PyPI packages",
        builtin_digits,
    ),
}


def load(name: str, limit: int = 0, test_limit: int = 0) -> Federation:
    """The named federation; `limit` and `test_limit` cap the images per site (0: all)."""
    if name not in SUITES:
        near = difflib.get_close_matches(name, SUITES, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise DataError(f"no data suite is called {name!r}; {hint}there are: {', '.join(SUITES)}")
    for key, value in (("limit", limit), ("test_limit", test_limit)):
        if value < 0:
            raise DataError(f"data.{key} is {value}; use 0 for all images or a positive number")
    whole = SUITES[name].open()
    return limited(whole, limit, test_limit) if limit or test_limit else whole
