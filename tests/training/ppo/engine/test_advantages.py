"""VeRL's advantage estimators, as we call them, against their closed forms."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.ppo.engine.advantages import alone, at_last_token, estimate, group_figures
from training.ppo.engine.batch import Sample

REWARD = st.floats(-3, 3, allow_nan=False).map(lambda value: round(value, 3))
UNIT = st.floats(0, 1)


@st.composite
def responses(draw, *, smallest=2, peers=2):
    """Rewards, lengths and groups of a batch; every group has at least `peers` members."""
    sizes = draw(st.lists(st.integers(peers, 5), min_size=1, max_size=4).filter(lambda some: sum(some) >= smallest))
    groups = [f"g{number}" for number, size in enumerate(sizes) for _ in range(size)]
    groups = draw(st.permutations(groups))
    count = len(groups)
    rewards = draw(st.lists(REWARD, min_size=count, max_size=count))
    lengths = draw(st.lists(st.integers(1, 6), min_size=count, max_size=count))
    return rewards, lengths, groups


def masked(lengths):
    import torch

    return (torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]).float()


def computed(estimator, rewards, lengths, groups=None, **options):
    mask = masked(lengths)
    groups = groups or [str(place) for place in range(len(rewards))]
    both = estimate(estimator, at_last_token(rewards, mask), mask, groups, **options)
    return [values.numpy().astype(np.float64) for values in both], mask.numpy()


def whitened(values, mask):
    """Mean 0 and variance 1 over all tokens, as VeRL whitens: n - 1, and 1e-8 below the root."""
    tokens = values[mask > 0]
    return (values - tokens.mean()) / np.sqrt(tokens.var(ddof=1) + 1e-8)


def test_the_reward_is_at_the_last_token_of_each_response():
    tokens = at_last_token([2.0, -1.0, 5.0], masked([1, 3, 2]))
    assert tokens.tolist() == [[2.0, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, 5.0, 0.0]]


@settings(max_examples=40, deadline=None)
@given(responses(), st.booleans())
def test_grpo_compares_with_the_mean_and_spread_of_the_group(batch, divide):
    rewards, lengths, groups = batch
    (advantages, returns), mask = computed("grpo", rewards, lengths, groups, divide_by_std=divide)
    for place, group in enumerate(groups):
        peers = np.array([reward for reward, other in zip(rewards, groups, strict=True) if other == group])
        expected = rewards[place] - peers.mean()
        if divide:
            expected /= peers.std(ddof=1) + 1e-6
        assert advantages[place] == pytest.approx(expected * mask[place], abs=2e-3 if divide else 1e-5)
        if peers.std() == 0:
            assert np.abs(advantages[place]).max() < 1e-6
    assert (advantages == returns).all()


@settings(max_examples=40, deadline=None)
@given(responses())
def test_rloo_compares_with_the_mean_of_the_others(batch):
    rewards, lengths, groups = batch
    (advantages, _), mask = computed("rloo", rewards, lengths, groups)
    for place, group in enumerate(groups):
        others = [rewards[other] for other in range(len(groups)) if groups[other] == group and other != place]
        assert advantages[place] == pytest.approx((rewards[place] - np.mean(others)) * mask[place], abs=1e-5)
    for group in set(groups):
        members = [place for place, one in enumerate(groups) if one == group]
        assert sum(advantages[place, 0] for place in members) == pytest.approx(0, abs=1e-4)


@settings(max_examples=40, deadline=None)
@given(responses(peers=1, smallest=3), UNIT)
def test_reinforce_plus_plus_whitens_discounted_returns(batch, gamma):
    rewards, lengths, groups = batch
    lengths = [length + 1 for length in lengths]
    (advantages, returns), mask = computed("reinforce_plus_plus", rewards, lengths, groups, gamma=gamma)
    expected = np.zeros_like(mask, dtype=np.float64)
    for place, (reward, length) in enumerate(zip(rewards, lengths, strict=True)):
        expected[place, :length] = reward * gamma ** np.arange(length - 1, -1, -1, dtype=np.float64)
    assert returns == pytest.approx(expected, abs=1e-5)
    if expected[mask > 0].std() > 1e-2:
        assert advantages == pytest.approx(whitened(expected, mask) * mask, abs=2e-3)


@settings(max_examples=40, deadline=None)
@given(responses(peers=1, smallest=2), UNIT, UNIT, st.integers(0, 1000))
def test_gae_is_the_double_sum_over_temporal_differences(batch, gamma, lam, seed):
    import torch

    rewards, lengths, groups = batch
    lengths = [length + 1 for length in lengths]
    mask = masked(lengths)
    values = torch.from_numpy(np.random.default_rng(seed).normal(size=tuple(mask.shape))).float() * mask
    (advantages, returns), found = computed("gae", rewards, lengths, groups, values=values, gamma=gamma, lam=lam)
    v = values.numpy().astype(np.float64)
    expected = np.zeros_like(v)
    for place, (reward, length) in enumerate(zip(rewards, lengths, strict=True)):
        after = np.append(v[place, 1:length], 0.0)
        earned = np.append(np.zeros(length - 1), reward)
        differences = earned + gamma * after - v[place, :length]
        for t in range(length):
            expected[place, t] = sum((gamma * lam) ** (k - t) * differences[k] for k in range(t, length))
    valid = found > 0
    assert returns[valid] == pytest.approx((expected + v)[valid], abs=1e-4)
    assert advantages[valid] == pytest.approx(whitened(expected, found)[valid], abs=2e-3)


@pytest.mark.parametrize("estimator", ["grpo", "rloo"])
def test_a_response_without_peers_has_no_baseline(estimator):
    mask = masked([1, 1, 1])
    groups = ["a", "b", "a"]
    assert alone(groups) == [1]
    with pytest.raises(ValueError, match="alone in their group"):
        estimate(estimator, at_last_token([1.0, 2.0, 3.0], mask), mask, groups)


def test_gae_needs_values():
    mask = masked([1])
    with pytest.raises(ValueError, match="a value for every token"):
        estimate("gae", at_last_token([1.0], mask), mask, ["a"])


def samples_in(*groups):
    """Samples from groups of (prompt, response, reward), each prompt and response one token long."""
    return [
        Sample((prompt,), (response,), reward, str(place), "t")
        for place, group in enumerate(groups)
        for prompt, response, reward in group
    ]


def test_groups_that_cannot_teach_are_counted():
    figures = group_figures(
        samples_in([(1, 1, 1.0), (1, 2, 1.0)], [(1, 1, 0.5), (1, 2, 0.7)], [(1, 1, 0.1 + 0.2), (1, 2, 0.3)])
    )
    assert (figures["group/count"], figures["group/size"]) == (3.0, 2.0)
    assert figures["group/zero_variance"] == pytest.approx(2 / 3)
    assert figures["group/prompts_differ"] == 0.0


def test_groups_that_differ_only_by_what_their_members_were_handed_are_counted():
    """Of five groups three have different prompts, two of them the same answers, one of those different rewards."""
    figures = group_figures(
        samples_in(
            [(1, 9, 1.0), (2, 9, 0.0)],  # other prompts, one answer, other rewards: only the input differs
            [(1, 9, 1.0), (2, 9, 1.0)],  # the same, and nothing to learn
            [(1, 8, 1.0), (2, 9, 0.0)],  # the answers differ too
            [(1, 8, 1.0), (1, 9, 0.0)],  # one prompt
            [(1, 9, 1.0), (1, 9, 0.0)],  # one prompt and one answer: the difference is others' luck, not the input
        )
    )
    assert figures["group/prompts_differ"] == pytest.approx(3 / 5)
    assert figures["group/differs_only_by_input"] == pytest.approx(2 / 5)
    assert figures["group/informative_differs_only_by_input"] == pytest.approx(1 / 4)


def test_a_share_of_no_informative_groups_is_left_out():
    assert "group/informative_differs_only_by_input" not in group_figures(samples_in([(1, 9, 1.0), (2, 9, 1.0)]))
