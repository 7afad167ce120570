"""The exact sign test beside SciPy's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from evaluation.measures.paired import sign_test


@given(st.integers(0, 40), st.integers(0, 40))
def test_the_sign_test_is_the_exact_binomial_one(gained, lost):
    expected = binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
    assert sign_test(gained, lost) == pytest.approx(expected)
