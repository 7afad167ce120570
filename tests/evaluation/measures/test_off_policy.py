"""Off-policy estimates: closed forms, exact expectations by enumeration, and the intervals' coverage by simulation."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from message_kit import refused

from evaluation.measures.off_policy import (
    Log,
    doubly_robust,
    doubly_robust_gain,
    effective_sample_size,
    ips,
    on_policy,
    snips,
)

K = 3
distribution = st.lists(st.floats(0.05, 1.0), min_size=K, max_size=K).map(lambda w: np.array(w) / sum(w))
table = st.lists(st.floats(-2, 2), min_size=2 * K, max_size=2 * K).map(lambda v: np.array(v).reshape(2, K))


def random_log(n, seed, reward=lambda rng, context, action: rng.normal(action, 1.0)):
    """Two contexts with their own logging policies; gives the log, each choice's context, and the logging tables."""
    rng = np.random.default_rng(seed)
    logging = rng.dirichlet(np.ones(K), size=2) * 0.7 + 0.1
    contexts = rng.integers(2, size=n)
    actions = np.array([rng.choice(K, p=logging[context]) for context in contexts])
    rewards = np.array([reward(rng, context, action) for context, action in zip(contexts, actions, strict=True)])
    return Log.of(actions, logging[contexts, actions], rewards), contexts, logging


@settings(max_examples=60, deadline=None)
@given(
    logging=st.tuples(distribution, distribution),
    target=st.tuples(distribution, distribution),
    means=table,
    model=table,
)
def test_ips_and_dr_are_unbiased_whatever_the_model_of_rewards(logging, target, means, model):
    """Expectation over every log of two choices: contexts even, rewards the mean plus or minus one."""
    expected = {"ips": 0.0, "dr": 0.0}
    outcomes = list(product(range(2), range(K), (-1.0, 1.0)))
    chance = {(x, a, s): 0.5 * logging[x][a] * 0.5 for x, a, s in outcomes}
    for first, second in product(outcomes, repeat=2):
        both = (first, second)
        log = Log.of(
            [a for _, a, _ in both], [logging[x][a] for x, a, _ in both], [means[x, a] + s for x, a, s in both]
        )
        targets = np.array([target[x] for x, _, _ in both])
        probability = chance[first] * chance[second]
        expected["ips"] += probability * ips(log, targets).value
        expected["dr"] += probability * doubly_robust(log, targets, np.array([model[x] for x, _, _ in both])).value
    truth = np.mean([target[x] @ means[x] for x in range(2)])
    assert expected == pytest.approx({"ips": truth, "dr": truth}, abs=1e-9)


@given(seed=st.integers(0, 10**6))
def test_evaluating_the_logging_policy_gives_the_mean_reward(seed):
    log, contexts, logging = random_log(50, seed)
    weights = log.weights(logging[contexts])
    assert weights == pytest.approx(np.ones(50))
    assert effective_sample_size(weights) == pytest.approx(50)
    for estimate in (ips(log, logging[contexts]), snips(log, logging[contexts])):
        assert estimate.value == pytest.approx(log.rewards.mean())
        assert (estimate.low, estimate.high) == pytest.approx((on_policy(log).low, on_policy(log).high))


@given(seed=st.integers(0, 10**6), shift=st.floats(-50, 50))
def test_snips_moves_with_all_rewards_and_stays_among_them(seed, shift):
    log, contexts, _ = random_log(40, seed)
    target = np.random.default_rng(seed).dirichlet(np.ones(K), size=2)[contexts]
    moved = Log.of(log.actions, log.propensities, log.rewards + shift)
    before, after = snips(log, target), snips(moved, target)
    assert after.value - before.value == pytest.approx(shift, abs=1e-6)
    assert after.high - after.low == pytest.approx(before.high - before.low, abs=1e-6)
    assert log.rewards.min() - 1e-9 <= before.value <= log.rewards.max() + 1e-9
    weights = log.weights(target)
    assert before.value == pytest.approx(np.average(log.rewards, weights=weights))


@given(seed=st.integers(0, 10**6))
def test_dr_is_ips_without_a_model_and_exact_with_a_perfect_one(seed):
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(2, K))
    log, contexts, _ = random_log(30, seed, reward=lambda _, context, action: means[context, action])
    target = rng.dirichlet(np.ones(K), size=2)[contexts]
    assert doubly_robust(log, target, np.zeros((30, K))) == ips(log, target)
    perfect = doubly_robust(log, target, means[contexts])
    assert perfect.value == pytest.approx((target * means[contexts]).sum(axis=1).mean())


def test_the_gain_is_paired():
    """Two policies that always agree differ by exactly nothing, however uncertain each one's own value is."""
    log, contexts, logging = random_log(60, 4)
    target = np.eye(K)[np.arange(60) % K]
    same = doubly_robust_gain(log, target, target, np.zeros((60, K)))
    assert (same.value, same.low, same.high) == (0, 0, 0)
    other = logging[contexts]
    gain = doubly_robust_gain(log, target, other, np.zeros((60, K)))
    assert gain.value == pytest.approx(ips(log, target).value - ips(log, other).value)


@given(used=st.integers(1, 30), unused=st.integers(0, 30), weight=st.floats(0.01, 100))
def test_equal_weights_count_fully_and_zero_weights_not_at_all(used, unused, weight):
    assert effective_sample_size(np.array([weight] * used + [0.0] * unused)) == pytest.approx(used)


@given(weights=st.lists(st.floats(0, 1000), min_size=1, max_size=40))
def test_the_effective_sample_size_is_at_most_the_number_of_choices(weights):
    assert 0 <= effective_sample_size(np.array(weights)) <= len(weights) + 1e-9


def test_the_interval_is_that_of_a_mean():
    rewards = np.array([0.0, 1.0, 2.0, 5.0])
    log = Log.of([0, 0, 0, 0], [1.0] * 4, rewards)
    half = 1.959964 * rewards.std(ddof=1) / 2
    found = ips(log, np.eye(K)[[0] * 4])
    assert (found.low, found.value, found.high) == pytest.approx((2 - half, 2, 2 + half))
    assert ips(log, np.eye(K)[[0] * 4], confidence=0.5).high < found.high


def test_copies_of_a_choice_in_its_cluster_add_no_certainty():
    log, contexts, _ = random_log(40, 1)
    target = np.random.default_rng(2).dirichlet(np.ones(K), size=2)[contexts]
    names = [str(number) for number in range(40)]
    twice = Log.of(*(np.tile(each, 2) for each in (log.actions, log.propensities, log.rewards)), names * 2)
    model = np.random.default_rng(3).normal(size=(40, K))
    for once, doubled in (
        (ips(log, target), ips(twice, np.tile(target, (2, 1)))),
        (snips(log, target), snips(twice, np.tile(target, (2, 1)))),
        (doubly_robust(log, target, model), doubly_robust(twice, np.tile(target, (2, 1)), np.tile(model, (2, 1)))),
    ):
        assert (doubled.value, doubled.low, doubled.high) == pytest.approx((once.value, once.low, once.high))


def test_intervals_cover_the_truth_as_often_as_they_say():
    """400 logs of 300 choices; 95 % of 400 is 380 with a standard error of 4.4."""
    means = np.array([[0.0, 1.0, 2.0], [2.0, 0.5, 0.0]])
    target = np.array([[0.1, 0.1, 0.8], [0.6, 0.2, 0.2]])
    logging = np.array([[0.6, 0.2, 0.2], [0.2, 0.2, 0.6]])
    truth = (target * means).sum(axis=1).mean()
    rng = np.random.default_rng(0)
    covered = dict.fromkeys(("ips", "snips", "dr"), 0)
    widths = dict.fromkeys(covered, 0.0)
    for _ in range(400):
        contexts = rng.integers(2, size=300)
        actions = (rng.random((300, 1)) > logging[contexts].cumsum(axis=1)).sum(axis=1)
        rewards = means[contexts, actions] + rng.normal(size=300)
        log = Log.of(actions, logging[contexts, actions], rewards)
        found = {
            "ips": ips(log, target[contexts]),
            "snips": snips(log, target[contexts]),
            "dr": doubly_robust(log, target[contexts], means[contexts]),
        }
        for name, estimate in found.items():
            covered[name] += estimate.low <= truth <= estimate.high
            widths[name] += estimate.high - estimate.low
    assert all(362 <= hits <= 395 for hits in covered.values()), covered
    assert widths["dr"] < widths["snips"]
    assert widths["dr"] < widths["ips"]


@pytest.mark.parametrize(
    ("propensities", "clusters", "message"),
    [
        ([0.5, 0.0], None, ("(0, 1]", "0.0")),
        ([0.5, 1.5], None, "(0, 1]"),
        ([0.5], None, "[1, 2]"),
        ([0.5, 0.5], ["a", "a"], "at least two clusters"),
    ],
)
def test_a_log_that_cannot_be_evaluated_is_refused(propensities, clusters, message):
    with refused(ValueError, message):
        Log.of([0, 1], propensities, [1.0, 2.0], clusters)


def test_a_target_that_shares_no_action_with_the_log_has_no_snips():
    log = Log.of([0, 0], [0.5, 0.5], [1.0, 2.0])
    target = np.eye(K)[[1, 1]]
    assert effective_sample_size(log.weights(target)) == 0
    with pytest.raises(ValueError, match="takes none of the logged actions"):
        snips(log, target)
