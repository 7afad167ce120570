"""The gate: what is clearly worse goes back, what is not stays, and everybody is told."""

import json
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.config import Config, load_config
from chimera.data import load
from chimera.errors import ConfigError
from chimera.policies import Policy, live
from chimera.runs import Run
from chimera.types import DECISION_OF_LABEL
from evaluation.rollouts import RolloutRecord
from training import gate


def record(task_id, reward, answer="yes", stage="base", status="succeeded"):
    return RolloutRecord(
        rollout_id=f"{stage}-{task_id}",
        task_id=task_id,
        source="generated",
        level=1,
        phase=f"evaluation-{stage}",
        repeat=0,
        seed=1,
        attempt=1,
        status=status,
        error=None if status == "succeeded" else "broken",
        label="yes",
        answer=answer,
        decision=DECISION_OF_LABEL.get(answer),
        reward=reward,
    )


CONFIG = Config()
REWARDS = st.lists(st.floats(-1, 2), min_size=2, max_size=20)


@given(REWARDS, st.floats(0.1, 1))
def test_a_reward_that_rose_or_fell_everywhere_is_better_or_worse(rewards, step):
    before = [record(str(i), reward) for i, reward in enumerate(rewards)]
    for change, verdict in ((step, "better"), (-step, "worse")):
        after = [record(str(i), reward + change) for i, reward in enumerate(rewards)]
        found = gate.compare(before, after, ("base", "sft"), CONFIG)
        assert found.verdict == verdict
        assert found.reward.mean == pytest.approx(change)


@given(REWARDS)
def test_the_same_rewards_show_no_difference(rewards):
    records = [record(str(i), reward) for i, reward in enumerate(rewards)]
    assert gate.compare(records, records, ("base", "sft"), CONFIG).verdict == "no difference shown"


def test_rewards_are_compared_where_both_have_one_and_alignment_everywhere():
    before = [record("a", 1.0), record("b", None), record("c", 1.0, "NO-GO"), record("d", 2.0)]
    after = [record("a", 2.0), record("b", 9.0), record("c", 3.0), record("d", None, None, status="failed")]
    found = gate.compare(before, after, ("base", "ppo"), CONFIG)
    assert (found.reward.n, found.reward.mean) == (2, 1.5)
    assert (found.alignment.n, found.alignment.before, found.alignment.after) == (4, 0.75, 0.75)
    assert found.failed == (0, 1)


def test_many_more_failures_are_worse_even_when_rewards_rise():
    before = [record(str(i), 1.0) for i in range(20)]
    after = [record(str(i), 1.5) for i in range(10)]
    after += [record(str(i), None, None, status="failed") for i in range(10, 20)]
    assert gate.compare(before, after, ("base", "ppo"), CONFIG).verdict == "worse"


def test_every_stage_gets_the_same_tasks_and_seeds():
    config = load_config(None, ["data.size=60", "gate.tasks=12"])
    dataset = load(config.data)
    base, sft = (gate.inputs(dataset, config, stage) for stage in ("base", "sft"))
    assert [(one.task.id, one.seed) for one in base] == [(one.task.id, one.seed) for one in sft]
    assert {one.phase for one in base} == {"evaluation-base"}
    assert {one.task.id for one in base} == {task.id for task in dataset.validation}
    other = gate.inputs(dataset, load_config(None, ["data.size=60", "gate.tasks=12", "seed=1"]), "base")
    assert {one.seed for one in other}.isdisjoint({one.seed for one in base})


def test_more_tasks_than_are_held_out_are_refused():
    config = load_config(None, ["data.size=60", "gate.tasks=13"])
    with pytest.raises(ConfigError, match=r"gate.tasks=13, but there are 12 held-out tasks"):
        gate.check(config, load(config.data))


class FakeLab:
    """A lab whose society's reward is a number for each policy of the juniors."""

    def __init__(self, folder, rewards, *overrides):
        self.config = load_config(None, ["data.size=60", *overrides, f"runs_dir={folder}"])
        self.dataset = load(self.config.data)
        self.run = Run.create("run", self.config)
        self.rewards = rewards
        self.live = {}
        self.policy_versions = {}
        self.shown = []
        self.metrics = SimpleNamespace(log=lambda *_: None, protocols=lambda *_: None)
        self.view = SimpleNamespace(
            phase=self.phase, add=lambda _: None, note=self.shown.append, warn=self.shown.append, table=lambda _: None
        )

    @contextmanager
    def phase(self, *_, **__):
        yield

    async def put_live(self, policy):
        self.live[policy.learner] = policy

    async def restore(self, wanted):
        self.live = dict(wanted)

    async def rollouts(self, inputs, *, mode):
        assert mode == "val"
        version = self.live["junior"].version if "junior" in self.live else "base"
        for place, one in enumerate(inputs):
            yield record(one.task.id, self.rewards[version] + place / 100, stage=version)


def policy(lab, version):
    folder = f"models/junior/{version}"
    (lab.run.path / folder).mkdir(parents=True)
    return Policy("junior", version, folder)


async def test_the_better_stays_and_the_worse_goes_back_to_what_was_live(tmp_path):
    lab = FakeLab(tmp_path, {"base": 1.0, "first": 1.5, "second": 1.2}, "gate.tasks=12")
    with lab.run:
        one = gate.Gate(lab)
        await one.open()
        first, second = policy(lab, "first"), policy(lab, "second")
        assert await one.decide("sft", first)
        assert not await one.decide("ppo", second)
        assert lab.live == live(lab.run.events()) == {"junior": first}
        assert any("clearly worse than sft, so second was rolled back" in line for line in lab.shown)
        found = json.loads((lab.run.path / "evaluation" / "ppo.json").read_text())
        assert (found["before"], found["after"], found["verdict"]) == ("sft", "ppo", "worse")
        assert found["reward"]["mean"] == pytest.approx(-0.3)


async def test_without_the_gate_everything_goes_live_unseen(tmp_path):
    lab = FakeLab(tmp_path, {}, "gate.enabled=false")
    with lab.run:
        one = gate.Gate(lab)
        await one.open()
        only = policy(lab, "only")
        assert await one.decide("sft", only)
        assert live(lab.run.events()) == {"junior": only}
        assert not (lab.run.path / "evaluation").exists()
