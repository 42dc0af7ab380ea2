"""Words for numbers."""

import pytest
import torch

from fedlgd.core.errors import DataError
from fedlgd.core.text import counted, number_of_bytes, plural
from fedlgd.core.types import LabelledSet, Site
from fedlgd.distill.init import virtual_numbers
from fedlgd.distill.settings import Distil
from tests.errors import refuses


@pytest.mark.parametrize(
    ("count", "noun", "said"),
    [(1, "seed", "1 seed"), (0, "seed", "0 seeds"), (2, "test image", "2 test images"), (3, "class", "3 classes")],
)
def test_a_noun_follows_its_number(count, noun, said):
    assert plural(count, noun) == said
    assert said.endswith(f" {counted(count, noun)}")


@pytest.mark.parametrize(
    ("value", "said"), [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (52_300, "52.3 kB"), (45_600_000, "45.6 MB")]
)
def test_bytes_have_the_unit_that_shows_three_digits(value, said):
    assert number_of_bytes(value) == said


def test_sets_and_errors_about_a_single_image_say_so():
    one = LabelledSet(torch.zeros(1, 3, 8, 8), torch.zeros(1, dtype=torch.long))
    assert repr(one).startswith("LabelledSet(1 image of ")
    assert "1 class)" in repr(one)
    assert "1 training and 1 test image)" in repr(Site(name="a", train=one, test=one, classes=("x",)))
    with refuses("class-smaller-than-virtual", DataError, count=1, label=0, per_class=2):
        virtual_numbers(one, 1, Distil(per_class=2, short="refuse"), "a")
