"""PPO on branches: each step asks the live weights for answers to recorded prompts, and learns from groups that differ.

Answers are made-up tokens whose worth follows from them, so that the right result is known; the engine is real.
"""

import asyncio
import hashlib
import threading
from dataclasses import replace

import pytest
from branch_kit import REFINER, TASKS, Answers, answer

from evaluation.traces.token_records import read_tokens, tokens_file
from training.algorithms.ppo.phase import Ppo
from training.algorithms.ppo.settings import PpoSettings
from training.learning.base import PhasePlan

PLAN = PhasePlan("refine", "ppo", (REFINER,), ("refiner",))
SETTINGS = {"states": 4, "n": 4, "steps": 3, "lr": 0.05, "reward": {"alignment": 1.0}, "curriculum": "pass_rate"}


class Tokens(Answers):
    """Answers with made-up tokens; an answer is right if its first token is small."""

    def __init__(self, folder, model, **ppo):
        super().__init__(folder)
        self.first = self._weights["refiner"] = model
        self.settings = PpoSettings(algorithm="ppo", **{**SETTINGS, **ppo})
        self.stop_at = None

    def say(self, call, random_):
        tokens = tuple(random_.randrange(500) for _ in range(4))
        said = answer("yes" if tokens[0] < 250 else "no")
        choice = {**call.asked.choice, "message": {"role": "assistant", "content": said}}
        asked = replace(call.asked, choice=choice)
        return replace(call, response_ids=tokens, weights_version=self.versions["refiner"], asked=asked)

    async def publish(self, policy):
        await super().publish(policy)
        if policy.version == self.stop_at:
            raise Stop


class Stop(Exception):
    """Stands for the end of the process."""


def wait_for_engines():
    """A stop waits only a moment for the engine; a process has one at a time."""
    for thread in threading.enumerate():
        if thread.name == "refine-engine":
            thread.join()


def learned(bench):
    return asyncio.run(Ppo().learn(PLAN, bench.settings, bench))


def digest(folder):
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def straight(serving_model, tmp_path_factory):
    bench = Tokens(tmp_path_factory.mktemp("run"), serving_model())
    bench.result = learned(bench)
    return bench


def test_each_step_asks_the_weights_of_the_step_before(straight):
    assert [policy.version for policy in straight.published] == [f"refiner@refine-{step}" for step in (1, 2, 3)]
    assert straight.asked == []
    versions = [version for _, _, _, version in straight.branches]
    assert versions == ["nano@0"] * 4 + ["refiner@refine-1"] * 4 + ["refiner@refine-2"] * 4
    for phase, step, values in straight.logged:
        assert (phase, values["policy"]) == ("refine", f"refiner@refine-{step}")
        assert values["branches/states"] == 4
        assert values["branches/answers"] == values["branches/how/direct"] == 16
        assert 0 < values["branches/value"] < 1


def test_only_answers_of_groups_that_differ_are_learned(straight):
    for step in (1, 2, 3):
        values = straight.logged[step - 1][2]
        records = read_tokens(tokens_file(straight.run.path, "refine", step))
        assert len(records) == 4 * values["branches/informative"] > 0
        by_prompt = {}
        for record in records:
            by_prompt.setdefault(record.rollout_id, set()).add(record.reward)
        assert all(rewards == {0.0, 1.0} for rewards in by_prompt.values())


def test_states_that_inform_come_again_first(straight):
    drawn = [prompt for prompt, _, _, _ in straight.branches]
    assert len(set(drawn)) == TASKS
    assert len(set(drawn[:4])) == len(set(drawn[4:8])) == 4


@pytest.mark.parametrize("stop_at", ["refiner@refine-1", "refiner@refine-3"])
def test_a_continued_phase_asks_nothing_twice_and_ends_with_the_same_weights(straight, tmp_path, stop_at):
    stopped = Tokens(tmp_path, straight.first)
    stopped.stop_at = stop_at
    with pytest.raises(Stop):
        learned(stopped)
    wait_for_engines()
    resumed = Tokens(tmp_path, straight.first)
    result = learned(resumed)
    assert digest(tmp_path / result.policy.folder) == digest(straight.run.path / straight.result.policy.folder)


def test_a_step_without_a_group_that_differs_is_skipped(straight, tmp_path):
    bench = Tokens(tmp_path, straight.first, steps=1)
    usual = bench.say

    def say(call, random_):
        said = usual(call, random_)
        choice = {**said.asked.choice, "message": {"role": "assistant", "content": answer()}}
        return replace(said, asked=replace(said.asked, choice=choice))

    bench.say = say
    result = learned(bench)
    assert (result.policy, result.figures["skipped"]) == (None, 1)
    assert any("worth the same in each of 4 states" in line for line in bench.view.lines)


def test_a_phase_may_begin_with_another_slots_weights(straight, tmp_path):
    """They are its first version, of which answers are asked; a stop before the first step changes nothing."""
    started = straight.run.path / straight.result.policy.folder

    def bench(stop_at=None):
        made = Tokens(tmp_path, straight.first, start="junior", steps=1)
        made._weights["junior"], made.stop_at = started, stop_at
        return made

    with pytest.raises(Stop):
        learned(bench("refiner@refine-0"))
    wait_for_engines()
    resumed = bench()
    result = learned(resumed)
    assert [policy.version for policy in resumed.published] == ["refiner@refine-0", "refiner@refine-1"]
    assert {version for _, _, _, version in resumed.branches} == {"refiner@refine-0"}
    assert digest(tmp_path / result.policy.folder) not in (digest(started), digest(straight.first))
