"""Several small pictures in one image."""

import pytest
import torch

from fedlgd.core.types import Stream, VirtualSet, cut
from fedlgd.distill.distribution import Pair, first_set, image_gradient
from fedlgd.distill.init import as_tiles, labels_for
from fedlgd.distill.settings import Distil
from tests import tiny


def pictures(n: int, side: int) -> torch.Tensor:
    return torch.randn(n, 3, side, side, generator=Stream(0).generator())


def test_one_tile_is_the_image_itself():
    x = pictures(4, 6)
    assert cut(x, 1) is x
    assert as_tiles(x, 1) is x


@pytest.mark.parametrize(("tiles", "side"), [(2, 8), (3, 9), (3, 10)])
def test_pictures_are_laid_row_by_row_and_cut_in_the_same_order(tiles, side):
    x = torch.arange(2 * tiles**2).float()[:, None, None, None].expand(-1, 3, side, side)
    image = as_tiles(x, tiles)
    assert image.shape == (2, 3, side, side)
    assert [image[1, 0, 0, 0].item(), image[1, 0, 0, side // tiles].item()] == [tiles**2, tiles**2 + 1]
    torch.testing.assert_close(cut(image, tiles), x)


def test_a_tile_is_the_average_of_its_pixels_enlarged_bilinearly():
    x = pictures(4, 8)
    small = torch.nn.functional.avg_pool2d(x, 2)
    large = torch.nn.functional.interpolate(small, scale_factor=2, mode="bilinear")
    torch.testing.assert_close(cut(as_tiles(x, 2), 2), large)


def test_a_set_with_tiles_is_trained_on_as_pictures():
    x, y = pictures(2, 8), torch.tensor([0, 1])
    data = VirtualSet(images=x, labels=y, origin="ape", round=-1, tiles=2).data
    assert data.y.tolist() == [0] * 4 + [1] * 4
    assert torch.equal(data.x, cut(x, 2))


def test_distillation_of_tiles_matches_the_means_of_their_pictures():
    net, site = tiny.net(), tiny.federation().sites[0]
    virtual = first_set(site, net, Distil(per_class=1, tiles=2, steps=2, augment=()), Stream(0))
    assert (len(virtual), len(virtual.data), virtual.tiles) == (tiny.CLASSES, 4 * tiny.CLASSES, 2)
    images, labels, params = virtual.images.double(), virtual.labels, tiny.double(tiny.params(net))
    target = torch.zeros(tiny.CLASSES, net.features, dtype=torch.float64)
    same = [lambda x: x] * tiny.CLASSES
    leaf = images.clone().requires_grad_()
    features = net.by_batch(params, cut(leaf, 2)).features.view(tiny.CLASSES, 4, -1)
    features.mean(1).square().sum().backward()
    torch.testing.assert_close(image_gradient(net, Pair(params, same, target), images, labels, 2), leaf.grad)
    assert torch.equal(labels, labels_for(range(tiny.CLASSES), 1))
