"""Small DICOM files, made by the test that wants them."""

from pathlib import Path
from typing import Any

import numpy as np
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import UID, ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

from tests.data.pictures import noise


def dataset(values: np.ndarray, bits: int = 12, patient: str = "P1", **tags: Any) -> Dataset:
    """One image, grey (h, w) or RGB (h, w, 3); further tags by their keywords."""
    made = Dataset()
    made.file_meta = FileMetaDataset()
    made.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    made.SOPClassUID = SecondaryCaptureImageStorage
    made.SOPInstanceUID = generate_uid()
    made.PatientID, made.Rows, made.Columns = patient, values.shape[0], values.shape[1]
    made.SamplesPerPixel = 1 if values.ndim == 2 else 3
    made.PhotometricInterpretation = "MONOCHROME2" if values.ndim == 2 else "RGB"
    if values.ndim == 3:
        made.PlanarConfiguration = 0
    allocated = 8 * values.dtype.itemsize
    made.BitsAllocated, made.BitsStored, made.HighBit = allocated, min(bits, allocated), min(bits, allocated) - 1
    made.PixelRepresentation = int(values.dtype.kind == "i")
    made.add_new("PixelData", "OB" if allocated == 8 else "OW", values.tobytes())
    for name, value in tags.items():
        setattr(made, name, value)
    return made


def save_dicom(path: Path, made: Dataset, syntax: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if syntax:
        made.file_meta.TransferSyntaxUID = UID(syntax)
    made.save_as(path, enforce_file_format=True)
    return path


def noisy(seed: int, patient: str = "P1", **tags: Any) -> Dataset:
    """A 12-bit image of noise with a window over its whole range."""
    values = np.asarray(noise(seed, grey=True)).astype(np.uint16) * 16
    return dataset(values, patient=patient, WindowCenter=2048, WindowWidth=4096, **tags)
