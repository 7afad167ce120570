"""The line of an online step."""

from training.algorithms.ppo.reporting import step_line


def test_a_step_that_learned_says_how_many_optimiser_steps_it_made():
    learned = {"actor/optimizer_steps": 4.0, "actor/ppo_kl": 0.0012, "timing_s/step": 9.13, "policy": "refiner@ppo-2"}
    line = "ppo: step 2/6, optimiser steps 4, KL 1.2e-03, seconds 9.1, refiner@ppo-2 is live"
    assert step_line("ppo", 2, 6, learned) == line


def test_a_step_says_answers_right_and_validation_as_all_pages_do():
    line = step_line("ppo", 1, 6, {"alignment/mean": 0.75, "val-core/reward/mean": 1.25, "policy": "refiner@ppo-1"})
    assert line == "ppo: step 1/6, answers right 75%, validation reward 1.250, refiner@ppo-1 is live"


def test_a_skipped_step_names_none():
    assert step_line("ppo", 3, 6, {"policy": "refiner@ppo-2"}) == "ppo: step 3/6, refiner@ppo-2 is live"
