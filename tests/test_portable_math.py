"""The portable functions are accurate; that they are portable shows in the golden values of plans and lengths."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from inferometer import portable_math


@given(st.floats(1e-300, 1e300))
def test_the_logarithm_is_accurate(x: float) -> None:
    assert portable_math.log(np.array([x]))[0] == pytest.approx(np.log(x), rel=1e-15, abs=1e-15)


@given(st.floats(-800, 709))
def test_the_exponential_is_accurate(x: float) -> None:
    assert portable_math.exp(np.array([x]))[0] == pytest.approx(np.exp(x), rel=1e-13, abs=1e-307)


def test_the_exponential_of_a_large_number_is_large_and_finite() -> None:
    assert 1e307 < portable_math.exp(np.array([1e6]))[0] < np.inf


@given(st.floats(1e-300, 1, exclude_max=True))
def test_normal_quantiles_are_accurate(p: float) -> None:
    assert portable_math.normal_quantile(np.array([p]))[0] == pytest.approx(special.ndtri(p), rel=1e-13, abs=1e-15)


@given(st.floats(-40, 40))
def test_normal_probabilities_are_accurate(x: float) -> None:
    assert portable_math.normal_cdf(np.array([x]))[0] == pytest.approx(special.ndtr(x), rel=1e-7, abs=1e-15)


@given(st.floats(1e-12, 1 - 1e-12))
def test_quantiles_and_probabilities_are_inverse(p: float) -> None:
    assert portable_math.normal_cdf(portable_math.normal_quantile(np.array([p])))[0] == pytest.approx(p, rel=1e-12)
