"""Sweeps: entries of a comparison with every combination of some values, and their names in tables. No torch."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from fedlgd.core.errors import SettingError
from fedlgd.core.files import safe_name

NOTE = re.compile(r"(?P<base>.+) \((?P<note>[\w.-]+=[^,()]+(?:, [\w.-]+=[^,()]+)*)\)")


def check_axes(axes: Mapping[str, Sequence[Any]]) -> None:
    """A sweep has one or two axes, each with different values."""
    if len(axes) > 2:
        raise SettingError("sweep-axes", n=len(axes), axes=list(axes))
    for path, values in axes.items():
        listed = isinstance(values, Sequence) and not isinstance(values, str)
        if not listed or not values or any(value in values[:at] for at, value in enumerate(values)):
            raise SettingError("sweep-values", path=path, values=values)


def points(axes: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Every combination of one value of each axis; one empty combination without axes."""
    for values in product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def swept(entries: Sequence[str], axes: Mapping[str, Sequence[Any]]) -> list[str]:
    """Every entry at every point: `fedlgd:pull.weight=1`."""
    return [
        ":".join([entry, *(f"{path}={value}" for path, value in point.items())])
        for entry in entries
        for point in points(axes)
    ]


def entry_folder(spec: str) -> str:
    """The folder of an entry in a comparison."""
    return safe_name(spec.replace(":", "-").replace("+", "-").replace("=", "-"))


def with_note(label: str, settings: Mapping[str, Any]) -> str:
    """`FedLGD (pull.weight=1)`"""
    note = ", ".join(f"{path}={value}" for path, value in settings.items())
    return f"{label} ({note})" if note else label


def without_note(label: str) -> tuple[str, dict[str, str]]:
    """`FedLGD` and the settings in the note of a label."""
    found = NOTE.fullmatch(label)
    if not found:
        return label, {}
    pairs = (each.partition("=") for each in found["note"].split(", "))
    return found["base"], {path: value for path, _, value in pairs}
