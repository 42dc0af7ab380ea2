"""How the report writes numbers."""

import math

from fedlgd.report.groups import Stat

NONE = "–"
_BYTES = ("B", "kB", "MB", "GB", "TB", "PB")
_FLOPS = ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP")


def percent(share: float) -> str:
    """0.9123 -> "91.2" (the unit stands in the caption)."""
    return f"{100 * share:.1f}"


def percent_stat(stat: Stat | None) -> str:
    """A mean with its standard deviation over seeds, in percent."""
    if stat is None:
        return NONE
    return percent(stat.mean) if stat.std is None else f"{percent(stat.mean)} ± {percent(stat.std)}"


def points(difference: float) -> str:
    """A signed difference of two shares in percentage points, with a true minus sign; nothing has no sign."""
    written = f"{100 * difference:+.1f}".replace("-", "−")
    return "0.0" if written in {"+0.0", "−0.0"} else written


def number_of_bytes(value: float) -> str:
    return _scaled(value, _BYTES)


def operations(value: float) -> str:
    return _scaled(value, _FLOPS)


def duration(seconds: float) -> str:
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{_three_digits(seconds / size)} {unit}"
    return f"{_three_digits(seconds)} s"


def plural(count: int, noun: str) -> str:
    """plural(1, "seed") -> "1 seed"; plural(3, "seed") -> "3 seeds"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _scaled(value: float, units: tuple[str, ...]) -> str:
    step = min(int(math.log10(value)) // 3, len(units) - 1) if value >= 1 else 0
    amount = f"{value:.0f}" if step == 0 else _three_digits(value / 1000**step)
    return f"{amount} {units[step]}"


def _three_digits(value: float) -> str:
    decimals = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{decimals}f}"
