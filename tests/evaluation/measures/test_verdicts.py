"""The verdict on a difference: the same function for gate and report, monotone and fair to both sides."""

from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from chimera.config.tree import Config
from evaluation.measures.verdicts import margins, verdict

ORDER = {"worse": 0, "no difference shown": 1, "non-inferior": 2, "better": 3}
FINITE = st.floats(-1, 1)
SETTINGS = {"level": 0.05, "better": 1, "margin": 0.05}
OPPOSITE = {"better": "worse", "worse": "better"}


@given(FINITE, st.floats(0, 0.5), st.floats(0.06, 1), st.floats(0, 1))
def test_a_larger_difference_is_never_worse_for_it(difference, width, p, rise):
    """With one p-value for both, and with one that a difference further from zero makes smaller."""
    before = verdict(difference, difference - width, p, **SETTINGS)
    after = verdict(difference + rise, difference + rise - width, p, **SETTINGS)
    assert ORDER[before] <= ORDER[after]


@given(FINITE, FINITE, st.floats(0.01, 0.3))
@settings(deadline=None)
def test_a_test_by_the_normal_distribution_is_monotone_too(low, high, error):
    def of(difference):
        p = 2 * float(ndtr(-abs(difference) / error))
        return ORDER[verdict(difference, difference - 1.96 * error, p, **SETTINGS)]

    assert of(min(low, high)) <= of(max(low, high))


@given(FINITE, st.floats(0, 1))
def test_what_is_better_for_one_is_worse_for_the_other(difference, p):
    there = verdict(difference, None, p, **SETTINGS)
    back = verdict(-difference, None, p, **SETTINGS)
    assert back == OPPOSITE.get(there, there)
    assert there == verdict(-difference, None, p, level=0.05, better=-1, margin=None)


@given(FINITE, st.floats(0, 1), st.floats(0.001, 1))
def test_a_test_that_shows_nothing_leaves_the_verdict_to_the_interval(low, difference, margin):
    found = verdict(difference, low, 0.5, level=0.05, better=1, margin=margin)
    assert found == ("non-inferior" if low > -margin else "no difference shown")


def test_without_a_margin_or_an_interval_there_is_no_non_inferiority():
    assert verdict(0.0, 0.0, 1.0, level=0.05, better=1, margin=None) == "no difference shown"
    assert verdict(0.0, None, 1.0, level=0.05, better=1, margin=0.1) == "no difference shown"
    assert verdict(1.0, 0.5, 0.01, level=0.05, better=0, margin=None) == "higher"


def test_the_margins_are_the_gates():
    assert margins(Config()) == {"reward": 0.1, "alignment": 0.05}
