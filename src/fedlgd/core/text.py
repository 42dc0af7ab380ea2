"""Words for numbers in messages and tables. This module does not import torch."""

import re
from collections.abc import Iterable, Mapping

BYTES = {f"{prefix}B": 1000.0**power for power, prefix in enumerate(("", "k", "M", "G", "T", "P"))}
TIME = {"s": 1.0, "min": 60.0, "h": 3600.0}


def plural(count: int, noun: str) -> str:
    """plural(1, "seed") -> "1 seed"; plural(3, "class") -> "3 classes"."""
    return f"{count} {counted(count, noun)}"


def counted(count: int, noun: str) -> str:
    """The noun alone, as it follows this number."""
    return noun if count == 1 else f"{noun}{'es' if noun.endswith(('s', 'ch')) else 's'}"


def enumeration(words: Iterable[str]) -> str:
    """enumeration(["a", "b", "c"]) -> "a, b and c"."""
    *rest, last = [*words] or [""]
    return f"{', '.join(rest)} and {last}" if rest else last


def percentage_points(difference: float) -> str:
    """A signed difference of two shares in percentage points; zero has no sign: 0.012 -> "+1.2"."""
    written = f"{100 * difference:+.1f}".replace("-", "−")
    return "0.0" if written in {"+0.0", "−0.0"} else written


def rounded_up(number: int) -> str:
    """To two digits upwards: 183 -> "190"; 12_300 -> "13 000"."""
    unit = 10 ** max(0, len(str(number)) - 2)
    return f"{-(-number // unit) * unit:,}".replace(",", " ")


def number_of_bytes(value: float) -> str:
    """999 -> "999 B"; 45_600_000 -> "45.6 MB"."""
    return scaled(value, BYTES)


def duration(seconds: float) -> str:
    """0.125 -> "0.12 s"; 119 -> "119 s"; 150 -> "2.50 min"; 36000 -> "10.0 h"."""
    unit = max((unit for unit in TIME if seconds >= 2 * TIME[unit]), key=TIME.__getitem__, default="s")
    return f"{three_digits(seconds / TIME[unit])} {unit}"


def rough_duration(seconds: float) -> str:
    """50 -> "about 50 s"; 840 -> "about 14 min"; 12000 -> "about 3 h 20 min"."""
    if seconds < 90:
        return f"about {seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"about {hours} h {minutes} min" if hours else f"about {minutes} min"


def scaled(value: float, units: Mapping[str, float]) -> str:
    """The value in the largest of these units that it reaches."""
    unit = max((unit for unit in units if value >= units[unit]), key=units.__getitem__, default=next(iter(units)))
    return f"{value:.0f} {unit}" if units[unit] == 1 else f"{three_digits(value / units[unit])} {unit}"


def tied(text: object) -> str:
    """The text without a line break between a number and its unit."""
    return re.sub(r"(?<=\d) (?=(?:%|s|min|h|B|[kMGT]B|[kMGTPE]?FLOP|points?)(?:\W|$))", "\u00a0", str(text))


def three_digits(value: float) -> str:
    """1.23, 12.3 or 123."""
    decimals = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{decimals}f}"
