"""Words for numbers."""

import pytest

from fedlgd.core.words import counted, plural


@pytest.mark.parametrize(
    ("count", "noun", "said"),
    [(1, "seed", "1 seed"), (0, "seed", "0 seeds"), (2, "test image", "2 test images"), (3, "class", "3 classes")],
)
def test_a_noun_follows_its_number(count, noun, said):
    assert plural(count, noun) == said
    assert said.endswith(f" {counted(count, noun)}")
