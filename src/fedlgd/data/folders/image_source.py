"""Reading image files that anyone may have made: only regular files, known formats, bounded sizes, one frame."""

import hashlib
import os
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError

from fedlgd.core.errors import DataError

Pixels = NDArray[np.uint8]
Fit = Literal["stretch", "crop", "pad"]

FORMATS = ("PNG", "JPEG", "BMP", "TIFF", "GIF", "WEBP", "PPM")
SUFFIXES = {
    ".png": "PNG",
    ".bmp": "BMP",
    ".gif": "GIF",
    ".webp": "WEBP",
    **dict.fromkeys((".jpg", ".jpeg", ".jpe", ".jfif"), "JPEG"),
    **dict.fromkeys((".tif", ".tiff"), "TIFF"),
    **dict.fromkeys((".ppm", ".pgm", ".pbm", ".pnm"), "PPM"),
}
MOST_PIXELS = 50_000_000
LONGEST_SIDE = 20_000
MOST_BYTES = 512 * 2**20
DARK = 32  # of 255: when nothing in a 16-bit image is brighter, its range was not used
GREY_MODES = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N")
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class ImageError(DataError):
    """One file cannot be used as an image: what is wrong with it, and what to do."""

    def __init__(self, path: Path, problem: str, way_out: str = "replace it or remove it") -> None:
        self.problem, self.way_out = problem, way_out
        super().__init__(f"{shown(path)} {problem}; {way_out} (fedlgd data check lists every such file)")


class Remark(NamedTuple):
    """Something about an image that was read all the same, and what could be done about it."""

    problem: str
    way_out: str


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says about its image, upright, before anything is decoded."""

    width: int
    height: int
    grey: bool


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """A decoded image, upright, in mode L or RGB, and what had to be done to it."""

    image: Image.Image
    remarks: tuple[Remark, ...] = ()


def shown(path: Path | str) -> str:
    """A path that can be printed anywhere, whatever bytes its name has."""
    text = str(path)
    return text if text.isprintable() else text.encode("unicode_escape", "backslashreplace").decode()


def read_header(path: Path, root: Path) -> Header:
    """The size and kind of an image inside `root` (a resolved path), from its first bytes."""
    with _opened(path, root) as image:
        return _header(image)


def read_image(path: Path, root: Path) -> Picture:
    """The first frame of an image inside `root` (a resolved path)."""
    with _opened(path, root) as image:
        remarks = [*_named_otherwise(path, image), *_frames(image)]
        turn = TURNS.get(_orientation(image))
        image.load()
        plain, more = _plain(image, path)
        return Picture(plain.transpose(turn) if turn is not None else plain, (*remarks, *more))


def fitted(image: Image.Image, size: int, fit: Fit = "stretch") -> Image.Image:
    """The image as a square of `size` pixels, bilinear; 0 leaves it as it is.

    stretch: the whole image, its sides made equal. crop: the middle square. pad: the whole image, black beside it.
    """
    if not size or image.size == (size, size):
        return image
    if fit == "crop":
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        image = image.crop((left, top, left + side, top + side))
    if fit != "pad":
        return image.resize((size, size), Image.Resampling.BILINEAR)
    width, height = (max(1, round(size * side / max(image.size))) for side in image.size)
    canvas = Image.new(image.mode, (size, size))
    canvas.paste(
        image.resize((width, height), Image.Resampling.BILINEAR), ((size - width) // 2, (size - height) // 2)
    )
    return canvas


def fingerprint(image: Image.Image) -> bytes:
    """A hash of what is seen: the same for every file format, and for grey stored as grey or as colour."""
    pixels = np.asarray(image)
    if pixels.ndim == 3 and bool((pixels == pixels[..., :1]).all()):
        pixels = pixels[..., 0]
    head = repr(pixels.shape).encode()
    return hashlib.blake2b(head + pixels.tobytes(), digest_size=16).digest()


@contextmanager
def _opened(path: Path, root: Path) -> Iterator[Image.Image]:
    """The image in a file, not yet decoded; whatever Pillow raises becomes one error that names the file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with regular_file(path, root) as file, Image.open(file, formats=FORMATS) as image:
                _refuse_huge(path, image)
                yield image
        except DataError:
            raise
        except UnidentifiedImageError:
            raise ImageError(path, f"is not an image of a known format ({', '.join(FORMATS)})") from None
        except Image.DecompressionBombError:
            raise _too_large(path, f"claims more than {MOST_PIXELS:,} pixels") from None
        except Exception as error:  # decoders of broken files raise anything from struct.error to IndexError
            raise ImageError(path, f"is damaged or cut off ({error or type(error).__name__})") from error


@contextmanager
def regular_file(path: Path, root: Path) -> Iterator[IO[bytes]]:
    """A file inside `root`, opened only if it is one: no link out of the tree, no device, no pipe."""
    try:
        real = path.resolve(strict=True)
        if not real.is_relative_to(root):
            raise ImageError(path, f"leads out of {shown(root)}", "copy the file into the folder")
        _refuse_special(path, real.stat())
        handle = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: links in a ring; ValueError: a zero byte
        if isinstance(error, DataError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise ImageError(path, f"cannot be opened ({reason})", "correct its name or its permissions") from error
    with os.fdopen(handle, "rb") as file:
        _refuse_special(path, os.fstat(handle))
        yield file


def _refuse_special(path: Path, info: os.stat_result) -> None:
    if not stat.S_ISREG(info.st_mode):
        raise ImageError(path, "is not a regular file", "remove it")
    if not info.st_size:
        raise ImageError(path, "is empty")
    if info.st_size > MOST_BYTES and path.suffix.lower() in SUFFIXES:
        raise _too_large(path, f"has {info.st_size:,} bytes, more than {MOST_BYTES:,}")


def _refuse_huge(path: Path, image: Image.Image) -> None:
    width, height = image.size
    if width * height > MOST_PIXELS or max(width, height) > LONGEST_SIDE:
        raise _too_large(
            path, f"is {width} x {height} pixels, more than {MOST_PIXELS:,} or {LONGEST_SIDE:,} a side"
        )


def _too_large(path: Path, problem: str) -> ImageError:
    return ImageError(path, problem, "make it smaller before federating it, or remove it")


def _header(image: Image.Image) -> Header:
    width, height = image.size
    if _orientation(image) >= 5:
        width, height = height, width
    return Header(width, height, image.mode in GREY_MODES)


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation, 1 when upright. Pillow turns TIFF itself; a PNG's is heeded when it stands in front."""
    if image.format == "TIFF" or (image.format == "PNG" and "exif" not in image.info):
        return 1
    turn = image.getexif().get(ExifTags.Base.Orientation, 1)
    return turn if isinstance(turn, int) and turn in TURNS else 1


def _named_otherwise(path: Path, image: Image.Image) -> Iterator[Remark]:
    found = "JPEG" if image.format == "MPO" else str(image.format)
    if SUFFIXES.get(path.suffix.lower(), found) != found:
        yield Remark(f"is a {found} file but is named {path.suffix}", "rename it")


def _frames(image: Image.Image) -> Iterator[Remark]:
    if getattr(image, "is_animated", False):
        yield Remark("has several frames or pages; the first is used", "save one image a file")


def _plain(image: Image.Image, path: Path) -> tuple[Image.Image, list[Remark]]:
    """Grey or RGB with 8 bits; what is transparent shows black behind it."""
    kind: Literal["L", "RGB"] = "L" if image.mode in GREY_MODES else "RGB"
    if image.mode == "F":
        raise ImageError(path, "holds floating-point numbers", "save it with 8 bits a channel")
    if image.mode.startswith("I"):
        return _upper_bits(np.asarray(image), path)
    if image.has_transparency_data:
        return _on_black(image.convert("RGBA"), kind)
    colours = [Remark(f"is in {image.mode}; converted to RGB", "save it as RGB")] if image.mode == "CMYK" else []
    return image.convert(kind), colours


def _upper_bits(values: NDArray[Any], path: Path) -> tuple[Image.Image, list[Remark]]:
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > 65_535:
        raise ImageError(path, f"has values from {low} to {high}", "save it with 8 bits a channel")
    remarks = [Remark("has 16 bits a pixel; the upper 8 are kept", "save it with 8 bits to choose the range")]
    if high < DARK * 256:
        remarks = [
            Remark(
                f"has 16 bits a pixel but no value above {high}: its upper 8 bits are nearly black",
                "spread the values over the range and save it with 8 bits",
            )
        ]
    return Image.fromarray((values.astype(np.int64) >> 8).astype(np.uint8)), remarks


def _on_black(image: Image.Image, kind: Literal["L", "RGB"]) -> tuple[Image.Image, list[Remark]]:
    if np.asarray(image.getchannel("A")).min() == 255:
        return image.convert("RGB").convert(kind), []
    canvas = Image.new("RGBA", image.size, (0, 0, 0, 255))
    canvas.alpha_composite(image)
    return canvas.convert("RGB").convert(kind), [Remark("is partly transparent; black shows behind", "flatten it")]
