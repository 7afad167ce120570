"""PPO on branches: each step asks the live weights for answers to recorded prompts, and learns from groups that differ.

Answers are made-up tokens whose worth follows from them, so that the right result is known; the engine is real.
"""

import asyncio
import math
import threading
from dataclasses import replace

import pytest
from branch_kit import REFINER, TASKS, Answers, answer, reworded
from message_kit import refused
from ppo_kit import Stop, digest, wait_for_engines

from chimera.core.errors import RunError
from evaluation.traces.token_records import read_tokens, tokens_file
from training.learning.base import PhasePlan
from training.ppo.engine.update import PpoEngine
from training.ppo.phase import Ppo
from training.ppo.verl.settings import PpoSettings

PLAN = PhasePlan("refine", "ppo", (REFINER,), ("refiner",))
PATIENCE = 3600.0
"""Seconds; a test that waits so long fails."""
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
        said = reworded(call, answer("yes" if tokens[0] < 250 else "no"))
        scores = [{"logprob": -random_.uniform(6.0, 8.0)} for _ in tokens]
        asked = replace(said.asked, choice={**said.asked.choice, "logprobs": {"content": scores}})
        return replace(said, response_ids=tokens, weights_version=self.versions["refiner"], asked=asked)

    async def publish(self, policy):
        await super().publish(policy)
        if policy.version == self.stop_at:
            raise Stop


def learned(bench):
    return asyncio.run(Ppo().learn(PLAN, bench.settings, bench))


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
def test_a_continued_phase_ends_with_the_same_weights(straight, tmp_path, stop_at):
    stopped = Tokens(tmp_path, straight.first)
    stopped.stop_at = stop_at
    with pytest.raises(Stop):
        learned(stopped)
    wait_for_engines()
    resumed = Tokens(tmp_path, straight.first)
    result = learned(resumed)
    assert digest(tmp_path / result.policy.folder) == digest(straight.run.path / straight.result.policy.folder)


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
def test_a_step_without_a_group_that_differs_is_skipped_where_groups_count(straight, tmp_path):
    bench = Tokens(tmp_path, straight.first, steps=1)
    usual = bench.say
    bench.say = lambda call, random_: reworded(usual(call, random_), answer())
    result = learned(bench)
    assert (result.policy, result.figures["skipped"]) == (None, 1)
    assert any("worth the same in each of 4 states" in line for line in bench.view.lines)
    for estimator in ("gae", "reinforce_plus_plus"):  # They compare an answer with those to other prompts.
        bench = Tokens(tmp_path / estimator, straight.first, steps=1, n=1, adv_estimator=estimator, critic_warmup=0)
        assert learned(bench).figures["updates"] == 1
        assert len(read_tokens(tokens_file(bench.run.path, "refine", 1))) == 4


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


@pytest.fixture(scope="module")
def ahead(straight, tmp_path_factory):
    """Its first update ends only after the second step's answers have been asked for."""
    bench = Tokens(tmp_path_factory.mktemp("ahead"), straight.first, ahead=1)
    asked = threading.Event()
    branch, update = bench.branch, PpoEngine.update

    async def branching(call, k, *, seed):
        if len(bench.branches) >= 4:
            asked.set()
        return await branch(call, k, seed=seed)

    def updating(engine, samples, step, watch=None):
        assert asked.wait(PATIENCE)
        return update(engine, samples, step, watch)

    bench.branch = branching
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PpoEngine, "update", updating)
        bench.result = learned(bench)
    return bench


def test_ahead_asks_the_weights_one_version_older_while_the_update_runs(ahead):
    versions = [version for _, _, _, version in ahead.branches]
    assert versions == ["nano@0"] * 8 + ["refiner@refine-1"] * 4
    assert [policy.version for policy in ahead.published] == [f"refiner@refine-{step}" for step in (1, 2, 3)]


def test_what_older_weights_said_is_counted_and_weighted(ahead):
    older = []
    for step, sampler in ((1, "nano@0"), (2, "nano@0"), (3, "refiner@refine-1")):
        values = ahead.logged[step - 1][2]
        records = read_tokens(tokens_file(ahead.run.path, "refine", step))
        assert {record.policy for record in records} == {sampler}
        older.append(0 if step == 1 else len(records))
        assert (values["calls/older"], values["calls/stale"]) == (older[-1], 0)
        weights = [
            min(math.exp(old - sampled), 2.0)
            for record in records
            for old, sampled in zip(record.old_log_probs, record.sampled_log_probs, strict=True)
        ]
        assert values["rollout_corr/rollout_is_mean"] == pytest.approx(sum(weights) / len(weights), rel=1e-4)
        assert values["rollout_corr/rollout_is_max"] == pytest.approx(max(weights), rel=1e-4)
    assert ahead.result.figures["calls/older"] == sum(older) > 0


@pytest.mark.parametrize("stop_at", ["refiner@refine-1", "in the update", "refiner@refine-3"])
def test_a_continued_phase_asks_the_same_weights_the_same_again(ahead, tmp_path, stop_at):
    """Without that, it would ask newer weights for the answers that it has already."""
    stopped = Tokens(tmp_path, ahead.first, ahead=1)
    stopped.stop_at, branch = stop_at, stopped.branch

    async def branching(call, k, *, seed):
        if stop_at == "in the update" and len(stopped.branches) == 10:  # of the third step, beside the second update
            raise Stop
        return await branch(call, k, seed=seed)

    stopped.branch = branching
    with pytest.raises(Stop):
        learned(stopped)
    wait_for_engines()
    resumed = Tokens(tmp_path, ahead.first, ahead=1)
    result = learned(resumed)
    assert set(resumed.branches) | set(stopped.branches) == set(ahead.branches)
    assert digest(tmp_path / result.policy.folder) == digest(ahead.run.path / ahead.result.policy.folder)
    assert result.figures == ahead.result.figures


def test_ahead_needs_to_know_how_likely_the_tokens_were(straight, tmp_path):
    bench = Tokens(tmp_path, straight.first, ahead=1)
    usual = bench.say

    def say(call, random_):
        said = usual(call, random_)
        return replace(said, asked=replace(said.asked, choice={**said.asked.choice, "logprobs": None}))

    bench.say = say
    with refused(RunError, "ro-5", "HypothesisRefiner", "4 tokens", "ahead=1", "set ahead=0"):
        learned(bench)
    wait_for_engines()
