"""Public names of a package, imported on first use. They stand once, in the stub that type checkers read."""

import ast
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any


@cache
def public_names(file: str) -> dict[str, str]:
    """The public names of the package with this `__init__.py`, and their modules."""
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    found = [node for node in stub.body if isinstance(node, ast.ImportFrom) and node.module != "typing"]
    return {alias.name: str(node.module) for node in found for alias in node.names}


def on_first_use(package: str, file: str, *own: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package; `own` are names that it defines itself.

    `fedlgd --help` does not import torch, and the modules of a package can import each other.
    """

    def get(name: str) -> Any:
        if name == "__all__":
            return [*own, *public_names(file)]
        if name not in public_names(file):
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(__import__(public_names(file)[name], fromlist=[name]), name)  # a module is found as well

    return get, lambda: [*own, *public_names(file)]
