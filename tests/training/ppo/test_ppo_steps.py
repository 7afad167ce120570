"""What a step of PPO takes and keeps: its tasks, the rollouts that can be learned from, samples and their groups."""

from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from fake_bench import ADAPTER
from hypothesis import given
from hypothesis import strategies as st
from ppo_kit import FLAWS, TASKS, record

from evaluation.records.rollouts import RolloutInput
from training.learning.episodes import Episode
from training.learning.experience import Call
from training.ppo import steps as ppo_steps
from training.ppo.credit import Credited
from training.ppo.engine.batch import Sample
from training.ppo.steps import step_line
from training.ppo.verl.settings import PpoSettings

ROLES = ("HypothesisRefiner", "ProtocolDesigner")


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 3))
def test_no_task_comes_again_before_all_have_come_and_none_twice_in_a_step(count, per_step, seed):
    per_step = min(per_step, count)
    tasks = [replace(TASKS[0], id=str(number)) for number in range(count)]
    steps = list(islice(ppo_steps.draw(tasks, per_step, str(seed)), 3 * count))
    drawn = [task.id for step in steps for task in step]
    assert all(len({task.id for task in step}) == per_step for step in steps)
    for end in range(len(drawn)):
        times = Counter(drawn[:end])
        assert max(times.values(), default=0) - min((times[task.id] for task in tasks), default=0) <= 1
    assert steps == list(islice(ppo_steps.draw(tasks, per_step, str(seed)), 3 * count))


def test_another_seed_draws_other_tasks():
    orders = {tuple(task.id for task in next(ppo_steps.draw(TASKS, 7, str(seed)))) for seed in range(5)}
    assert len(orders) > 1


@given(st.integers(1, 4), st.integers(1, 3))
def test_every_rollout_of_a_phase_is_another(n, per_step):
    tasks = ppo_steps.draw(TASKS, per_step, "0")
    inputs = [given for step in range(1, 9) for given in ppo_steps.inputs_of(next(tasks), "ppo", step, n, 0)]
    assert (
        len({(given.task.id, given.repeat) for given in inputs}) == len({given.seed for given in inputs}) == len(inputs)
    )
    assert {given.phase for given in inputs} == {"ppo"}


def in_memory(made):
    return Episode(made, (), Path(), ADAPTER)


def episode(given, **changes):
    return in_memory(record(given, **changes))


@given(st.lists(st.sampled_from([*FLAWS, "late", "good"]), min_size=1, max_size=20), st.randoms())
def test_rollouts_that_cannot_be_learned_from_are_left_out_and_counted(kinds, order):
    inputs = [RolloutInput.of(TASKS[0], "ppo", repeat, 0) for repeat in range(len(kinds))]
    episodes = [episode(one, **FLAWS.get(kind, {})) for one, kind in zip(inputs, kinds, strict=True) if kind != "late"]
    order.shuffle(episodes)
    found = ppo_steps.sort_out(inputs, episodes)
    assert found.left_out == {kind: kinds.count(kind) for kind in ("late", *FLAWS)}
    assert [one.record.repeat for one in found.good] == [repeat for repeat, kind in enumerate(kinds) if kind == "good"]


def call(role="HypothesisRefiner", response=(5, 6), visit=1):
    return Call("ro-1", role, visit, 1, 1, "id", (1, 2), response, "v1", 0.05, True)


def test_samples_are_grouped_by_task_role_and_visit_and_keep_their_tokens():
    """A revision's prompt holds reviews, and each visit may read another study."""
    calls = (call(ROLES[0]), 0.5), (call(ROLES[1], (7,), visit=2), 0.25), (call(response=()), 9.0)
    assert ppo_steps.samples_of([Credited(*credited) for credited in calls], "t1") == [
        Sample((1, 2), (5, 6), 0.5, "t1/HypothesisRefiner/1", "ro-1"),
        Sample((1, 2), (7,), 0.25, "t1/ProtocolDesigner/2", "ro-1"),
    ]


def sorted_rollouts(good, failed):
    return ppo_steps.Sorted([in_memory(record())] * good, dict.fromkeys(ppo_steps.REASONS, 0) | {"failed": failed})


PEERS = [Sample((1,), (2,), 1.0, "t0/A", "ro-1", call("A")), Sample((1,), (3,), 0.0, "t0/A", "ro-2", call("A"))]
LONERS = [replace(sample, group=str(number)) for number, sample in enumerate(PEERS)]


@pytest.mark.parametrize(
    ("good", "failed", "samples", "estimator", "reason"),
    [
        (2, 2, PEERS, "grpo", None),
        (1, 3, PEERS, "grpo", "only 1 of 4 rollouts are usable (3 failed;"),
        (4, 0, [], "gae", "no call of its roles"),
        (4, 0, LONERS, "rloo", "no call has a peer"),
        (4, 0, LONERS, "reinforce_plus_plus", None),
    ],
)
def test_a_step_with_too_little_to_learn_from_says_why(good, failed, samples, estimator, reason):
    config = PpoSettings(adv_estimator=estimator, min_good_share=0.5)
    found = ppo_steps.why_skip(sorted_rollouts(good, failed), samples, config, "ppo")
    assert found is None if reason is None else found.startswith(reason)


def test_figures_are_means_over_what_has_a_value():
    good = [record(reward=1.5, parts={"alignment": 1.0, "impact": 0.5}), record(reward=0.5, parts={"alignment": 0.5})]
    figures = ppo_steps.figures(ppo_steps.Sorted([*map(in_memory, [*good, record(answer="no")])], {"late": 2}), PEERS)
    assert figures["reward/mean"] == pytest.approx(1.0)
    assert figures["alignment/mean"] == pytest.approx(2 / 3)
    assert (figures["reward/alignment"], figures["reward/impact"]) == pytest.approx((2.5 / 3, 0.5))
    assert (figures["rollouts/good"], figures["rollouts/late"], figures["calls/A"]) == (3, 2, 2)


@pytest.mark.parametrize(
    ("figures", "told"),
    [
        (
            {"actor/optimizer_steps": 4.0, "actor/ppo_kl": 0.0, "timing_s/step": 9.13},
            ["optimiser steps 4", "seconds 9.1"],
        ),
        (
            {"branches/value": 0.8731, "branches/states": 32, "branches/informative": 12},
            ["answers worth 0.873", "12 of 32 prompts informative"],
        ),
        (
            {"reward/mean": 1.25, "group/count": 8.0, "group/zero_variance": 0.375},
            ["reward 1.250", "5 of 8 prompts informative"],
        ),
        ({"alignment/mean": 0.75, "val-core/reward/mean": 1.25}, ["answers right 75%", "validation reward 1.250"]),
        ({}, []),
    ],
    ids=["learned", "branches", "rollouts", "validation", "skipped"],
)
def test_a_step_tells_in_one_line_what_it_came_to(figures, told):
    line = step_line("ppo", 2, 6, {**figures, "policy": "refiner@ppo-2"})
    assert line == ", ".join(["ppo: step 2/6", *told, "refiner@ppo-2 is live"])
