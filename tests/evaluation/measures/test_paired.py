"""Paired comparisons: closed forms, invariants, and the interval's coverage."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from evaluation.measures.paired import paired_difference, sign_test

SETTINGS = {"confidence": 0.95, "resamples": 500, "seed": 0}
VALUES = st.lists(st.tuples(st.floats(-3, 3), st.floats(-3, 3)), min_size=2, max_size=30)


@given(VALUES)
def test_the_mean_is_that_of_the_differences_and_lies_in_what_they_span(pairs):
    before, after = zip(*pairs, strict=True)
    found = paired_difference(before, after, **SETTINGS)
    differences = [new - old for old, new in pairs]
    assert found.n == len(pairs)
    assert found.mean == pytest.approx(math.fsum(differences) / len(pairs), abs=1e-9)
    assert found.after - found.before == pytest.approx(found.mean, abs=1e-9)
    assert min(differences) - 1e-9 <= found.low <= found.high <= max(differences) + 1e-9


@given(VALUES, st.floats(-2, 2))
def test_a_constant_gain_moves_the_interval_and_nothing_else(pairs, gain):
    before, after = zip(*pairs, strict=True)
    found = paired_difference(before, after, **SETTINGS)
    moved = paired_difference(before, [value + gain for value in after], **SETTINGS)
    for name in ("mean", "low", "high"):
        assert getattr(moved, name) == pytest.approx(getattr(found, name) + gain, abs=1e-9)


def test_the_same_gain_everywhere_has_an_interval_of_no_width():
    found = paired_difference([0.0, 1.0, 2.0], [0.5, 1.5, 2.5], **SETTINGS)
    assert (found.mean, found.low, found.high) == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(("before", "after"), [([1.0], [2.0]), ([], []), ([1.0, 2.0], [1.0])])
def test_too_few_or_unequal_values_are_refused(before, after):
    with pytest.raises(ValueError, match="two or more pairs"):
        paired_difference(before, after, **SETTINGS)


@given(st.integers(0, 40), st.integers(0, 40))
def test_the_sign_test_is_the_exact_binomial_one(gained, lost):
    expected = binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
    assert sign_test(gained, lost) == pytest.approx(expected)
