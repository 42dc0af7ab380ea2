"""Results of one kind beside each other in a run folder: `audit.json`, `audit-2.json`, and so on. Without torch."""

import re
from pathlib import Path


def stored(folder: Path, kind: str) -> list[Path]:
    """The files of this kind, the oldest first."""
    numbers = {file: _number(file.stem, kind) for file in folder.glob(f"{kind}*.json")}
    return sorted((file for file, number in numbers.items() if number), key=numbers.__getitem__)


def unused(folder: Path, kind: str) -> Path:
    """A file for one more result of this kind."""
    last = max((_number(file.stem, kind) for file in stored(folder, kind)), default=0)
    return folder / (f"{kind}-{last + 1}.json" if last else f"{kind}.json")


def _number(name: str, kind: str) -> int:
    """1 for `kind`, 2 for `kind-2`; 0: not of this kind."""
    found = re.fullmatch(rf"{kind}(?:-([1-9][0-9]{{0,5}}))?", name)
    return int(found[1] or 1) if found else 0
