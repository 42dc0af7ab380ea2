"""One image of a user: a file or a row of an .npz, read as an upright 8-bit picture.

Files are untrusted: only regular files inside the folder, known formats, bounded sizes, and the first frame.
"""

import os
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, NamedTuple

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from fedlgd.core.errors import DataError
from fedlgd.data.dicom import DepthError, Dicom, is_dicom, upper_bits

Part = Literal["train", "test", ""]

FORMATS = ("PNG", "JPEG", "BMP", "TIFF", "GIF", "WEBP", "PPM")
SUFFIXES = {
    ".png": "PNG",
    ".bmp": "BMP",
    ".gif": "GIF",
    ".webp": "WEBP",
    **dict.fromkeys((".jpg", ".jpeg", ".jpe", ".jfif"), "JPEG"),
    **dict.fromkeys((".tif", ".tiff"), "TIFF"),
    **dict.fromkeys((".ppm", ".pgm", ".pbm", ".pnm"), "PPM"),
    **dict.fromkeys((".dcm", ".dicom"), "DICOM"),
}
MOST_PIXELS = 50_000_000
LONGEST_SIDE = 20_000
MOST_BYTES = 512 * 2**20
DARK = 32  # of 255: a 16-bit image without a brighter pixel does not use its range
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
    """A file that cannot be used as an image: what is wrong with it, and what to do."""

    def __init__(self, path: Path, problem: str, way_out: str = "replace it or remove it") -> None:
        self.problem, self.way_out = problem, way_out
        super().__init__(f"{shown(path)} {problem}; {way_out} (fedlgd data check lists all such files)")


def shown(path: Path | str) -> str:
    """A path that can be printed, whatever bytes its name has."""
    text = str(path)
    return text if text.isprintable() else text.encode("unicode_escape", "backslashreplace").decode()


@dataclass(frozen=True, slots=True)
class Depth:
    """How more than 8 bits become pixels: `bits` that 16-bit files use, and (centre, width) for DICOM or ()."""

    bits: int = 16
    window: tuple[float, ...] = ()


class Remark(NamedTuple):
    """Something unusual about an image that could still be read, and what to do about it."""

    problem: str
    way_out: str


@dataclass(frozen=True, slots=True)
class Header:
    """Size and kind of an image, upright, known before it is decoded."""

    width: int
    height: int
    grey: bool


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """A decoded image, upright, in mode L or RGB, and remarks about it. patient: the PatientID of a DICOM file."""

    image: Image.Image
    remarks: tuple[Remark, ...] = ()
    format: str = "npz"
    patient: str = ""


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An image file inside `root`, a resolved path, with its class. The part is "" if the owner did not split, the
    patient if the owner did not name one."""

    path: Path
    root: Path
    label: str = ""
    part: Part = ""
    patient: str = ""

    @property
    def where(self) -> str:
        """The name for messages."""
        return shown(self.path.relative_to(self.root) if self.path.is_relative_to(self.root) else self.path)

    def header(self) -> Header:
        """Size and kind, from the first bytes."""
        with _opened(self.path, self.root) as image:
            width, height = image.size
            if isinstance(image, Dicom):
                return Header(width, height, image.grey)
            if _orientation(image) >= 5:
                width, height = height, width
            return Header(width, height, image.mode in GREY_MODES)

    def read(self, depth: Depth = Depth()) -> Picture:
        """The first frame."""
        with _opened(self.path, self.root) as image:
            if isinstance(image, Dicom):
                plain, remark = image.image(depth.window)
                said = (Remark(remark, "choose a window: --set data.window=[CENTRE,WIDTH]"),) if remark else ()
                return Picture(plain, (*_renamed(self.path, "DICOM"), *said), "DICOM", image.patient)
            name = "JPEG" if image.format == "MPO" else str(image.format)
            remarks = _renamed(self.path, name)
            if getattr(image, "is_animated", False):
                remarks.append(Remark("has several frames or pages; the first is used", "save one image per file"))
            turn, deep = TURNS.get(_orientation(image)), "16-bit " if image.mode.startswith("I") else ""
            image.load()
            plain, more = _plain(image, depth.bits)
            return Picture(plain.transpose(turn) if turn is not None else plain, (*remarks, *more), deep + name)


@contextmanager
def _opened(path: Path, root: Path) -> Iterator[Image.Image | Dicom]:
    """The image in a file, not yet decoded; any exception of a decoder becomes an error that names the file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with regular_file(path, root) as file:
                opened = nullcontext(Dicom(file)) if is_dicom(file) else Image.open(file, formats=FORMATS)
                with opened as image:
                    _refuse_huge(path, image.size)
                    yield image
        except DataError:
            raise
        except DepthError as error:
            raise ImageError(path, error.problem, error.way_out) from error
        except UnidentifiedImageError:
            raise ImageError(path, f"is not an image of a known format ({', '.join(FORMATS)}, DICOM)") from None
        except Image.DecompressionBombError:
            raise _too_large(path, f"has more than {MOST_PIXELS:,} pixels") from None
        except Exception as error:  # decoders of broken files raise anything from struct.error to IndexError
            raise ImageError(path, f"is damaged or truncated ({error or type(error).__name__})") from error


@contextmanager
def regular_file(path: Path, root: Path) -> Iterator[IO[bytes]]:
    """A regular file inside `root`, opened: no link out of the folder, no device, no pipe."""
    try:
        real = path.resolve(strict=True)
        if not real.is_relative_to(root):
            raise ImageError(path, f"is outside of {shown(root)}", "copy the file into the folder")
        _refuse_special(path, real.stat())
        handle = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: a loop of links; ValueError: a null byte
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


def _refuse_huge(path: Path, size: tuple[int, int]) -> None:
    width, height = size
    if width * height > MOST_PIXELS or max(width, height) > LONGEST_SIDE:
        raise _too_large(
            path, f"has {width} x {height} pixels, more than {MOST_PIXELS:,} or {LONGEST_SIDE:,} per side"
        )


def _too_large(path: Path, problem: str) -> ImageError:
    return ImageError(path, problem, "reduce its size or remove it")


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation, 1 when upright. Pillow rotates TIFF itself; in PNG, EXIF must precede the pixels."""
    if image.format == "TIFF" or (image.format == "PNG" and "exif" not in image.info):
        return 1
    turn = image.getexif().get(ExifTags.Base.Orientation, 1)
    return turn if isinstance(turn, int) and turn in TURNS else 1


def _renamed(path: Path, found: str) -> list[Remark]:
    wrong = SUFFIXES.get(path.suffix.lower(), found) != found
    return [Remark(f"is a {found} file but is named {path.suffix}", "rename it")] if wrong else []


def _plain(image: Image.Image, bits: int) -> tuple[Image.Image, list[Remark]]:
    """Grey or RGB with 8 bits; transparent pixels are put on black."""
    kind: Literal["L", "RGB"] = "L" if image.mode in GREY_MODES else "RGB"
    if image.mode == "F":
        raise DepthError("has floating-point pixels", "save it with 8 bits per channel")
    if image.mode.startswith("I"):
        small = upper_bits(image, bits)
        return small, [_sixteen(bits, int(np.asarray(image).max()))]
    if image.has_transparency_data:
        return _on_black(image.convert("RGBA"), kind)
    colours = [Remark(f"is in {image.mode}; converted to RGB", "save it as RGB")] if image.mode == "CMYK" else []
    return image.convert(kind), colours


def _sixteen(bits: int, high: int) -> Remark:
    """How the values of a 16-bit file were divided, and whether it is dark because it does not use its bits."""
    way_out = "choose the bits that the scanner uses, such as --set data.bits=12"
    if high >> (bits - 8) < DARK:
        return Remark(f"has 16 bits and no value above {high}: nearly black", way_out)
    return Remark(f"has 16 bits; its values are divided by {2 ** (bits - 8)}", way_out)


def _on_black(image: Image.Image, kind: Literal["L", "RGB"]) -> tuple[Image.Image, list[Remark]]:
    if np.asarray(image.getchannel("A")).min() == 255:
        return image.convert("RGB").convert(kind), []
    canvas = Image.new("RGBA", image.size, (0, 0, 0, 255))
    canvas.alpha_composite(image)
    return canvas.convert("RGB").convert(kind), [Remark("is partly transparent; it is put on black", "flatten it")]
