"""Sites in numbers: counts, colours and histograms."""

import numpy as np
import pytest
import torch

from fedlgd.core.types import LabelledSet, Scale, Site
from fedlgd.data import describe as module
from fedlgd.data.describe import HISTOGRAM_BINS, grey_levels, spark, statistics_of
from fedlgd.data.federation import from_arrays


def site_of(pixels, labels=None, classes=2):
    x = torch.as_tensor(pixels, dtype=torch.uint8)
    y = torch.zeros(len(x), dtype=torch.int64) if labels is None else torch.tensor(labels)
    data = LabelledSet(x, y)
    return Site("a", data, LabelledSet(x[:1], y[:1]), tuple(map(str, range(classes))), "a note")


def random_pixels(n=7):
    return np.random.default_rng(0).integers(0, 256, (n, 3, 5, 4), dtype=np.uint8)


def test_counts_per_class_include_classes_that_are_missing():
    s = statistics_of(site_of(random_pixels(4), [0, 2, 2, 0], classes=4))
    assert (s.train, s.test) == (4, 1)
    assert s.train_per_class == (2, 0, 2, 0)
    assert s.test_per_class == (1, 0, 0, 0)
    assert (s.site, s.note) == ("a", "a note")


def test_mean_and_std_are_those_of_all_pixels_of_a_channel():
    pixels = random_pixels()
    s = statistics_of(site_of(pixels))
    assert s.mean == pytest.approx((pixels / 255).mean((0, 2, 3)), abs=1e-4)
    assert s.std == pytest.approx((pixels / 255).std((0, 2, 3)), abs=1e-4)


def test_histograms_are_shares_of_equal_bins():
    pixels = random_pixels()
    s = statistics_of(site_of(pixels))
    for channel, shares in enumerate(s.histogram):
        wanted = np.histogram(pixels[:, channel], bins=HISTOGRAM_BINS, range=(0, 256))[0] / pixels[:, channel].size
        assert shares == pytest.approx(wanted, abs=1e-4)


def test_more_images_than_a_chunk_are_all_counted(monkeypatch):
    monkeypatch.setattr(module, "IMAGES_AT_ONCE", 2)
    assert grey_levels(site_of(random_pixels(7)).train).sum(1).tolist() == [7 * 20] * 3


def test_grey_shown_as_three_channels_is_counted_once_and_shown_three_times():
    grey = torch.tensor([[[[0, 51], [255, 255]]]], dtype=torch.uint8)
    s = statistics_of(site_of(grey.expand(-1, 3, -1, -1)))
    assert s.mean == pytest.approx((0.55,) * 3)
    assert s.histogram[0] == s.histogram[2]
    assert s.histogram[0][-1] == 0.5


def test_one_channel_is_counted_too():
    assert grey_levels(LabelledSet(torch.zeros(2, 1, 3, 3, dtype=torch.uint8), torch.zeros(2))).shape == (1, 256)


def test_of_a_large_site_evenly_spaced_images_are_measured(monkeypatch):
    monkeypatch.setattr(module, "MAX_MEASURED_IMAGES", 3)
    pixels = random_pixels(7)
    s = statistics_of(site_of(pixels))
    assert s.measured == 3
    assert s.mean == pytest.approx((pixels[::3] / 255).mean((0, 2, 3)), abs=1e-4)
    assert s.train == 7


def test_network_input_is_measured_in_pixels():
    scale = Scale((0.1, 0.2, 0.3), (0.5, 0.4, 0.3))
    x = random_pixels(5).transpose(0, 2, 3, 1)
    y = np.array([0, 1, 0, 1, 0])
    sites = [
        from_arrays({"a": (kind, y, kind, y)}, scale=scale).sites[0] for kind in (x, (x / 255).astype(np.float32))
    ]
    assert statistics_of(sites[0]) == statistics_of(sites[1])


def test_a_sparkline_has_a_full_block_at_the_top_and_nothing_where_there_is_nothing():
    assert spark((0.0, 0.25, 0.5)) == " ▄█"
    assert spark((0.0, 1e-9, 1.0)) == " ▁█"
    assert spark((0.0, 0.0)) == "  "
