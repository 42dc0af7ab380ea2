"""A guarded site: who reads private images is known, and under a promise only releases can."""

from dataclasses import replace

import pytest

from fedlgd.core.errors import PrivacyError
from fedlgd.core.guard import blank_site, sealed, unsealed, watched
from tests import tiny
from tests.errors import refuses

SITE = tiny.federation().sites[0]


@pytest.mark.parametrize(
    ("read", "noted"),
    [
        (lambda data: data.x, True),
        (lambda data: data.take(slice(0, 2)), True),
        (lambda data: data.pixels(slice(0, 2)), True),
        (lambda data: replace(data, y=data.y[:1], x=data.x[:1]), True),
        (lambda data: len(data), False),
        (lambda data: data.counts(3), False),
        (lambda data: data.of_class(1), False),
        (lambda data: data.scale, False),
    ],
)
def test_reading_images_is_noted_and_counting_labels_is_not(read, noted):
    notes = []
    site = watched(SITE, lambda: notes.append(1))
    read(site.train)
    assert bool(notes) is noted
    assert not notes or len(site.test.x) == len(SITE.test.x)


def test_what_is_read_from_a_watched_set_is_the_set():
    train = watched(SITE, lambda: None).train
    assert (train.take(slice(0, 3)).x == SITE.train.take(slice(0, 3)).x).all()
    assert train.counts(3).tolist() == SITE.train.counts(3).tolist()
    assert len(replace(train, x=train.x[:2], y=train.y[:2])) == 2


@pytest.mark.parametrize("part", ["train", "test"])
@pytest.mark.parametrize(
    "read", [lambda d: d.x, lambda d: d.y, lambda d: len(d), lambda d: d.counts(3), lambda d: d.take(slice(0, 1))]
)
def test_a_sealed_site_can_only_be_read_where_a_release_opens_it(part, read):
    site = sealed(SITE, "mine")
    with refuses("images-sealed", PrivacyError, site=SITE.name, method="mine"):
        read(getattr(site, part))
    assert getattr(unsealed(site), part) is getattr(SITE, part)
    assert site.train.scale == SITE.train.scale


def test_a_site_without_images_has_none_of_them():
    blank = blank_site(sealed(SITE, "mine"))
    assert len(blank.train) == 0
    assert blank.train.counts(3).tolist() == [0, 0, 0]
    with refuses("images-sealed", PrivacyError):
        len(blank.test)
