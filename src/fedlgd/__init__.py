"""Federated learning on small distilled data sets.

import fedlgd
federation = fedlgd.load("builtin-digits")
result = fedlgd.run(federation, fedlgd.FedLGD(), rounds=30)
result.accuracy, result.model, result.anchors, result.virtual, result.records
result.predict("digit.png")
"""

import ast
import importlib
from functools import cache
from pathlib import Path
from typing import Any

__version__ = "0.1.0"


@cache
def _homes() -> dict[str, str]:
    """The public names and their modules, which stand once, in the stub that type checkers read."""
    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    found = [node for node in stub.body if isinstance(node, ast.ImportFrom) and node.module != "typing"]
    return {alias.name: str(node.module) for node in found for alias in node.names}


def __getattr__(name: str) -> Any:
    """Import public names on first use, so that `fedlgd --help` does not import torch."""
    if name == "__all__":
        return ["__version__", *_homes()]
    if name not in _homes():
        raise AttributeError(f"module 'fedlgd' has no attribute {name!r}")
    return getattr(importlib.import_module(_homes()[name]), name)


def __dir__() -> list[str]:
    return ["__version__", *_homes()]
