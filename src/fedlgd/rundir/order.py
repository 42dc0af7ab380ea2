"""The order of the methods of a comparison, as they were given: `comparison.json` in its folder. No torch."""

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedlgd.core.errors import FedlgdError
from fedlgd.core.files import make_folder, read_json, write_json, writing

COMPARISON = "comparison.json"
_NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:e-?\d+)?)")


def write_order(folder: Path, names: Iterable[str]) -> None:
    """Store the order of the folders of methods; those of an earlier comparison in this folder come last."""
    order = [*dict.fromkeys((*names, *_stored(folder)))]
    with writing(folder):
        make_folder(folder)
        write_json(folder / COMPARISON, {"order": order})


def _stored(folder: Path) -> list[str]:
    """Nothing if there is no such file, or a damaged one: an order is not worth an error."""
    with suppress(FedlgdError, OSError, LookupError, TypeError):
        return [str(name) for name in read_json(folder / COMPARISON)["order"]]
    return []


def sort_runs(root: Path, runs: Iterable[Path]) -> list[Path]:
    """Runs inside a folder: as its methods were given, then by name; numbers in names are in ascending order."""
    order = {name: at for at, name in enumerate(_stored(root))}

    def key(run: Path) -> tuple[int, list[Any]]:
        parts = run.relative_to(root).parts
        words = [enumerate(_NUMBER.split(part)) for part in parts]  # text and numbers in turn
        named = [[float(word) if at % 2 else word for at, word in part] for part in words]
        return order.get(parts[0] if parts else "", len(order)), named

    return sorted(runs, key=key)
