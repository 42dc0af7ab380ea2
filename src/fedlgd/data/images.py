"""One image of a user: a file or a row of an .npz, read as an upright 8-bit picture.

Files are untrusted: only regular files inside the folder, known formats, bounded sizes, and the first frame.
"""

import os
import stat
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from fedlgd.core.errors import DataError
from fedlgd.data.arrays import Pixels
from fedlgd.data.dicom import MARK, DepthError, Dicom, upper_bits

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
MAX_PIXELS = 50_000_000
MAX_SIDE = 20_000
MAX_FILE_BYTES = 512 * 2**20
DARK_PIXEL = 32  # of 255: a 16-bit image without a brighter pixel does not use its range
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

    def __init__(self, code: str, path: Path, **values: Any) -> None:
        super().__init__(code, path=path, **values)
        self.problem, _, self.way_out = str(self).rpartition("; ")
        self.args = (f"{shown(path)} {self} (fedlgd data check lists all such files)",)


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
    """Something unusual about an image that could still be read: the code and the values of a message."""

    code: str
    values: Mapping[str, Any] = {}


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
                said = (Remark("dicom-window", {"remark": remark}),) if remark else ()
                return Picture(plain, (*_renamed(self.path, "DICOM"), *said), "DICOM", image.patient)
            name = "JPEG" if image.format == "MPO" else str(image.format)
            remarks = _renamed(self.path, name)
            if getattr(image, "is_animated", False):
                remarks.append(Remark("several-frames"))
            turn, deep = TURNS.get(_orientation(image)), "16-bit " if image.mode.startswith("I") else ""
            image.load()
            plain, more = _plain(image, depth.bits)
            return Picture(plain.transpose(turn) if turn is not None else plain, (*remarks, *more), deep + name)


@dataclass(frozen=True, slots=True, eq=False)
class ArrayRow:
    """One row of a prepared .npz, (h, w) or (h, w, 3), with its class."""

    where: str
    pixels: Pixels
    label: str
    part: Part
    patient: str = ""

    def header(self) -> Header:
        return Header(self.pixels.shape[1], self.pixels.shape[0], self.pixels.ndim == 2)

    def read(self, depth: Depth = Depth()) -> Picture:
        return Picture(Image.fromarray(np.ascontiguousarray(self.pixels)))


def is_dicom(file: IO[bytes]) -> bool:
    """Whether the file has the mark of DICOM; it is read from its beginning afterwards."""
    head = file.read(132)
    file.seek(0)
    return head[128:] == MARK


@contextmanager
def _opened(path: Path, root: Path) -> Iterator[Image.Image | Dicom]:
    """The image in a file, not yet decoded; any exception of a decoder becomes an error that names the file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with regular_file(path, root) as file:
                opened = nullcontext(Dicom(file)) if is_dicom(file) else Image.open(file, formats=FORMATS)
                with opened as image:
                    width, height = image.size
                    if width * height > MAX_PIXELS or max(width, height) > MAX_SIDE:
                        values = {"width": width, "height": height, "most": MAX_PIXELS, "side": MAX_SIDE}
                        raise ImageError("image-of-too-many-pixels", path=path, **values)
                    yield image
        except DataError:
            raise
        except DepthError as error:
            told = {"problem": error.problem, "way_out": error.way_out}
            raise ImageError("cannot-show-image", path=path, **told) from error
        except UnidentifiedImageError:
            raise ImageError("unknown-image-format", path=path, formats=FORMATS) from None
        except Image.DecompressionBombError:
            raise ImageError("image-unpacks-to-too-much", path=path, most=MAX_PIXELS) from None
        except Exception as error:  # decoders of broken files raise anything from struct.error to IndexError
            raise ImageError("image-damaged", path=path, error=str(error) or type(error).__name__) from error


@contextmanager
def regular_file(path: Path, root: Path) -> Iterator[IO[bytes]]:
    """A regular file inside `root`, opened: no link out of the folder, no device, no pipe."""
    try:
        real = path.resolve(strict=True)
        if not real.is_relative_to(root):
            raise ImageError("image-outside", path=path, root=shown(root))
        _refuse_special(path, real.stat())
        handle = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: a loop of links; ValueError: a null byte
        if isinstance(error, DataError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise ImageError("image-cannot-be-opened", path=path, error=reason) from error
    with os.fdopen(handle, "rb") as file:
        _refuse_special(path, os.fstat(handle))
        yield file


def _refuse_special(path: Path, info: os.stat_result) -> None:
    if not stat.S_ISREG(info.st_mode):
        raise ImageError("image-not-a-file", path=path)
    if not info.st_size:
        raise ImageError("image-empty", path=path)
    if info.st_size > MAX_FILE_BYTES and path.suffix.lower() in SUFFIXES:
        raise ImageError("image-of-too-many-bytes", path=path, size=info.st_size, most=MAX_FILE_BYTES)


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation, 1 when upright. Pillow rotates TIFF itself; in PNG, EXIF must precede the pixels."""
    if image.format == "TIFF" or (image.format == "PNG" and "exif" not in image.info):
        return 1
    turn = image.getexif().get(ExifTags.Base.Orientation, 1)
    return turn if isinstance(turn, int) and turn in TURNS else 1


def _renamed(path: Path, found: str) -> list[Remark]:
    wrong = SUFFIXES.get(path.suffix.lower(), found) != found
    return [Remark("file-of-other-format", {"found": found, "suffix": path.suffix})] if wrong else []


def _plain(image: Image.Image, bits: int) -> tuple[Image.Image, list[Remark]]:
    """Grey or RGB with 8 bits; transparent pixels are put on black."""
    kind: Literal["L", "RGB"] = "L" if image.mode in GREY_MODES else "RGB"
    if image.mode == "F":
        raise DepthError("has floating-point pixels", "save it with 8 bits per channel")
    if image.mode.startswith("I"):
        high = int(np.asarray(image).max())
        dark = high >> (bits - 8) < DARK_PIXEL
        remark = Remark("sixteen-bits-nearly-black", {"high": high})
        return upper_bits(image, bits), [remark if dark else Remark("sixteen-bits", {"divisor": 2 ** (bits - 8)})]
    if image.has_transparency_data:
        image = image.convert("RGBA")
        if np.asarray(image.getchannel("A")).min() == 255:
            return image.convert("RGB").convert(kind), []
        canvas = Image.new("RGBA", image.size, (0, 0, 0, 255))
        canvas.alpha_composite(image)
        return canvas.convert("RGB").convert(kind), [Remark("partly-transparent")]
    colours = [Remark("image-in-cmyk", {"mode": image.mode})] if image.mode == "CMYK" else []
    return image.convert(kind), colours
