"""The rule of weighing: votes by design and size, and what cannot change an answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.core.types import ResearchTask
from chimera.core.weighing import PRECISE, Design, Vote, points, weigh, weight

VOTES = st.lists(
    st.builds(Vote, st.text(max_size=3), st.sampled_from(["yes", "no", "maybe", None]), st.sampled_from([1, 2, 4]))
)
SWAPPED = {"yes": "no", "no": "yes", "maybe": "maybe", None: None}


@pytest.mark.parametrize(
    ("design", "participants", "expected"),
    [
        ("cohort", 399, 1),
        ("cohort", 400, 2),
        ("trial", 100, 2),
        ("trial", 399, 2),
        ("trial", 400, 4),
        ("trial", 980, 4),
    ],
)
def test_a_trial_and_a_precise_study_each_weigh_double(design: Design, participants: int, expected: int) -> None:
    assert PRECISE == 400
    assert weight(design, participants) == expected


def test_more_points_win_and_not_more_studies() -> None:
    cohorts = [Vote(str(number), "no", 1) for number in range(3)]
    assert weigh([*cohorts, Vote("trial", "yes", 4)]) == "yes"
    assert points([*cohorts, Vote("trial", "yes", 4)]) == (4, 3)
    assert weigh([*cohorts, Vote("trial", "yes", 2)]) == "no"


def test_a_conflict_of_equals_is_maybe_and_so_is_no_evidence() -> None:
    assert weigh([Vote("a", "yes", 2), Vote("b", "no", 1), Vote("c", "no", 1)]) == "maybe"
    assert weigh([]) == weigh([Vote("a", None, 4)]) == weigh([Vote("a", "maybe", 4)]) == "maybe"


@given(VOTES, st.randoms())
def test_the_order_of_studies_does_not_matter(votes: list[Vote], rng) -> None:
    shuffled = rng.sample(votes, len(votes))
    assert (weigh(shuffled), points(shuffled)) == (weigh(votes), points(votes))


@given(VOTES)
def test_the_opposite_question_has_the_opposite_answer(votes: list[Vote]) -> None:
    assert weigh(Vote(vote.study, SWAPPED[vote.answer], vote.weight) for vote in votes) == SWAPPED[weigh(votes)]


@given(VOTES, st.sampled_from(["maybe", None]), st.sampled_from([1, 2, 4]))
def test_a_study_for_neither_side_changes_nothing(votes: list[Vote], answer, weight_: int) -> None:
    assert weigh([*votes, Vote("more", answer, weight_)]) == weigh(votes)


@given(VOTES, st.sampled_from([1, 2, 4]))
def test_one_more_vote_for_yes_never_moves_the_answer_away_from_yes(votes: list[Vote], weight_: int) -> None:
    order = ["no", "maybe", "yes"]
    assert order.index(weigh([*votes, Vote("more", "yes", weight_)])) >= order.index(weigh(votes))


@given(VOTES, st.integers(2, 5))
def test_only_the_proportion_of_weights_matters(votes: list[Vote], factor: int) -> None:
    assert weigh(Vote(vote.study, vote.answer, factor * vote.weight) for vote in votes) == weigh(votes)


def test_the_right_answer_for_a_role_is_that_of_the_studies_it_has_read() -> None:
    votes = (Vote("a", "yes", 1), Vote("b", "no", 2), Vote("c", None, 4), Vote("d", "yes", 1))
    task = ResearchTask("t", "Is it so?", (), "maybe", "generated", votes=votes)
    assert task.label_after(["a"]) == task.label_after(["a", "a", "elsewhere"]) == "yes"
    assert task.label_after(["a", "b"]) == "no"
    assert task.label_after([]) == task.label_after(["c", "a protein"]) == "maybe"
    assert task.label_after("abcd") == task.label
    assert "Vote" not in repr(task)
