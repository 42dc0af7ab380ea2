"""Virtual images that do not depend on data: an untrained style generator, and upsampled class noise.

Each class has its own latent Gaussian. The same random stream gives the same set at every site.
"""

import math

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from fedlgd.core.rng import Stream
from fedlgd.core.types import Scale

SCALE = Scale()  # of the images made here: from -1 to 1
LATENT, CHANNELS = 64, 64
CENTRE, WITHIN = 0.5, 0.3  # std of the class centres, and of a class around its centre


def from_style(classes: int, per_class: int, shape: tuple[int, int, int], rng: Stream) -> Tensor:
    """One random style generator maps z ~ N(m_k, 0.3^2 I), m_k ~ N(0, 0.5^2 I), to images of class k."""
    generator = rng.generator("style")
    centres = CENTRE * torch.randn(classes, 1, LATENT, generator=generator)
    z = (centres + WITHIN * torch.randn(classes, per_class, LATENT, generator=generator)).flatten(0, 1)
    return _as_input(_synthesise(z, shape, generator), shape)


def from_class_noise(classes: int, per_class: int, shape: tuple[int, int, int], rng: Stream) -> Tensor:
    """8x8 Gaussian images around a class mean ~ N(0, 1), std 0.5, upsampled bilinearly."""
    generator = rng.generator("noise")
    small = (shape[0], 8, 8)
    means = torch.randn(classes, 1, *small, generator=generator)
    images = means + 0.5 * torch.randn(classes, per_class, *small, generator=generator)
    return _as_input(images.flatten(0, 1), shape)


def _synthesise(z: Tensor, shape: tuple[int, int, int], generator: Generator) -> Tensor:
    """Mapping with pixel norm, a constant 4x4 input, modulated convolutions, and the sum of all RGB layers."""
    z = z * (z.square().mean(1, keepdim=True) + 1e-8).rsqrt()
    style = F.leaky_relu(z @ _weight(generator, LATENT, LATENT), 0.2)
    x = torch.randn(1, CHANNELS, 4, 4, generator=generator).expand(len(z), -1, -1, -1)
    image = torch.zeros(len(z), shape[0], 4, 4)
    for level in range(max(1, math.ceil(math.log2(max(shape[1:]) / 4)) + 1)):
        if level:
            x, image = _double(x), _double(image)
        kernel = torch.randn(CHANNELS, CHANNELS, 3, 3, generator=generator)
        x = F.leaky_relu(_modulated(x, style, kernel, generator), 0.2)
        rgb = torch.randn(shape[0], CHANNELS, 1, 1, generator=generator) / math.sqrt(CHANNELS)
        image = image + F.conv2d(x, rgb)
    return image


def _modulated(x: Tensor, style: Tensor, kernel: Tensor, generator: Generator) -> Tensor:
    """A convolution with input channels scaled by the style, and output normalised to unit variance."""
    scale = 1 + style @ _weight(generator, LATENT, x.shape[1])
    weight = kernel * scale[:, None, :, None, None]
    weight = weight * (weight.square().sum((2, 3, 4), keepdim=True) + 1e-8).rsqrt()
    n, out, channels, k, _ = weight.shape
    grouped = F.conv2d(x.reshape(1, n * channels, *x.shape[2:]), weight.flatten(0, 1), padding=k // 2, groups=n)
    return grouped.view(n, out, *x.shape[2:])


def _weight(generator: Generator, rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns, generator=generator) / math.sqrt(rows)


def _double(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)


def _as_input(images: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Resized, standardised to mean 0.5 and std 0.25, clipped to valid pixels, as input under `SCALE`."""
    resized = F.interpolate(images, size=shape[1:], mode="bilinear", align_corners=False, antialias=True)
    standard = (resized - resized.mean()) / resized.std()
    return ((0.5 + 0.25 * standard).clamp(0, 1) - 0.5) / 0.5
