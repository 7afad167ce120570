"""Coalitions of phases: which policies are live in each, and how many societies they are."""

from chimera.run.policies import Policy
from evaluation.records.coalitions import around, at_base, every, places, policies_of

SFT = Policy("weights", "junior", "junior@sft", "models/junior/sft")
PPO = Policy("weights", "senior", "senior@ppo", "models/senior/ppo")
AGAIN = Policy("weights", "junior", "junior@again", "models/junior/again")
LEARNED = {"sft": SFT, "ppo": PPO, "again": AGAIN}


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
