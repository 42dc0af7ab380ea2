"""Augmentation: `draw_transform` for distillation, `jittered` for training batches.

`draw_transform` is differentiable siamese augmentation (DSA): one random transform, the same for real and virtual
images. Each operation is a function of (images, random parameters); `draw_transform` chooses one of them and its
parameters. `jittered` draws for every image and repeats the borders.
"""

import math
from collections.abc import Callable, Collection, Sequence
from functools import partial

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

Transform = Callable[[Tensor], Tensor]
Sides = tuple[int, int]

MAX_DEGREES, MAX_ZOOM, MAX_SHIFT = 15.0, 1.2, 1 / 8  # the shift in sides of the image


def color(x: Tensor, brightness: float | Tensor, saturation: float | Tensor, contrast: float | Tensor) -> Tensor:
    """x + (u1 - 1/2);  (x - m) 2 u2 + m, m the mean over channels;  (x - m)(u3 + 1/2) + m, m the image mean."""
    x = x + (brightness - 0.5)
    m = x.mean(dim=1, keepdim=True)
    x = (x - m) * (2 * saturation) + m
    m = x.mean(dim=(1, 2, 3), keepdim=True)
    return (x - m) * (contrast + 0.5) + m


def crop(x: Tensor, down: int, right: int) -> Tensor:
    """Output (i, j) = input (i + down, j + right), zero outside."""
    h, w = x.shape[2:]
    padded = F.pad(x, (abs(right), abs(right), abs(down), abs(down)))
    top, left = abs(down) + down, abs(right) + right
    return padded[:, :, top : top + h, left : left + w]


def cutout(x: Tensor, row: int, column: int) -> Tensor:
    """A zero square of half the side around (row, column), clamped to the image."""
    h, w = x.shape[2:]
    size = int(h * 0.5 + 0.5), int(w * 0.5 + 0.5)
    rows = (torch.arange(size[0]) + row - size[0] // 2).clamp(0, h - 1)
    columns = (torch.arange(size[1]) + column - size[1] // 2).clamp(0, w - 1)
    keep = x.new_ones(h, w)
    keep[rows[:, None], columns] = 0
    return x * keep


def flip(x: Tensor) -> Tensor:
    """Horizontal flip."""
    return x.flip(3)


def rescale(x: Tensor, sx: float, sy: float) -> Tensor:
    """Affine zoom; a factor above 1 shrinks the image."""
    return _affine(x, [[sx, 0.0, 0.0], [0.0, sy, 0.0]])


def rotate(x: Tensor, degrees: float) -> Tensor:
    a = math.radians(degrees)
    return _affine(x, [[math.cos(a), -math.sin(a), 0.0], [math.sin(a), math.cos(a), 0.0]])


def _affine(x: Tensor, theta: list[list[float]]) -> Tensor:
    grid = F.affine_grid(x.new_tensor([theta]), [1, *x.shape[1:]], align_corners=False)
    return F.grid_sample(x, grid.expand(len(x), -1, -1, -1), padding_mode="zeros", align_corners=False)


def draw_transform(operations: Sequence[str], sides: Sides, generator: Generator) -> Transform:
    """One of the named operations with random parameters; the identity if no operation is given."""
    if not operations:
        return lambda x: x
    choice = int(torch.randint(len(operations), (), generator=generator))
    return OPERATIONS[operations[choice]](sides, torch.rand(3, generator=generator).tolist())


def _draw_crop(sides: Sides, u: list[float]) -> Transform:
    reach = [int(side / 8 + 0.5) for side in sides]
    down, right = (int(v * (2 * r + 1)) - r for v, r in zip(u, reach, strict=False))
    return partial(crop, down=down, right=right)


def _draw_cutout(sides: Sides, u: list[float]) -> Transform:
    positions = [side + (1 - int(side * 0.5 + 0.5) % 2) for side in sides]
    row, column = (int(v * p) for v, p in zip(u, positions, strict=False))
    return partial(cutout, row=row, column=column)


def _draw_scale(sides: Sides, u: list[float]) -> Transform:
    sx, sy = (1 / 1.2 + v * (1.2 - 1 / 1.2) for v in u[:2])
    return partial(rescale, sx=sx, sy=sy)


OPERATIONS: dict[str, Callable[[Sides, list[float]], Transform]] = {
    "color": lambda _, u: partial(color, brightness=u[0], saturation=u[1], contrast=u[2]),
    "crop": _draw_crop,
    "cutout": _draw_cutout,
    "flip": lambda _, u: flip if u[0] < 0.5 else (lambda x: x),
    "scale": _draw_scale,
    "rotate": lambda _, u: partial(rotate, degrees=(u[0] - 0.5) * 30),
}


def jittered(x: Tensor, operations: Collection[str], generator: Generator) -> Tensor:
    """Each image with its own random affine map and colours; the same images if there are no operations.

    rotate: a ~ U(-15, 15) degrees; zoom: log z ~ U(-log 1.2, log 1.2); shift: d ~ U(-1/8, 1/8) of each side.
    color: brightness, saturation and contrast as in `color`.
    """
    if not operations or not len(x):  # a batch can consist of anchors alone
        return x
    u = torch.rand(len(x), 7, generator=generator).to(x)
    if {"rotate", "zoom", "shift"} & set(operations):
        x = F.grid_sample(x, _grid(x, u, operations), padding_mode="border", align_corners=False)
    return color(x, *u[:, 4:, None, None, None].unbind(1)) if "color" in operations else x


def _grid(x: Tensor, u: Tensor, operations: Collection[str]) -> Tensor:
    """Where each output pixel is sampled: z R(a) p + d in coordinates of [-1, 1], for square pixels."""
    angle = (2 * u[:, 0] - 1) * (math.radians(MAX_DEGREES) if "rotate" in operations else 0.0)
    zoom = ((2 * u[:, 1] - 1) * (math.log(MAX_ZOOM) if "zoom" in operations else 0.0)).exp()
    shift = (2 * u[:, 2:4] - 1) * (2 * MAX_SHIFT if "shift" in operations else 0.0)
    aspect = x.shape[2] / x.shape[3]
    c, s = zoom * angle.cos(), zoom * angle.sin()
    rows = torch.stack([c, -s * aspect, shift[:, 0]], 1), torch.stack([s / aspect, c, shift[:, 1]], 1)
    return F.affine_grid(torch.stack(rows, 1), list(x.shape), align_corners=False)
