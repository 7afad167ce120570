"""The line of an online step."""

from training.ppo.steps import step_line


def test_a_step_that_learned_says_how_many_optimiser_steps_it_made():
    learned = {"actor/optimizer_steps": 4.0, "actor/ppo_kl": 0.0, "timing_s/step": 9.13, "policy": "refiner@ppo-2"}
    line = "ppo: step 2/6, optimiser steps 4, seconds 9.1, refiner@ppo-2 is live"
    assert step_line("ppo", 2, 6, learned) == line


def test_a_step_says_what_its_answers_were_worth_and_how_many_prompts_were_informative():
    branches = {"branches/value": 0.8731, "branches/states": 32, "branches/informative": 12, "policy": "refiner@ppo-2"}
    line = "ppo: step 2/6, answers worth 0.873, 12 of 32 prompts informative, refiner@ppo-2 is live"
    assert step_line("ppo", 2, 6, branches) == line
    rollouts = {"reward/mean": 1.25, "group/count": 8.0, "group/zero_variance": 0.375, "policy": "senior@ppo-2"}
    line = "ppo: step 2/6, reward 1.250, 5 of 8 prompts informative, senior@ppo-2 is live"
    assert step_line("ppo", 2, 6, rollouts) == line


def test_a_step_says_answers_right_and_validation_as_all_pages_do():
    line = step_line("ppo", 1, 6, {"alignment/mean": 0.75, "val-core/reward/mean": 1.25, "policy": "refiner@ppo-1"})
    assert line == "ppo: step 1/6, answers right 75%, validation reward 1.250, refiner@ppo-1 is live"


def test_a_skipped_step_names_none():
    assert step_line("ppo", 3, 6, {"policy": "refiner@ppo-2"}) == "ppo: step 3/6, refiner@ppo-2 is live"
