"""A search's budget: what is counted, that nothing is paid twice, and that no limit is passed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_kit import answered

from training.guidance.budget import NEXT, Budget, BudgetSpentError, Purse

PRICES = {"junior": [1.0, 10.0], "judge": [100.0, 100.0]}


def rollout(number, tokens=100, judge=0):
    slots = {"junior": {"prompt": tokens, "completion": 0}}
    return answered(f"ro-{number}", f"t{number}", tokens=slots, counts={"judge_prompt_tokens": judge})


def purse(earlier=(), **limits):
    return Purse(Budget(**limits), PRICES, lambda task: "judge", earlier)


def test_each_rollout_is_paid_once_with_the_judge_s_tokens_and_its_price():
    paid = purse()
    for _ in range(3):
        paid.pay(rollout(1, 100, judge=50))
    assert (paid.spent["rollouts"], paid.spent["tokens"]) == (1, 150)
    assert paid.spent["usd"] == pytest.approx((100 * 1.0 + 50 * 100.0) / 1e6)


def test_each_judge_has_its_own_price():
    judged = Purse(Budget(), PRICES | {"other": [1.0, 1.0]}, {"t1": "judge", "t2": "other"}.__getitem__)
    judged.pay(rollout(1, 0, judge=100))
    judged.pay(rollout(2, 0, judge=100))
    assert judged.spent["usd"] == pytest.approx((100 * 100.0 + 100 * 1.0) / 1e6)


def test_questions_are_counted_as_a_whole_each_time():
    paid = purse()
    for _ in range(2):
        paid.questions({"ask_prompt_tokens": 30, "ask_completion_tokens": 12, "ask_usd": 0.5, "replays": 9})
    assert (paid.spent["tokens"], paid.spent["usd"]) == (42, 0.5)


def test_a_limit_of_rollouts_is_checked_before_the_first_of_several():
    paid = purse(rollouts=5)
    paid.pay(rollout(1))
    paid.check(4)
    with pytest.raises(BudgetSpentError):
        paid.check(5)
    assert paid.affordable(9) == 4


@pytest.mark.parametrize("limits", [{"tokens": 100}, {"usd": 1e-4}, {"rollouts": 1}, {"seconds": 1e-9}])
def test_what_is_spent_ends_a_search(limits):
    paid = purse(**limits)
    paid.pay(rollout(1))
    with pytest.raises(BudgetSpentError):
        paid.affordable(1)


def test_without_a_limit_all_are_affordable_and_an_unknown_cost_is_tried_alone():
    assert purse().affordable(50) == 50
    assert purse(tokens=10**6).affordable(50) == 1
    assert purse([rollout(1, 1000)], tokens=10_000).affordable(50) == 5


def test_the_limits_in_words_name_each_that_is_set():
    assert Budget().words() == ""
    words = Budget(rollouts=1500, tokens=2, usd=0.5, seconds=60).words()
    assert all(limit in words for limit in ("1,500 rollouts", "2 tokens", "0.5 US dollars", "60 s"))


@given(st.integers(1, 400), st.lists(st.floats(0.1, NEXT), max_size=60))
def test_tokens_never_pass_their_limit_where_no_rollout_grows_by_half(first, growth):
    """Each rollout takes at most 1.5 times the most that one took before it began."""
    limit, largest, number = 10_000, first, 0
    paid = purse([rollout(0, first)], tokens=limit)
    waiting = list(growth)
    while waiting:
        try:
            count = paid.affordable(len(waiting))
        except BudgetSpentError:
            break
        wave, waiting, before = waiting[:count], waiting[count:], largest
        for factor in wave:
            number, tokens = number + 1, int(before * factor)
            paid.pay(rollout(number, tokens))
            largest = max(largest, tokens)
    assert paid.spent["tokens"] <= limit
