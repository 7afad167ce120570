"""The gate: what is worse than before, the base or the best so far goes back, and everybody is told."""

import io
import json
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
from message_kit import refused
from record_kit import answered
from rich.console import Console

from chimera.core.errors import ConfigError, RunError
from chimera.data.tasks import load
from chimera.run.directory import Run
from chimera.run.policies import Policy, live
from evaluation.records.rollouts import RolloutRecord
from training.configuration import load_config
from training.gate import decide as gate
from training.gate.rule import compare


def record(task_id, reward, answer="yes", stage="base", status="succeeded"):
    fields = {"phase": f"gate-{stage}", "status": status, "error": None if status == "succeeded" else "broken"}
    return answered(f"{stage}-{task_id}", task_id, answer, reward, **fields)


def test_every_stage_gets_the_same_tasks_and_seeds():
    config = load_config(None, ["data.size=60", "gate.tasks=12"])
    dataset = load(config.data)
    base, sft = (gate.inputs(dataset, config, stage) for stage in ("base", "sft"))
    assert [(one.task.id, one.seed) for one in base] == [(one.task.id, one.seed) for one in sft]
    assert {one.phase for one in base} == {"gate-base"}
    assert {one.task.id for one in base} == {task.id for task in dataset.validation}
    other = gate.inputs(dataset, load_config(None, ["data.size=60", "gate.tasks=12", "seed=1"]), "base")
    assert {one.seed for one in other}.isdisjoint({one.seed for one in base})


def test_more_tasks_than_validation_has_are_refused():
    config = load_config(None, ["data.size=60", "gate.tasks=13"])
    with refused(ConfigError, "gate.tasks=13", "12 validation tasks", "data.validation_share"):
        gate.check(config, load(config.data))


def printed(*tables):
    """What a terminal of 80 columns shows."""
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(*tables)
    return console.export_text()


JUNIOR = ("weights", "junior")


class FakeLab:
    """A lab whose society's reward is a number for each policy of the juniors."""

    wrong = ()
    """Places of tasks that the policy which was learned answers wrongly."""
    auditor = None
    """The second judge."""

    def __init__(self, folder, rewards, *overrides):
        self.config = load_config(None, ["data.size=60", "gate.tasks=12", *overrides, f"runs_dir={folder}"])
        self.dataset = load(self.config.data)
        self.run = Run.create("run", self.config)
        self.rewards = rewards
        self.live = {}
        self.policy_versions = {}
        self.shown, self.tables, self.made, self.logged = [], [], [], []
        self.metrics = SimpleNamespace(
            log=lambda *line: self.logged.append(line), protocols=lambda *_: None, rollout=lambda _: None
        )
        self.view = SimpleNamespace(
            phase=self.phase,
            add=lambda _: None,
            note=self.shown.append,
            warn=self.shown.append,
            decision=self.shown.append,
            table=self.tables.append,
        )

    @contextmanager
    def phase(self, *_, **__):
        yield

    def second_judge(self):
        return self.auditor

    async def put_live(self, policy):
        self.live[policy.place] = policy

    async def restore(self, wanted):
        self.live = {policy.place: policy for policy in wanted}

    async def held_out(self, inputs, stage):
        version = self.live[JUNIOR].version if JUNIOR in self.live else "base"
        recorded = {data["task_id"]: RolloutRecord.load(data) for data in self.run.rollouts(inputs[0].phase)}
        for place, one in enumerate(inputs):
            found = recorded.get(one.task.id)
            if found is None:
                answer = "no" if version != "base" and place in self.wrong else "yes"
                reward = self.rewards[version]
                failed = {"status": "failed", "error": "no JSON", "answer": None, "reward": None, "parts": {}}
                found = record(one.task.id, (reward or 0) + place / 100, answer, stage=stage)
                found = replace(found, **failed) if reward is None else found
                self.made.append((stage, one.task.id))
                self.run.append_rollout(found.dump(), phase=found.phase)
            yield found


def policy(lab, version):
    folder = f"models/junior/{version}"
    (lab.run.path / folder).mkdir(parents=True)
    return Policy("weights", "junior", version, folder)


async def test_the_better_stays_and_the_worse_goes_back_to_what_was_live(tmp_path):
    lab = FakeLab(tmp_path, {"base": 1.0, "first": 1.5, "second": 1.2})
    with lab.run:
        one = gate.Gate(lab)
        await one.open()
        first, second = policy(lab, "first"), policy(lab, "second")
        assert await one.decide("sft", first)
        assert not await one.decide("ppo", second)
        assert lab.live == live(lab.run.events()) == {JUNIOR: first}
        (warning,) = [line for line in lab.shown if "rolled back: " in line]
        assert warning == (
            "gate: second was rolled back: reward -0.300, significantly worse than sft, past the margin of 0.100"
        )
        found = json.loads((lab.run.path / "gate" / "ppo.json").read_text())
        assert [(one["before"], one["after"], one["verdict"]) for one in found["comparisons"]] == [
            ("sft", "ppo", "worse"),
            ("base", "ppo", "better"),
        ]
        assert found["comparisons"][0]["reward"]["difference"] == pytest.approx(-0.3)
        assert (found["kept"], found["power"]) == (False, None), "no answer changed, so it is unknown"
        assert not any("as the answers changed here" in line for line in lab.shown)
        event = next(event for event in lab.run.events() if event["event"] == "rolled_back")
        assert event["verdicts"] == {"sft": "worse", "base": "better"}
        assert event["reasons"] == [warning.partition("rolled back: ")[2]]
        assert [line[2]["against"] for line in lab.logged if line[0] == "gate"] == ["base", "sft", "base"]
        made, events = list(lab.made), len(list(lab.run.events()))  # Of a run that is killed here, decisions stand.
        assert [await gate.Gate(lab).decide(*pair) for pair in (("sft", first), ("ppo", second))] == [True, False]
        assert (lab.made, len(list(lab.run.events()))) == (made, events)


async def test_a_policy_that_makes_every_rollout_fail_is_rolled_back_and_of_a_base_the_run_ends(tmp_path):
    lab = FakeLab(tmp_path, {"base": 1.0, "first": None})
    with lab.run:
        one = gate.Gate(lab)
        await one.open()
        assert not await one.decide("sft", policy(lab, "first"))
        assert next(event for event in lab.run.events() if event["event"] == "rolled_back")["phase"] == "sft"
    lab = FakeLab(tmp_path / "other", {"base": None})
    with lab.run, refused(RunError, "rollouts on validation tasks failed", "no JSON"):
        await gate.Gate(lab).open()


async def test_small_losses_do_not_add_up(tmp_path):
    """Each alone is within the margin of the stage before, and all are of the best."""
    rewards = {"base": 1.0, "a": 1.2, "b": 1.16, "c": 1.12, "d": 1.08}
    lab = FakeLab(tmp_path, rewards, "evaluation.confidence=0.9999")
    with lab.run:
        one = gate.Gate(lab)
        await one.open()
        kept = [await one.decide(name, policy(lab, name)) for name in "abcd"]
        assert kept == [True, True, True, False]
        assert "reward -0.120, below a, past the margin of 0.100" in lab.shown[-1]
        assert live(lab.run.events())[JUNIOR].version == "c"


async def test_a_continued_run_compares_with_what_its_earlier_process_recorded(tmp_path):
    lab = FakeLab(tmp_path, {"base": 1.0, "first": 1.5, "second": 1.2})
    with lab.run:
        await gate.Gate(lab).open()
        earlier = gate.Gate(lab)
        assert await earlier.decide("sft", policy(lab, "first"))
        lab.made.clear()
        later = gate.Gate(lab)
        await later.open()
        assert lab.made == []
        assert not await later.decide("ppo", policy(lab, "second"))
        assert {stage for stage, _ in lab.made} == {"ppo"}
        found = json.loads((lab.run.path / "gate" / "ppo.json").read_text())
        assert [one["before"] for one in found["comparisons"]] == ["sft", "base"]


async def test_the_summary_shows_every_stage_beside_the_one_before_and_the_base_in_80_columns(tmp_path):
    lab = FakeLab(tmp_path, {"base": 1.0, "first": 1.5, "second": 1.2, "third": 1.5})
    with lab.run:
        one = gate.Gate(lab)
        await one.open()
        for phase, version in (("sft", "first"), ("ppo", "second"), ("bandit", "third")):
            await one.decide(phase, policy(lab, version))
        lab.tables.clear()
        gate.Gate(lab).summary()
        shown = printed(*lab.tables)
    rows = shown.partition("─\n")[2].splitlines()
    # A stage's own line has its means, each line below it a rival and the differences.
    assert [line.split()[0] for line in rows if line] == ["sft", "base", "ppo", "sft", "base", "bandit", "sft", "base"]
    assert [line.startswith("  ") for line in rows if line] == [False, True, False, True, True, False, True, True]
    assert next(line for line in rows if line.startswith("ppo")).rstrip().endswith("rolled back")
    assert len(shown.splitlines()) <= 24
    assert "+0.500" in shown
    assert "-0.300 [-0.300, -0.300]" in shown
    assert "-0.000" not in shown
    assert "-0.0 " not in shown
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80


def shown_after(after, fate):
    """The lines of the table of a stage with these rollouts, each as its words."""
    before = [record(one.task_id, 1.0) for one in after]
    rivalry = compare(before, after, ("base", "sft"), load_config(None, []))
    return [line.split() for line in printed(gate.table([(rivalry, fate)])).splitlines()]


def test_a_difference_of_almost_nothing_has_no_minus():
    almost = [record(str(number), 1.0 - 1e-9) for number in range(12)]
    (difference,) = [words[1:4] for words in shown_after(almost, "live") if words[:1] == ["base"]]
    assert difference == ["0.000", "[0.000,", "0.000]"]


def test_rollouts_that_all_failed_are_not_zero_per_cent_right():
    failed = [record(str(number), None, None, status="failed") for number in range(12)]
    assert ["sft", "-", "-", "rolled", "back,", "12", "failed"] in shown_after(failed, "rolled back")


async def test_the_power_is_told_before_and_after(tmp_path):
    lab = FakeLab(tmp_path, {"base": 1.0, "first": 1.5})
    with lab.run:
        one = gate.Gate(lab)
        await one.open()
        assert lab.shown[-1].startswith("gate: if as many answers change as usual, with 12 tasks, true losses of 3, 5 ")
        lab.wrong = (3,)
        await one.decide("sft", policy(lab, "first"))
        assert any(line.startswith("gate: as the answers changed here, with 12 tasks") for line in lab.shown)
        power = json.loads((lab.run.path / "gate" / "sft.json").read_text())["power"]
        assert set(power["rolled_back"]) == {"-3", "-5", "-10", "+0", "+5", "+8"}
        assert power["deviation"] == pytest.approx(12**-0.5)


async def test_without_the_gate_everything_goes_live_unseen(tmp_path):
    lab = FakeLab(tmp_path, {}, "gate.tasks=0")
    with lab.run:
        one = gate.Gate(lab)
        await one.open()
        only = policy(lab, "only")
        assert await one.decide("sft", only)
        one.summary()
        assert live(lab.run.events()) == {JUNIOR: only}
        assert not (lab.run.path / "gate").exists()
        assert lab.tables == []
