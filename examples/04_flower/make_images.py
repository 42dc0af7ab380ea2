"""Write images for three sites, to try a federation of real sites on one machine.

Run: python examples/04_flower/make_images.py images        makes images/a, images/b and images/c
They are built-in digits in three styles, as image files in one folder per class and part.
"""

import argparse
from pathlib import Path

from PIL import Image

import fedlgd
from fedlgd.core.types import LabelledSet

SITES = ("a", "b", "c")


def main(root: Path, limit: int = 300, test_limit: int = 100) -> Path:
    """`limit` training and `test_limit` test images per site; returns the root."""
    federation = fedlgd.load("builtin-digits", limit=limit, test_limit=test_limit)
    for name, site in zip(SITES, federation.sites, strict=False):
        for part, images in (("train", site.train), ("test", site.test)):
            save(root / name / part, images, site.classes)
    return root


def save(folder: Path, images: LabelledSet, classes: tuple[str, ...]) -> None:
    for i, (x, y) in enumerate(zip(images.x, images.y.tolist(), strict=True)):
        file = folder / classes[y] / f"{i:04d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(x.permute(1, 2, 0).numpy()).save(file)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("images"))
    print(main(parser.parse_args().folder))
