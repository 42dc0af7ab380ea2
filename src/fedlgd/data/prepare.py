"""How images become network input: fitted to one size, as planes, scaled by the training images of the sites."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fedlgd.core.errors import DataError, did_you_mean
from fedlgd.core.types import Scale
from fedlgd.data.arrays import Pixels
from fedlgd.data.dicom import upper_bits
from fedlgd.data.images import SUFFIXES, Depth, ImageFile

Named = tuple[str, Image.Image]
Fit = Literal["stretch", "crop", "pad"]
Colour = Literal["auto", "grey"]
Scaling = Literal["half", "own", "shared"]

BILINEAR = Image.Resampling.BILINEAR
IMAGES_AT_ONCE = 256  # images summed at once
MIN_STD = 1 / 255  # least std: one grey level, for a channel that is constant


def fitted(image: Image.Image, size: int, fit: Fit = "stretch") -> Image.Image:
    """The image as a square of `size` pixels, bilinear; 0 leaves it unchanged.

    stretch: the whole image, aspect ratio not kept. crop: the central square. pad: the whole image on black.
    """
    if not size or image.size == (size, size):
        return image
    if fit == "crop":
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        image = image.crop((left, top, left + side, top + side))
    if fit != "pad":
        return image.resize((size, size), BILINEAR)
    width, height = (max(1, round(size * side / max(image.size))) for side in image.size)
    canvas = Image.new(image.mode, (size, size))
    small = image.resize((width, height), BILINEAR)
    canvas.paste(small, ((size - width) // 2, (size - height) // 2))
    return canvas


def planes(image: Image.Image, grey: bool, size: int, fit: Fit = "stretch") -> Pixels:
    """The image as planes (1 or 3, h, w), fitted to a square: the same in training and for a new image."""
    pixels = np.asarray(fitted(image.convert("L" if grey else "RGB"), size, fit))
    return pixels[None] if grey else pixels.transpose(2, 0, 1)


@dataclass(frozen=True, slots=True)
class Preparation:
    """Size, channels and scaling of the images of a federation, and the names of their classes."""

    shape: tuple[int, int, int]
    classes: tuple[str, ...]
    scales: dict[str, Scale]
    fit: Fit = "stretch"
    colour: Colour = "auto"
    depth: Depth = Depth()

    @property
    def grey(self) -> bool:
        return self.colour == "grey" or self.shape[0] == 1

    def scale(self, site: str = "") -> Scale:
        """The scaling of a site; without a site, the mean of all sites."""
        if site and site not in self.scales:
            hint = did_you_mean(site, self.scales) or ";"
            raise DataError("unknown-site", site=site, hint=hint, available=list(self.scales))
        return self.scales[site] if site else mean_scale(list(self.scales.values()))

    def pixels(self, image: Image.Image) -> Tensor:
        """The image as pixels (c, h, w) 0..255, resized if it does not have the size of the training images."""
        channels, height, width = self.shape
        image = upper_bits(image, self.depth.bits).convert("L" if self.grey else "RGB")
        square = height == width
        if not square and image.size != (width, height):
            image = image.resize((width, height), BILINEAR)
        made = planes(image, self.grey, height if square else 0, self.fit)
        return torch.from_numpy(made.copy()).expand(channels, -1, -1)

    def batch(self, images: Any, unreadable: list[DataError] | None = None) -> tuple[list[str], Tensor]:
        """Names and pixels (n, c, h, w) of images: paths, folders, PIL images, arrays, or a list of these.

        unreadable: gets the errors of files that cannot be read, if others can; without it the first one is raised.
        """
        bad = list[DataError]()
        named = list(_named(images, self.depth, bad))
        if bad and (unreadable is None or not named):
            raise bad[0]
        if unreadable is not None:
            unreadable += bad
        if not named:
            given = ", ".join(map(str, images)) if isinstance(images, list | tuple) else str(images)
            raise DataError("no-image-given", given=given[:80])
        return [name for name, _ in named], torch.stack([self.pixels(image) for _, image in named])


def _named(images: Any, depth: Depth, bad: list[DataError], number: int = 0) -> Iterator[Named]:
    """Each image with a name: its path, or its number. Errors of files are added to `bad`."""
    if isinstance(images, str | Path):
        path = Path(images).expanduser()
        inside = (file for file in path.iterdir() if file.suffix.lower() in SUFFIXES) if path.is_dir() else [path]
        for file in sorted(inside):
            try:
                yield _read(file, depth)
            except DataError as error:
                bad.append(error)
    elif isinstance(images, Image.Image):
        yield f"image {number}", images
    elif isinstance(images, np.ndarray | Tensor):
        for i, picture in enumerate(_pictures(np.asarray(images)), number):
            yield f"image {i}", picture
    elif isinstance(images, Iterable):
        for each in images:
            for named in _named(each, depth, bad, number):
                number += 1
                yield named
    else:
        raise DataError("not-an-image-object", kind=type(images).__name__)


def _read(path: Path, depth: Depth) -> Named:
    try:
        real = path.resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise DataError("path-cannot-be-opened", path=str(path), error=error) from error
    return str(path), ImageFile(real, real.parent).read(depth).image


def _pictures(array: NDArray[Any]) -> Iterator[Image.Image]:
    """Arrays (h, w), (h, w, 3), (n, h, w) or (n, h, w, 3) as pictures: uint8, floats from 0 to 1, grey uint16."""
    channels = array.ndim > 2 and array.shape[-1] in (1, 3)
    if array.ndim not in ((3, 4) if channels else (2, 3)) or not array.size:
        raise DataError("array-not-an-image", shape=array.shape)
    if array.dtype.kind == "f" and np.isfinite(array).all() and array.min() >= 0 and array.max() <= 1:
        array = (array * 255).round().astype(np.uint8)
    if array.dtype != np.uint8 and (array.dtype != np.uint16 or channels):
        raise DataError("array-of-wrong-type", dtype=array.dtype)
    single = array.ndim == (3 if channels else 2)
    for each in array[None] if single else array:
        yield Image.fromarray(each[..., 0] if channels and each.shape[-1] == 1 else each)


def scales(trains: Sequence[Pixels], scaling: Scaling) -> list[Scale]:
    """How each site's images become network input; `trains` are planes (n, 1 or 3, h, w).

    half: (x - 0.5) / 0.5 everywhere. own: each site by its own mean and std. shared: all sites by the mean and std
    of all pixels; real sites would have to disclose sums over their pixels for this.
    """
    if scaling == "half":
        return [Scale() for _ in trains]
    if scaling == "shared":
        return [_scale(trains)] * len(trains)
    return [_scale([train]) for train in trains]


def _scale(trains: Sequence[Pixels]) -> Scale:
    """mean = E[x],  std^2 = E[x^2] - E[x]^2,  of pixels from 0 to 1, by exact sums over each of three channels."""
    count, sums, squares = 0, np.zeros(3, np.int64), np.zeros(3, np.int64)
    for train in trains:
        for start in range(0, len(train), IMAGES_AT_ONCE):
            part = train[start : start + IMAGES_AT_ONCE].astype(np.int64)
            count += part.size // part.shape[1]
            sums += part.sum((0, 2, 3))
            squares += (part**2).sum((0, 2, 3))
    mean = tuple(a / count / 255 for a in sums.tolist())
    spread = [(b * count - a * a) / count**2 for a, b in zip(sums.tolist(), squares.tolist(), strict=True)]
    return Scale(mean, tuple(max(v**0.5 / 255, MIN_STD) for v in spread))


def mean_scale(scales: Sequence[Scale]) -> Scale:
    """The mean normalisation of all sites, for images that belong to no site, such as anchors."""
    if len(set(scales)) == 1:
        return scales[0]

    def mean(columns: Iterable[tuple[float, ...]]) -> tuple[float, ...]:
        return tuple(sum(column) / len(column) for column in zip(*columns, strict=True))

    return Scale(mean(s.mean for s in scales), mean(s.std for s in scales))
