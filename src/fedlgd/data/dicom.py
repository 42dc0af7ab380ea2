"""Files with more than 8 bits as 8-bit images: 16-bit files and DICOM.

This module imports nothing of fedlgd: `fedlgd export` writes a copy of it, so that an exported model reads files as
training did. pydicom (extra `dicom`) is imported only for DICOM files.
"""

import io
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image, ImageOps

MARK = b"DICM"  # after 128 bytes of any content
HEAD_BYTES = 1 << 16  # bytes that hold the meta information of a DICOM file
GREY = ("MONOCHROME1", "MONOCHROME2")
COLOUR = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT")
DECOMPRESS = "decompress it, for example with gdcmconv --raw or dcmdjpeg"


class DepthError(ValueError):
    """A file that cannot be shown with 8 bits: what is wrong, and what to do."""

    def __init__(self, problem: str, way_out: str) -> None:
        self.problem, self.way_out = problem, way_out
        super().__init__(f"{problem}; {way_out}")


def open_image(path: str | Path, bits: int = 16, window: Sequence[float] = ()) -> Image.Image:
    """The image in a file, upright, with 8 bits per channel."""
    with Path(path).open("rb") as file:
        if file.read(132)[128:] == MARK:
            return Dicom(file).image(window)[0]
        return upper_bits(ImageOps.exif_transpose(Image.open(file)), bits)


def upper_bits(image: Image.Image, bits: int = 16) -> Image.Image:
    """pixel = floor(value / 2^(bits - 8)) for a grey image of more than 8 bits; others are returned as they are."""
    if not image.mode.startswith("I"):
        return image
    values = np.asarray(image).astype(np.int64)
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= 2**bits:
        problem = f"has values from {low} to {high}, not from 0 to {2**bits - 1} (data.bits={bits})"
        raise DepthError(problem, "set data.bits to its number of bits, or save it with 8 bits per channel")
    return Image.fromarray((values >> (bits - 8)).astype(np.uint8))


class Dicom:
    """A DICOM file with one image. Its header is read first; `image` reads the pixels."""

    def __init__(self, file: IO[bytes]) -> None:
        try:
            import pydicom
        except ImportError:
            raise DepthError("is DICOM, which needs pydicom", "pip install 'fedlgd[dicom]'") from None
        self._file = file
        _check_syntax(file)
        found = pydicom.dcmread(file, stop_before_pixels=True)
        kind, frames = found.get("PhotometricInterpretation"), int(found.get("NumberOfFrames") or 1)
        if kind is None or "Rows" not in found:
            raise DepthError("is DICOM without an image", "remove it")
        if frames > 1:
            raise DepthError(f"is DICOM with {frames} frames", "save the frames that you need as single files")
        if kind not in GREY + COLOUR:
            raise DepthError(f"is DICOM with {kind} pixels, which are not supported", "convert it to RGB")
        self.size, self.grey = (int(found.Columns), int(found.Rows)), kind in GREY
        self.patient = str(found.get("PatientID") or "")

    def image(self, window: Sequence[float] = ()) -> tuple[Image.Image, str]:
        """The image with 8 bits, and a remark about its window, or "".

        window: centre and width in place of those of the file.
        """
        import pydicom
        from pydicom.pixels.utils import pixel_array

        self._file.seek(0)
        found = pydicom.dcmread(self._file)
        if "PixelData" not in found:
            raise DepthError("is DICOM without integer pixels", "remove it, or convert it to PNG")
        values = pixel_array(found)
        if not self.grey:
            return Image.fromarray((values >> max(0, found.BitsStored - 8)).astype(np.uint8)), ""
        share, remark = _brightness(values, found, window)
        pixels = np.rint(np.clip(share, 0, 1) * 255).astype(np.uint8)
        return Image.fromarray(255 - pixels if found.PhotometricInterpretation == "MONOCHROME1" else pixels), remark


def _check_syntax(file: IO[bytes]) -> None:
    """Refuse compressed pixels without a decoder. Only the first bytes are read: a small file can unpack to GBs."""
    from pydicom.filereader import read_partial
    from pydicom.pixels.decoders.base import get_decoder
    from pydicom.uid import DeflatedExplicitVRLittleEndian

    file.seek(0)
    head = io.BytesIO(file.read(HEAD_BYTES))
    file.seek(0)
    try:
        syntax = read_partial(head, stop_when=lambda *_: True).file_meta.TransferSyntaxUID
    except zlib.error:
        syntax = DeflatedExplicitVRLittleEndian
    if syntax == DeflatedExplicitVRLittleEndian:
        raise DepthError("is deflated DICOM, which is not supported", "save it without compression")
    try:
        known = not syntax.is_encapsulated or get_decoder(syntax).is_available
    except (NotImplementedError, ValueError):
        known = False
    if not known:
        raise DepthError(f"is DICOM compressed as {syntax.name}, and no decoder is installed", DECOMPRESS)


def _brightness(values: Any, found: Any, window: Sequence[float]) -> tuple[Any, str]:
    """Stored values after rescaling, as a share of black to white: by the given window, the VOI LUT of the file,
    its first window, or the range of its bits."""
    from pydicom.pixels.processing import apply_modality_lut, apply_voi

    rescaled = apply_modality_lut(values, found).astype(np.float64)
    if not window and found.get("VOILUTSequence"):
        white = 2 ** int(found.VOILUTSequence[0].LUTDescriptor[2]) - 1
        return apply_voi(np.rint(rescaled).astype(np.int64), found) / white, ""
    remark, centres, widths = "", _numbers(found, "WindowCenter"), _numbers(found, "WindowWidth")
    if not window and not (centres and widths):
        signed = int(found.PixelRepresentation)
        ends = np.array([0, 2**found.BitsStored - 1]) - signed * 2 ** (found.BitsStored - 1)
        low, high = sorted(apply_modality_lut(ends, found).tolist())
        remark = f"has no window; the range of its {found.BitsStored} bits is used"
        return (rescaled - low) / max(high - low, 1e-9), remark
    if not window and len(centres) > 1:
        remark = f"has {len(centres)} windows; the first is used"
    centre, width = window or (centres[0], widths[0])
    function = "LINEAR" if window else str(found.get("VOILUTFunction") or "LINEAR").upper()
    return windowed(rescaled, centre, width, function), remark


def _numbers(found: Any, name: str) -> list[float]:
    value = found.get(name)
    return [] if value is None or value == "" else [float(each) for each in np.atleast_1d(value)]


def windowed(values: Any, centre: float, width: float, function: str = "LINEAR") -> Any:
    """Values as shares of black to white; those below 0 are black, those above 1 white (DICOM PS3.3 C.11.2.1):

    LINEAR        (x - (c - 0.5)) / (w - 1) + 0.5
    LINEAR_EXACT  (x - c) / w + 0.5
    SIGMOID       1 / (1 + exp(-4 (x - c) / w))
    """
    if width < 1 if function == "LINEAR" else width <= 0:
        raise DepthError(f"has a window of width {width:g}", "set data.window=[CENTRE,WIDTH]")
    if function == "SIGMOID":
        return 1 / (1 + np.exp(np.clip(-4 * (values - centre) / width, -700, 700)))
    if function == "LINEAR":
        centre, width = centre - 0.5, max(width - 1, 1e-9)
    elif function != "LINEAR_EXACT":
        problem = f"has the window function {function}, which is not supported"
        raise DepthError(problem, "set data.window=[CENTRE,WIDTH]")
    return (values - centre) / width + 0.5
