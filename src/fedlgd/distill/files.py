"""Virtual sets in files, to keep, exchange and start from: .npz or .safetensors. No pickle is read.

Arrays: `images` (n, channels, height, width) as float32 network input or uint8 pixels, `labels` (n,) from 0, and
optionally `mean` and `std`, the scaling that the network input has (per channel, pixels from 0 to 1).
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file
from torch import Tensor

from fedlgd.core.errors import DataError
from fedlgd.core.files import digest, safe_name, write_atomic, writing
from fedlgd.core.text import counted, plural
from fedlgd.core.types import Scale, VirtualSet
from fedlgd.data.arrays import read_arrays
from fedlgd.distill.settings import SET_SUFFIXES

MAX_VALUES_IN_SET = 2**31  # 8 GB


def write_set(path: Path, virtual: VirtualSet, scale: Scale) -> Path:
    """Write an .npz that only this user can read: virtual images are made from private ones."""
    arrays = {
        "images": virtual.images.numpy().astype(np.float32),
        "labels": virtual.labels.numpy(),
        "mean": np.array(scale.mean, np.float32),
        "std": np.array(scale.std, np.float32),
    }
    with writing(path, "Choose a writable folder with --out"):
        write_atomic(path, partial(np.savez, **arrays), private=True)  # type: ignore[arg-type]
    return path


def set_file(start: str, name: str) -> Path:
    """The file itself, or the file in the folder that is named after a site, or `anchors`."""
    path = Path(start).expanduser()
    if not path.is_dir():
        return path
    stem = name if name == "anchors" else safe_name(name)
    files = [path / f"{stem}{suffix}" for suffix in SET_SUFFIXES]
    found = next((file for file in files if file.is_file()), None)
    if found is None:
        raise DataError("set-missing-in-folder", folder=str(path), name=name, file=files[0].name)
    return found


def set_digest(start: str, name: str) -> str:
    """A hash of the content of the file."""
    file = set_file(start, name)
    try:
        return digest(file.read_bytes())
    except OSError as error:
        raise DataError("set-unreadable", file=str(file), error=error.strerror) from error


def read_start(start: str, name: str, scale: Scale, labels: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """The images of a file as network input under `scale`, sorted by class, if they have exactly these labels."""
    file = set_file(start, name)
    virtual = read_set(file, name, scale)
    if virtual.images.shape[1:] != shape:
        found = tuple(virtual.images.shape[1:])
        raise DataError("set-shape", file=str(file), found=found, wanted=shape)
    if not torch.equal(virtual.labels, labels):
        counts = {"found": _per_class(virtual.labels), "wanted": _per_class(labels)}
        raise DataError("set-labels", file=str(file), **counts)
    return virtual.images


def _per_class(labels: Tensor) -> str:
    classes, counts = labels.unique(return_counts=True)
    numbers = sorted(set(counts.tolist()))
    most = f"to {numbers[-1]} " if len(numbers) > 1 else ""
    images = counted(numbers[-1] if numbers else 0, "image")
    return f"{numbers[0] if numbers else 0} {most}{images} for each of {plural(len(classes), 'class')}"


def read_set(file: Path, origin: str, scale: Scale = Scale()) -> VirtualSet:
    """A virtual set, checked and sorted by class, as network input under `scale`."""
    arrays = _arrays(file)
    for key in ("images", "labels"):
        if key not in arrays:
            raise DataError("set-without-array", file=str(file), array=key)
    x, y = arrays["images"], arrays["labels"]
    if x.ndim != 4 or y.shape != (len(x),) or not 0 < x.size < MAX_VALUES_IN_SET or y.dtype.kind not in "iu":
        given = {"images": f"{x.dtype} {x.shape}", "labels": f"{y.dtype} {y.shape}"}
        raise DataError("set-shapes", file=str(file), **given)
    images = torch.from_numpy(np.array(x))
    if images.dtype == torch.uint8:
        images = scale.to_input(images)
    elif images.is_floating_point() and bool(images.isfinite().all()):
        images = scale.from_scale(images.float(), _scale(file, arrays, scale, x.shape[1]))
    else:
        raise DataError("set-dtype", file=str(file), dtype=x.dtype)
    labels = torch.from_numpy(y.astype(np.int64))
    order = labels.argsort(stable=True)
    return VirtualSet(images=images[order].contiguous(), labels=labels[order], origin=origin, round=-1)


def _arrays(file: Path) -> Mapping[str, NDArray[Any]]:
    if not file.is_file():
        raise DataError("set-missing", file=str(file))
    if file.suffix != ".safetensors":
        return read_arrays(file)
    try:
        loaded: Mapping[str, NDArray[Any]] = load_file(file)
    except (SafetensorError, OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise DataError("set-unreadable-safetensors", file=str(file), error=error) from error
    return loaded


def _scale(file: Path, arrays: Mapping[str, NDArray[Any]], default: Scale, channels: int) -> Scale:
    """The scaling that the file names; by default the scaling of the site."""
    if not {"mean", "std"} <= arrays.keys():
        return default
    mean, std = (arrays[key].astype(np.float64).ravel() for key in ("mean", "std"))
    if not (len(mean) == len(std) == channels and np.isfinite([mean, std]).all() and (std > 0).all()):
        raise DataError("set-scale", file=str(file), mean=mean, std=std)
    same = np.array_equal(np.array([mean, std], np.float32), np.array([default.mean, default.std], np.float32))
    return default if same else Scale(tuple(mean.tolist()), tuple(std.tolist()))
