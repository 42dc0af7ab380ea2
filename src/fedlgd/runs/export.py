"""Export a trained model for use without fedlgd, and its virtual images as ordinary files.

    model.pt2     torch.export program: uint8 images (n, height, width, 3) -> probabilities (n, classes)
    model.onnx    the same as ONNX, compared with the original under onnxruntime
    model.json    size of the images, names of the classes, and where the model comes from
    predict.py    ten lines that classify image files with one of the two
    eight_bit.py  how 16-bit and DICOM files are read, used by predict.py
    virtual/<site>/<class>-<i>.png and virtual/<site>.npz; anchors/ likewise

Scaling and softmax are inside the model; only resizing is left to the caller, because libraries differ in it.
Virtual images are made from a site's private images: they belong to that site, and so do their files (mode 0600).
"""

import importlib.util
import json
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from fedlgd import __version__
from fedlgd.core.errors import RunError
from fedlgd.core.files import private_folder, safe_name, write_atomic, writing
from fedlgd.core.types import Scale, VirtualSet
from fedlgd.data.prepare import Preparation
from fedlgd.distill.files import write_set

if TYPE_CHECKING:
    from fedlgd.runs.result import Result

CLOSE = 1e-4  # largest difference of a probability between the original and ONNX
NEEDED = ("onnx", "onnxscript", "onnxruntime")
ELSEWHERE = "Choose a writable folder with --out"


class Complete(nn.Module):
    """Pixels (n, h, w, c) 0..255 -> probabilities:  softmax(f((x / 255 - mean) / std))."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, scale: Scale, classes: int) -> None:
        super().__init__()
        self.model, self.classes = model, classes
        self.register_buffer("mean", torch.tensor(scale.mean))
        self.register_buffer("std", torch.tensor(scale.std))

    def forward(self, images: Tensor) -> Tensor:
        x = (images.float() / 255 - self.mean) / self.std
        logits: Tensor = self.model(x.permute(0, 3, 1, 2))[1]
        return logits[:, : self.classes].softmax(1)


def export(result: "Result", folder: Path, site: str = "", onnx: bool | None = None) -> list[Path]:
    """All files of the export, written atomically; returns their paths."""
    preparation = result.preparation
    model = Complete(result.net.module(result.params_at(site)), preparation.scale(site), len(preparation.classes))
    example = torch.randint(256, (2, *preparation.shape[1:], preparation.shape[0]), dtype=torch.uint8)
    program = _exported(model.eval(), example, result.net.label)
    written = [_write(folder / "model.pt2", lambda file: torch.export.save(program, file))]
    with_onnx = all(map(importlib.util.find_spec, NEEDED)) if onnx is None else onnx
    if with_onnx:
        content = _as_onnx(program, result.net.label)
        _compare(content, model, example)
        written.append(_write(folder / "model.onnx", content))
    about = _about(result, preparation, site)
    written.append(_write(folder / "model.json", json.dumps(about, indent=1, ensure_ascii=False).encode() + b"\n"))
    written.append(_write(folder / "predict.py", _snippet(preparation, with_onnx).encode()))
    reader = resources.files("fedlgd") / "data" / "dicom.py"
    written.append(_write(folder / "eight_bit.py", reader.read_bytes()))
    for name, virtual in result.virtual.items():
        written += _write_images(folder / "virtual", safe_name(name), virtual, preparation.scale(name), preparation)
    if result.anchors:
        scale = result.anchors.scale or preparation.scale()
        written += _write_images(folder, "anchors", result.anchors, scale, preparation)
    return written


def _write(path: Path, content: bytes | Callable[[Any], object]) -> Path:
    with writing(path, ELSEWHERE):
        write_atomic(path, content)
    return path


def _exported(model: nn.Module, example: Tensor, label: str) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", min=1, max=65_536)
    try:
        with _quiet():
            return torch.export.export(model, (example,), dynamic_shapes=({0: batch},))
    except Exception as error:  # torch.export raises errors of many kinds, from user code too
        first = str(error).strip().partition("\n")[0]
        raise RunError("net-not-exportable", net=label, error=first) from error


def _as_onnx(program: torch.export.ExportedProgram, label: str) -> bytes:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise RunError("onnx-missing", packages=missing)
    try:
        with _quiet():
            converted = torch.onnx.export(
                program, input_names=["images"], output_names=["probabilities"], dynamo=True, verbose=False
            )
    except Exception as error:
        raise RunError("net-not-convertible", net=label, error=str(error)) from error
    assert converted is not None
    return bytes(converted.model_proto.SerializeToString())


def _compare(content: bytes, model: nn.Module, example: Tensor) -> None:
    """The same probabilities under onnxruntime, also for another number of images."""
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    for images in (example, torch.cat([example, 255 - example, example[:1]])):
        (ours,) = session.run(None, {"images": images.numpy()})
        with torch.no_grad():
            gap = float((torch.from_numpy(ours) - model(images)).abs().max())
        if not gap <= CLOSE:
            raise RunError("onnx-differs", gap=gap)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings and log lines of the exporters, which a user can do nothing about."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _about(result: "Result", preparation: Preparation, site: str) -> dict[str, Any]:
    _, height, width = preparation.shape
    return {
        "classes": list(preparation.classes),
        "size": [width, height],
        "mode": "L" if preparation.grey else "RGB",
        "channels": preparation.shape[0],
        "fit": preparation.fit,
        "bits": preparation.depth.bits,
        "window": list(preparation.depth.window),
        "method": result.label,
        "rounds": result.rounds,
        "site": site,
        "fedlgd": __version__,
    }


FITTED = {
    "stretch": "image = image.resize(size, Image.Resampling.BILINEAR)",
    "crop": """side = min(image.size)
    left, top = ((length - side) // 2 for length in image.size)
    image = image.crop((left, top, left + side, top + side)).resize(size, Image.Resampling.BILINEAR)""",
    "pad": """small = ImageOps.contain(image, size, Image.Resampling.BILINEAR)
    image = Image.new(image.mode, size)
    image.paste(small, ((size[0] - small.width) // 2, (size[1] - small.height) // 2))""",
}
"""The lines of the snippet that do what `fedlgd.data.prepare.fitted` does."""


def _snippet(preparation: Preparation, with_onnx: bool) -> str:
    """A program of about ten lines that needs Pillow, NumPy, and onnxruntime or torch."""
    name = "predict_onnx.py.txt" if with_onnx else "predict_torch.py.txt"
    text = (resources.files("fedlgd") / "runs" / "snippets" / name).read_text()
    grey = preparation.grey and preparation.shape[0] == 3
    convert = 'convert("L").convert("RGB")' if grey else 'convert(about["mode"])'
    return text.replace("CONVERT", convert).replace("FIT", FITTED[preparation.fit])


def _write_images(
    root: Path, name: str, virtual: VirtualSet, scale: Scale, preparation: Preparation
) -> Iterator[Path]:
    """One PNG per image, clipped to valid pixels, and all of them unclipped as network input in one .npz."""
    folder, counts = root / name, [0] * len(preparation.classes)
    with writing(folder, ELSEWHERE):
        private_folder(folder)
    for pixels, k in zip(scale.to_pixels(virtual.images), virtual.labels.tolist(), strict=True):
        label = preparation.classes[k]
        safe = label if re.fullmatch(r"[\w][\w .+-]{0,40}", label, re.ASCII) else f"class{k}"
        file = folder / f"{safe}-{counts[k]}.png"
        counts[k] += 1
        picture = Image.fromarray(np.ascontiguousarray(pixels.permute(1, 2, 0).numpy()).squeeze())
        with writing(file, ELSEWHERE):
            write_atomic(file, partial(picture.save, format="PNG"), private=True)
        yield file
    yield write_set(root / f"{name}.npz", virtual, scale)
