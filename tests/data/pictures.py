"""Small trees of image files, made by the test that wants them."""

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

SIDE = 8


def noise(seed: int, side: int = SIDE, grey: bool = False) -> Image.Image:
    shape = (side, side) if grey else (side, side, 3)
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, np.uint8))


def save(path: Path, image: Image.Image, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)
    return path


def tree(
    root: Path, sites: Sequence[str] = ("a", "b"), classes: Mapping[str, int] = {"no": 6, "yes": 6}, **how: bool
) -> Path:
    """site/class/image with different images everywhere; returns the root."""
    seed = 0
    for site in sites:
        for label, count in classes.items():
            for i in range(count):
                seed += 1
                save(root / site / label / f"{i}.png", noise(seed, **how))
    return root


def divided(root: Path, train: str = "Training", test: str = "Testing") -> Path:
    """site/train|test/class/image, four and two of each class."""
    for site in ("a", "b"):
        for part, count in ((train, 4), (test, 2)):
            for label in ("no", "yes"):
                for i in range(count):
                    seed = zlib.crc32(repr((site, part.lower(), label, i)).encode())
                    save(root / site / part / label / f"{i}.png", noise(seed))
    return root
