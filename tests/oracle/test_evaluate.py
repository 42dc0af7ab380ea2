"""The area under the ROC curve against every pair."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlgd.core.train import area
from tests.oracle import slow

scored = st.tuples(st.integers(-3, 3) | st.floats(-1e6, 1e6), st.booleans())


@settings(deadline=None, max_examples=150)
@given(st.lists(scored, min_size=2, max_size=40).filter(lambda rows: len({p for _, p in rows}) == 2))
def test_area_under_the_curve(rows):
    scores, positive = zip(*rows, strict=True)
    got = area(torch.tensor(scores, dtype=torch.float64), torch.tensor(positive))
    assert got == pytest.approx(slow.area(scores, positive), abs=1e-12)
