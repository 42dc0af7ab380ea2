"""Several small pictures in one image (multi-formation of IDC, Kim et al., ICML 2022)."""

import torch
from torch import Tensor
from torch.nn import functional as F


def cut(images: Tensor, tiles: int) -> Tensor:
    """(n, c, h, w) -> (n tiles^2, c, h, w): each tile, in reading order, enlarged bilinearly."""
    if tiles == 1:
        return images
    (h, w), (n, c) = images.shape[2:], images.shape[:2]
    a, b = h // tiles, w // tiles
    grid = images[:, :, : tiles * a, : tiles * b].reshape(n, c, tiles, a, tiles, b).permute(0, 2, 4, 1, 3, 5)
    return F.interpolate(grid.reshape(n * tiles**2, c, a, b), size=(h, w), mode="bilinear", align_corners=False)


def laid(pictures: Tensor, tiles: int) -> Tensor:
    """(n tiles^2, c, h, w) -> (n, c, h, w): each picture as a tile, reduced by averages. Rows left over are 0."""
    if tiles == 1:
        return pictures
    c, h, w = pictures.shape[1:]
    a, b = h // tiles, w // tiles
    small = F.adaptive_avg_pool2d(pictures, (a, b)).reshape(-1, tiles, tiles, c, a, b)
    images = torch.zeros(len(small), c, h, w, dtype=pictures.dtype, device=pictures.device)
    images[:, :, : tiles * a, : tiles * b] = small.permute(0, 3, 1, 4, 2, 5).reshape(-1, c, tiles * a, tiles * b)
    return images
