"""Damaged copies of a file's bytes, and whether a reader notices."""

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedlgd.core.errors import RunError


def noticed(read: Callable[[Path], Any], file: Path) -> bool:
    """Is the damage reported, with the name of the file and the way out?"""
    try:
        read(file)
    except RunError as error:
        return re.search(rf"{file.name}' is damaged or missing .*Restore.*--out", str(error)) is not None
    return False


def positions(length: int, count: int) -> list[int]:
    """Both ends and random places between."""
    return sorted({0, 1, 7, 8, length - 1, *random.Random(length).sample(range(length), min(count, length))})


def flips(content: bytes, count: int) -> list[tuple[int, bytes]]:
    """Copies with one bit, or one whole byte, turned round."""
    rng = random.Random(0)
    masks = [1 << bit for bit in range(8)] + [0xFF]
    copies = []
    for position in positions(len(content), count):
        turned = bytearray(content)
        turned[position] ^= rng.choice(masks)
        copies.append((position, bytes(turned)))
    return copies
