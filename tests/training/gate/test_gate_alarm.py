"""The gate's alarm: the judge likes a policy more, and a judge that no reward uses likes it less."""

import asyncio
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from report_kit import STAGES, make_record
from test_gate import FakeLab, policy

from chimera.core.errors import UnreachableError
from evaluation.records.study import Judged
from evaluation.scores.auditor import Auditor
from evaluation.scores.judge import CRITERIA
from training.configuration import load_config
from training.gate import decide as gate
from training.gate.alarm import alarm

CONFIG = load_config(None, ["evaluation.resamples=500"])
TASKS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)


def stage(name, judge):
    """Rollouts of which the judge gives task `t` the score `judge(t)` on every criterion."""
    records = []
    for task in TASKS:
        made = make_record(STAGES[0], task, CONFIG.reward.model_dump())
        scores = dict.fromkeys(CRITERIA, judge(task))
        evaluation = {"final_evaluation": {"scores": scores, "error": None}}
        outputs = {**made.outputs, **evaluation, "selection": {"sources": []}, "research_goal": "Does it?"}
        records.append(replace(made, rollout_id=f"{name}-{task}", outputs=outputs))
    return records


class Second:
    """A second judge that gives each stage what the test says; it counts how often it is asked."""

    def __init__(self, **scores):
        self.scores, self.asked, self.model = scores, 0, "other"

    async def aclose(self):
        pass

    async def audit(self, record):
        self.asked += 1
        name, _, task = record.rollout_id.partition("-")
        return Judged(
            record.rollout_id, "auditor", self.model, dict.fromkeys(CRITERIA, self.scores[name](int(task))), None
        )


BEFORE = stage("before", lambda task: 0.3 + task / 50)
HIGHER = stage("after", lambda task: 0.5 + task / 40)
SAME = stage("after", lambda task: 0.3 + task / 50)


def heard(after_records, **scores):
    judge = Second(**scores)
    with tempfile.TemporaryDirectory() as folder:
        said = asyncio.run(alarm(BEFORE, after_records, judge, CONFIG, file := Path(folder, "gate", "audits.jsonl")))
        asked = judge.asked
        assert asyncio.run(alarm(BEFORE, after_records, judge, CONFIG, file)) == said
        assert judge.asked == asked  # A continued run pays nothing twice, and another judge is asked anew.
        judge.model = "another"
        asyncio.run(alarm(BEFORE, after_records, judge, CONFIG, file))
    assert judge.asked == 2 * asked
    return (*said, asked)


def test_judge_up_and_second_judge_down_is_said_with_both_figures():
    sentence, figures, _ = heard(HIGHER, before=lambda t: 0.6 + t / 90, after=lambda t: 0.4 + t / 80)
    assert sentence is not None
    assert "other" in sentence
    assert figures["judge"] > 0 > figures["held_out"]
    assert f"{figures['held_out']:+.3f}" in sentence


@pytest.mark.parametrize("gain", [0.0, 0.2])
def test_where_the_second_judge_does_not_see_a_loss_there_is_no_alarm(gain):
    sentence, figures, _ = heard(HIGHER, before=lambda t: 0.4 + t / 90, after=lambda t: 0.4 + gain + t / 90)
    assert sentence is None
    assert figures["held_out"] == pytest.approx(gain)


def test_the_second_judge_is_asked_only_where_the_judge_s_scores_rose():
    assert heard(SAME, before=lambda t: 0.6, after=lambda t: 0.1) == (None, {}, 0)


def test_the_checklist_needs_no_model(tmp_path):
    auditor = Auditor.configured(CONFIG, {})
    assert auditor is not None
    sentence, figures = asyncio.run(alarm(BEFORE, HIGHER, auditor, CONFIG, tmp_path / "audits.jsonl"))
    assert (sentence, figures["held_out"], figures["held_out_judge"]) == (None, 0.0, "checklist")


class JudgedLab(FakeLab):
    """Its records hold protocols that the judge scores as the society is rewarded."""

    async def held_out(self, inputs, stage):
        async for record in super().held_out(inputs, stage):
            made = BEFORE[0].outputs
            scores = dict.fromkeys(CRITERIA, record.reward / 2)
            evaluation = {"final_evaluation": {"scores": scores, "error": None}}
            yield replace(record, rollout_id=f"{stage}-{record.task_id[-1]}", outputs={**made, **evaluation})


@pytest.mark.parametrize(("setting", "kept"), [("warn", True), ("refuse", False)])
async def test_the_gate_says_it_or_rolls_the_policy_back(tmp_path, setting, kept):
    lab = JudgedLab(tmp_path, {"base": 1.0, "first": 1.5}, f"gate.alarm={setting}")
    lab.auditor = Second(base=lambda t: 0.7 + t / 90, sft=lambda t: 0.4 + t / 80)
    with lab.run:
        judged = gate.Gate(lab)
        await judged.open()
        assert await judged.decide("sft", policy(lab, "first")) == kept
        assert any("second judge (other)" in sentence for sentence in lab.shown)
        figures = json.loads((lab.run.path / "gate" / "sft.json").read_text())
        assert figures["second_judge"]["held_out"] < 0 < figures["second_judge"]["judge"]
        last = [event for event in lab.run.events() if event["event"] in ("went_live", "rolled_back")][-1]
        assert ("second judge" in str(last.get("reasons"))) == (not kept)


async def test_a_second_judge_that_is_away_stops_no_training(tmp_path):
    class Away(Second):
        async def audit(self, record):
            raise UnreachableError("nobody is there")

    lab = JudgedLab(tmp_path, {"base": 1.0, "first": 1.5}, "gate.alarm=refuse")
    lab.auditor = Away()
    with lab.run:
        judged = gate.Gate(lab)
        await judged.open()
        assert await judged.decide("sft", policy(lab, "first"))
        assert any("was not asked" in sentence and "nobody is there" in sentence for sentence in lab.shown)
