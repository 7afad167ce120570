"""How the rows of a mini-batch are divided among ranks and micro-batches."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.ppo.ranks.shares import cost, divide, plan


@st.composite
def batches(draw):
    """Bundles of rows with one prompt each, with all rows' sizes and prompts."""
    bundles, sizes, prompts = [], [], []
    for _ in range(draw(st.integers(1, 8))):
        prompt, first = draw(st.integers(1, 60)), len(sizes)
        answers = draw(st.lists(st.integers(1, 40), min_size=1, max_size=6))
        sizes += [prompt + answer for answer in answers]
        prompts += [prompt] * len(answers)
        bundles.append(list(range(first, len(sizes))))
    return bundles, sizes, prompts


def slowest(division, sizes, prompts):
    return max(sum(cost(piece, sizes, prompts) for piece in mine) for mine in division)


@given(batches(), st.integers(1, 4), st.integers(0, 300))
def test_every_row_has_one_rank_and_all_ranks_have_as_many_micro_batches_within_the_budget(batch, ranks, more):
    bundles, sizes, prompts = batch
    budget = max(sizes) + more
    found = plan(bundles, sizes, prompts, ranks=ranks, budget=budget)
    assert sorted(row for mine in found for rows in mine for row in rows) == list(range(len(sizes)))
    assert len(found) == ranks
    assert len({len(mine) for mine in found}) == 1
    assert all(sum(sizes[row] for row in rows) <= budget for mine in found for rows in mine)
    assert sum(any(mine) for mine in found) == min(ranks, len(sizes))
    assert found == plan(bundles, sizes, prompts, ranks=ranks, budget=budget)


@given(batches(), st.integers(2, 4))
def test_no_rank_waits_much_longer_than_if_bundles_were_whole(batch, ranks):
    """Halving bundles is only done where it makes the slowest rank faster."""
    from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions

    bundles, sizes, prompts = batch
    found = divide(bundles, sizes, prompts, ranks)
    assert all(len({prompts[row] for row in piece}) == 1 for mine in found for piece in mine)
    if len(bundles) >= ranks:
        costs = [cost(bundle, sizes, prompts) for bundle in bundles]
        parts: Any = get_seqlen_balanced_partitions(costs, ranks, equal_size=False)
        assert slowest(found, sizes, prompts) <= max(sum(costs[place] for place in part) for part in parts)


@pytest.mark.parametrize(
    ("prompts", "answers", "together", "pieces"),
    [(8, 8, 8, 8), (13, 8, 12, 14), (1, 8, 0, 2)],
    ids=["even", "odd: one is halved", "one prompt: halved"],
)
def test_answers_to_one_prompt_stay_together_where_the_balance_allows_it(prompts, answers, together, pieces):
    count = prompts * answers
    bundles = [list(range(first, first + answers)) for first in range(0, count, answers)]
    found = divide(bundles, [400] * count, [300] * count, 2)
    kept = [piece for mine in found for piece in mine]
    assert sum(piece in bundles for piece in kept) == together
    assert len(kept) == pieces
    least, most = sorted(sum(cost(piece, [400] * count, [300] * count) for piece in mine) for mine in found)
    assert most <= 1.05 * least


def test_a_rank_without_rows_has_empty_micro_batches():
    assert plan([[0]], [5], [2], ranks=3, budget=9) == [[[0]], [[]], [[]]]
