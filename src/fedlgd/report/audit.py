"""What an audit found, as it wrote it down: `audit.json` beside the records of a run."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedlgd.report.groups import Group
from fedlgd.report.tables import Cell, Column, Table


def audits(groups: Sequence[Group]) -> tuple[tuple[str, int, Table], ...]:
    """Label, seed and findings of every run that was audited."""
    audited = (run for group in groups for run in group.runs if run.audit)
    return tuple((run.label, run.seed, _table(run.audit)) for run in audited)


def _table(audit: Mapping[str, Any]) -> Table:
    rows = tuple((Cell(path), Cell(text)) for path, text in _leaves(audit))
    return Table((Column("finding", number=False), Column("value", number=False)), rows)


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Names joined by dots, and what they stand for; a list of plain values is one line."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if path or key not in {"digest", "format"}:
                yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(each, (dict, list)) for each in value):
        for number, inner in enumerate(value):
            yield from _leaves(inner, f"{path}.{number}")
    else:
        yield path, ", ".join(map(_text, value)) if isinstance(value, list) else _text(value)


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
