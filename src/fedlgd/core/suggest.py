"""Suggestions for misspelled names, and imports of what may be missing. This module does not import torch."""

import difflib
import importlib
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedlgd.core.errors import FedlgdError, SettingError


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'fedavg'?`, or an empty string if no known word is similar."""
    near = difflib.get_close_matches(word, list(known), 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def similar_path(path: Path, folders_only: bool = False) -> str:
    """`; did you mean 'runs/mine'?` for a path that does not exist: a similar name in the same folder."""
    parent = path.parent if path.parent.is_dir() else Path()
    names = [each.name for each in parent.iterdir() if each.is_dir() or not folders_only]
    near = difflib.get_close_matches(path.name, names, 1) if path.parent == parent else []
    return f"; did you mean {str(parent / near[0])!r}?" if near else ""


def own_class(spec: str, what: str, kind: type[FedlgdError] = SettingError) -> Any:
    """Import `package.module:Class`; the current folder is searched too."""
    module, _, attribute = spec.partition(":")
    if "" not in sys.path:
        sys.path.append("")
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise kind(f"cannot import {what} {spec!r}: {error}") from error


def check_flower() -> None:
    """Refuse to go on without the packages that real sites need."""
    if find_spec("flwr") is None or find_spec("cryptography") is None:
        raise SettingError("engine flower needs two more packages; install them: pip install 'fedlgd[flower]'")
