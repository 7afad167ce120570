"""Coalitions of phases, and Shapley values over them: their axioms, and values worked out by hand."""

from math import isclose

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.run.policies import Policy
from evaluation.causes.shapley import shapley_values
from evaluation.records.coalitions import around, at_base, every, places, policies_of

PLAYERS = "abcde"
SFT = Policy("weights", "junior", "junior@sft", "models/junior/sft")
PPO = Policy("weights", "senior", "senior@ppo", "models/senior/ppo")
AGAIN = Policy("weights", "junior", "junior@again", "models/junior/again")
LEARNED = {"sft": SFT, "ppo": PPO, "again": AGAIN}


@st.composite
def games(draw):
    """Two to five players, and the worth of each coalition on three tasks: whole numbers, so that sums are exact."""
    players = PLAYERS[: draw(st.integers(2, 5))]
    worth = st.lists(st.integers(-9, 9), min_size=3, max_size=3)
    return players, {coalition: np.array(draw(worth), dtype=float) for coalition in every(players)}


def test_the_glove_game_by_hand():
    """a has a left glove, b and c a right one each; only a pair is worth something."""
    pairs = {frozenset("ab"), frozenset("ac"), frozenset("abc")}
    worth = {coalition: np.array([float(coalition in pairs)]) for coalition in every("abc")}
    found = shapley_values("abc", worth)
    assert [float(found[player][0]) for player in "abc"] == pytest.approx([2 / 3, 1 / 6, 1 / 6])


@given(games())
def test_efficiency_the_values_of_each_task_sum_to_the_whole_gain(game):
    players, worth = game
    found = shapley_values(players, worth)
    whole = worth[frozenset(players)] - worth[frozenset()]
    assert np.allclose(sum(found.values()), whole, rtol=0, atol=1e-12)


@given(games())
def test_symmetry_players_that_change_all_coalitions_alike_have_one_value(game):
    players, worth = game
    swapped = {"a": "b", "b": "a"}
    both = {
        coalition: worth[coalition] + worth[frozenset(swapped.get(one, one) for one in coalition)]
        for coalition in every(players)
    }
    found = shapley_values(players, both)
    assert np.allclose(found["a"], found["b"], rtol=0, atol=1e-12)


@given(games(), st.integers(-9, 9))
def test_a_dummy_has_what_it_brings_and_leaves_the_others_what_they_had(game, brings):
    players, worth = game
    wider = {one: worth[one - {"z"}] + brings * ("z" in one) for one in every([*players, "z"])}
    before, found = shapley_values(players, worth), shapley_values([*players, "z"], wider)
    assert np.allclose(found["z"], brings, rtol=0, atol=1e-12)
    assert all(np.allclose(found[player], before[player], rtol=0, atol=1e-12) for player in players)


@given(games())
def test_an_earlier_policy_of_the_same_place_counts_only_where_the_later_one_is_not(game):
    """a is the earlier, b the later: a changes nothing beside b."""
    players, worth = game
    hidden = {one: worth[one - {"a"}] if "b" in one else worth[one] for one in every(players)}
    found = shapley_values(players, hidden)
    if len(players) == 2:
        first = hidden[frozenset("a")] - hidden[frozenset()]
        assert all(isclose(*pair, abs_tol=1e-12) for pair in zip(found["a"], first / 2, strict=True))
    without = {one: hidden[one] for one in every([player for player in players if player != "a"])}
    rest = shapley_values([player for player in players if player != "a"], without)
    assert np.allclose(sum(found.values()), sum(rest.values()), rtol=0, atol=1e-12)


def test_the_last_policy_of_a_place_is_live_whatever_the_order_in_which_phases_are_named():
    assert policies_of(LEARNED, []) == ()
    assert policies_of(LEARNED, ["ppo", "sft"]) == (SFT, PPO)
    assert policies_of(LEARNED, ["again", "sft"]) == policies_of(LEARNED, ["again"]) == (AGAIN,)
    assert policies_of(LEARNED, LEARNED) == policies_of(LEARNED, {"ppo", "again"}) == (AGAIN, PPO)


def test_all_coalitions_and_those_around_the_whole():
    found = every(LEARNED)
    assert len(found) == len(set(found)) == 8
    assert (found[0], found[-1]) == (frozenset(), frozenset(LEARNED))
    assert set(around(LEARNED)) == set(found), "of three phases both are all coalitions"
    assert len(set(around("abcde"))) == 12
    assert len({policies_of(LEARNED, one) for one in found}) == 6


def test_a_place_back_at_base_lacks_every_phase_that_learned_for_it():
    assert places(LEARNED) == [("weights", "junior"), ("weights", "senior")]
    assert at_base(LEARNED, ("weights", "junior")) == {"ppo"}
    assert policies_of(LEARNED, at_base(LEARNED, ("weights", "senior"))) == (AGAIN,)
