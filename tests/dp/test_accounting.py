"""The exact privacy of Gaussian noise: `delta`, `epsilon` and `mu_for`."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlgd.dp import accounting


@pytest.mark.parametrize(
    ("epsilon", "mu", "delta"),
    [
        (1, 1, 0.12693673750664),
        (2, 0.5, 9.43916863495e-06),
        (10, 2, 9.9402028161e-06),
        (0.1, 0.268, 0.06728494088595),
    ],
)
def test_delta_is_that_of_the_specification(epsilon, mu, delta):
    assert accounting.delta(epsilon, mu) == pytest.approx(delta, rel=1e-9)


@pytest.mark.parametrize(("epsilon", "mu"), [(1, 0.26805), (4, 0.92493), (10, 2.00045)])
def test_mu_for_is_that_of_the_specification(epsilon, mu):
    assert accounting.mu_for(epsilon, 1e-5) == pytest.approx(mu, abs=1e-5)


@given(st.floats(0.05, 50), st.floats(1e-9, 1e-2))
def test_epsilon_undoes_mu_for(epsilon, delta):
    assert accounting.epsilon(accounting.mu_for(epsilon, delta), delta) == pytest.approx(epsilon, rel=1e-6)


def test_no_release_costs_nothing_and_no_noise_costs_everything():
    assert accounting.epsilon(0.0, 1e-5) == 0
    assert accounting.delta(1.0, 0.0) == 0
    assert math.isinf(accounting.epsilon(1e3, 1e-5))
