"""A small folder of rendered images for a first try: `fedlgd data example`.

Three sites of unequal size photograph the same two classes with different cameras: a disc without (`normal`) and
with a bright spot (`lesion`). Nothing in it is a photograph of anyone. The same version writes the same bytes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedlgd.core.errors import DataError
from fedlgd.core.files import write_atomic, writing

SIDE = 40  # pixels
CLASSES = ("lesion", "normal")
README = """\
These images are rendered by `fedlgd data example`, not photographed: no person and no patient is in them.

Three sites (north, east, west) have discs without (normal) and with a bright spot (lesion). The sites differ in
size, colour, light, sharpness and noise. Use them to try the commands, not to judge methods.

{table}

    fedlgd data check {folder}
    fedlgd run {folder} --preset quick --rounds 20 --set data.size=32 --out runs/mine
"""

Plane = NDArray[np.float64]


@dataclass(frozen=True)
class Camera:
    """A site: images of each class, and how its camera sees. light: darkening at the right edge, 0 to 1."""

    train: int
    test: int
    disc: tuple[float, float, float]
    spot: float
    light: float
    blur: int
    noise: float


CAMERAS = {
    "north": Camera(train=120, test=140, disc=(0.75, 0.42, 0.22), spot=0.34, light=0.2, blur=0, noise=0.05),
    "east": Camera(train=60, test=110, disc=(0.30, 0.38, 0.55), spot=0.28, light=0.6, blur=1, noise=0.04),
    "west": Camera(train=24, test=90, disc=(0.55, 0.55, 0.50), spot=0.34, light=0.0, blur=0, noise=0.11),
}


def write_example(folder: Path) -> int:
    """Write the images as site/train|test/class/number.png; the number of images. The folder is new or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError("example-folder-not-empty", folder=str(folder))
    count = 0
    with writing(folder, "Choose another folder"):
        for place, image in images():
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            image.save(folder / place)
            count += 1
        rows = [
            f"{name}: {2 * site.train} training and {2 * site.test} test images" for name, site in CAMERAS.items()
        ]
        text = README.format(table="\n".join(rows), folder=folder)
        write_atomic(folder / "README.md", text.encode())
    return count


def images() -> Iterator[tuple[Path, Image.Image]]:
    """Every image with its place in the folder."""
    for number, (name, site) in enumerate(CAMERAS.items()):
        for part, count in (("train", site.train), ("test", site.test)):
            for label in CLASSES:
                random = np.random.Generator(np.random.PCG64([number, part == "test", CLASSES.index(label)]))
                for i in range(count):
                    yield Path(name, part, label, f"{i:03d}.png"), photograph(site, label == "lesion", random)


def photograph(site: Camera, lesion: bool, random: np.random.Generator) -> Image.Image:
    """A disc with vessels, and a bright spot if it has a lesion, as the camera of the site sees it."""
    y, x = np.mgrid[:SIDE, :SIDE] / (SIDE - 1) * 2 - 1
    centre, radius = random.uniform(-0.1, 0.1, 2), random.uniform(0.8, 0.9)
    disc = _soft((radius - np.hypot(x - centre[0], y - centre[1])) * 14)
    tissue = 1 + 0.10 * _soft_noise(random)
    for _ in range(4):  # vessels: dark lines through the disc
        angle, offset = random.uniform(0, np.pi), random.uniform(-0.5, 0.5)
        distance = x * np.cos(angle) + y * np.sin(angle) - offset + 0.15 * np.sin(3 * (y - x))
        tissue -= 0.22 * np.exp(-((distance / 0.05) ** 2))
    angle, far = random.uniform(0, 2 * np.pi), random.uniform(0, 0.55)
    width, strength = random.uniform(0.10, 0.20), site.spot * random.uniform(0.6, 1.4)
    away = np.hypot(x - far * np.cos(angle), y - far * np.sin(angle))
    spot = lesion * strength * np.exp(-((away / width) ** 2))
    light = 1 - site.light * (x + 1) / 2
    planes = [disc * (colour * tissue + spot) * light for colour in site.disc]
    for _ in range(site.blur):
        planes = [_blurred(plane) for plane in planes]
    pixels = np.stack(planes, 2) + site.noise * random.standard_normal((SIDE, SIDE, 1))
    return Image.fromarray((255 * pixels.clip(0, 1)).round().astype(np.uint8))


def _soft(values: Plane) -> Plane:
    """A step from 0 to 1 without an edge."""
    return np.clip(values + 0.5, 0, 1)


def _soft_noise(random: np.random.Generator) -> Plane:
    """Noise whose neighbours are alike, of variance 1."""
    plane = random.standard_normal((SIDE, SIDE))
    for _ in range(3):
        plane = _blurred(plane)
    return np.asarray(plane / plane.std())


def _blurred(plane: Plane) -> Plane:
    """The mean over 3x3 neighbours."""
    padded = np.pad(plane, 1, mode="edge")
    rows = padded[:-2] + padded[1:-1] + padded[2:]
    return (rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:]) / 9
