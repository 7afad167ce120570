"""The metrics of a stage: every figure beside a direct computation, failures and repeats among them."""

import math
from dataclasses import replace
from statistics import fmean

import pytest
from message_kit import refused
from record_kit import answered

from chimera.core.errors import ConfigError
from evaluation.measures.metrics import answer_metrics, answers_by_baseline, metrics_of, outcomes, stage_metrics
from evaluation.records.study import BaselineAnswer, Plan, PlannedTask, Stage, StageAnswers
from evaluation.scores.judge import CRITERIA
from training.configuration import load_config

CONFIG = load_config(overrides=["evaluation.resamples=200"])
LABELS = {"t1": "yes", "t2": "no", "t3": "maybe", "t4": "yes"}
STAGE = Stage("base", "the base", "sequence", (), {})


def plan(repeats=1, labels=LABELS):
    tasks = tuple(PlannedTask(name, f"Is it {name}?", label) for name, label in labels.items())
    return Plan("val", "generated", "four tasks", tasks, repeats, (STAGE,))


LABEL_OF = {"GO": "yes", "NO-GO": "no", "UNDECIDED": "maybe"}


def rollout(task, decision, reward, repeat=0, **fields):
    scores = {name: round(0.1 * index + 0.05 * int(task[1:]), 3) for index, name in enumerate(CRITERIA, start=1)}
    standard = {
        "phase": "gate-base",
        "repeat": repeat,
        "label": LABELS[task],
        "decision": decision,
        "parts": {"impact": 0.3 * scores["impact"], "alignment": reward - 0.3 * scores["impact"]},
        "outputs": {
            "turn_count": 9,
            "major_revisions": 1,
            "critical_revisions": 2,
            "final_evaluation": {"scores": scores, "error": None},
        },
        "counts": {
            "model_calls": 12,
            "repairs": 1,
            "prompt_tokens": 1600,
            "completion_tokens": 400,
            "tool_calls": 4,
            "failed_tool_calls": 1,
        },
        "tokens": {"junior": {"prompt": 1000, "completion": 100}, "senior": {"prompt": 600, "completion": 300}},
        "seconds": 2.0,
    }
    return answered(f"ro-{task}-{repeat}", task, LABEL_OF.get(decision), reward, **(standard | fields))


def failed(task, repeat=0, **fields):
    empty = {"reward": None, "parts": {}, "outputs": {}, "counts": {}, "tokens": {}, "seconds": None}
    made = rollout(task, None, 0.0, repeat, status="failed", error="the runner died")
    return replace(made, **{**empty, **fields})


def answers(*records):
    return StageAnswers(STAGE, records, ())


ROLLOUTS = answers(
    rollout("t1", "GO", 2.0),
    rollout("t2", "GO", 1.0),
    rollout("t3", "UNDECIDED", 1.5, counts={"model_calls": 20, "tool_calls": 0, "failed_tool_calls": 0}, tokens={}),
    failed("t4"),
)


def test_success_and_alignment_are_over_all_tasks_and_a_failed_rollout_is_a_miss():
    found = stage_metrics(ROLLOUTS, plan(), CONFIG)
    assert (found["success"].mean, found["success"].n) == (0.75, 4)
    assert (found["alignment"].mean, found["alignment"].n) == (0.5, 4)
    assert (found["decision_two_way"].mean, found["decision_two_way"].n) == (0.25, 4)
    # F1: yes 1 hit, 2 true, 2 answered; no 0 hits; maybe 1 hit, 1 true, 1 answered.
    assert (found["macro_f1"].mean, found["macro_f1"].n) == (pytest.approx((0.5 + 0 + 1) / 3), 4)


def test_a_decision_of_a_rollout_that_failed_later_does_not_count():
    found = stage_metrics(answers(failed("t1", decision="GO"), rollout("t2", "NO-GO", 2.0)), plan(), CONFIG)
    assert (found["alignment"].mean, found["decision_two_way"].mean) == (0.5, 0.5)
    assert found["macro_f1"].mean == 0.5


def test_reward_parts_criteria_and_work_are_over_the_rollouts_that_have_them():
    found = stage_metrics(ROLLOUTS, plan(), CONFIG)
    scored = ROLLOUTS.records[:3]
    assert (found["reward"].mean, found["reward"].n) == (1.5, 3)
    for name in CRITERIA:
        scores = [record.outputs["final_evaluation"]["scores"][name] for record in scored]
        assert found[name].mean == pytest.approx(fmean(scores))
    assert found["part_impact"].mean == pytest.approx(CONFIG.reward.impact * found["impact"].mean)
    parts = [one.mean for name, one in found.items() if name.startswith("part_")]
    assert math.fsum(parts) == pytest.approx(found["reward"].mean)
    assert (found["turns"].mean, found["revisions"].mean, found["seconds"].mean) == (9, 3, 2)
    assert (found["model_calls"].mean, found["model_calls"].n) == (pytest.approx(44 / 3), 3)
    assert (found["tool_success"].mean, found["tool_success"].n) == (0.75, 2)
    assert (found["prompt_tokens"].mean, found["prompt_tokens"].n) == (1600, 2)
    assert (found["repairs"].mean, found["tool_calls"].mean) == (1, pytest.approx(8 / 3))


def test_what_an_unfinished_rollout_left_behind_is_no_result_but_its_work_was_done():
    begun = failed("t1", outputs=ROLLOUTS.records[0].outputs, counts={"model_calls": 4}, seconds=300.0)
    found = stage_metrics(answers(begun, *ROLLOUTS.records[1:]), plan(), CONFIG)
    assert [found[name].n for name in ("turns", "revisions", "impact", "model_calls", "seconds")] == [2, 2, 2, 3, 3]
    assert found["seconds"].mean == pytest.approx((300 + 2 + 2) / 3)


def test_success_everywhere_is_not_said_to_be_certain():
    found = stage_metrics(answers(*ROLLOUTS.records[:3]), plan(), CONFIG)
    assert (found["success"].mean, found["success"].low, found["success"].high) == (
        1.0,
        pytest.approx(0.025 ** (1 / 3)),
        1.0,
    )
    assert (found["turns"].low, found["turns"].high) == (9.0, 9.0)


def test_what_has_no_value_is_left_out():
    found = stage_metrics(ROLLOUTS, plan(), CONFIG)
    assert "part_overlong" not in found
    assert "cost" not in found
    alone = stage_metrics(answers(*(failed(task) for task in LABELS)), plan(), CONFIG)
    assert {name: one.mean for name, one in alone.items()} == {"success": 0.0}


def test_judge_scores_that_are_missing_leave_the_rollout_out_of_theirs():
    outputs = {"turn_count": 7, "final_evaluation": {"scores": dict.fromkeys(CRITERIA), "error": "the judge is down"}}
    unjudged = replace(ROLLOUTS.records[0], reward=None, parts={"impact": None, "alignment": 1.0}, outputs=outputs)
    found = stage_metrics(answers(unjudged, *ROLLOUTS.records[1:]), plan(), CONFIG)
    assert [found[name].n for name in ("impact", "part_impact", "reward", "revisions", "turns")] == [2, 2, 2, 2, 3]
    assert found["part_alignment"].n == 3


def test_cost_is_that_of_models_with_a_price():
    prices = ["evaluation.prices={junior: [1.0, 10.0]}", "evaluation.resamples=200"]
    found = stage_metrics(ROLLOUTS, plan(), load_config(overrides=prices))
    assert (found["cost"].mean, found["cost"].n) == (pytest.approx((1000 * 1 + 100 * 10) / 1e6), 2)


@pytest.mark.parametrize(
    ("prices", "message"),
    [
        ("{juniors: [1, 2]}", ("prices.juniors", "'junior'")),
        ("{judge: [1, 2]}", ("prices.judge", "board, junior, principal, refiner, senior, supervisor")),
    ],
)
def test_a_price_that_would_count_nothing_is_refused(prices, message):
    with refused(ConfigError, message):
        load_config(overrides=[f"evaluation.prices={prices}"])


def test_a_task_counts_once_however_often_it_is_repeated():
    records = [
        rollout("t1", "GO", 2.0),
        rollout("t2", "GO", 1.0),
        rollout("t1", "NO-GO", 1.0, repeat=1),
        failed("t2", repeat=1),
    ]
    found = stage_metrics(answers(*records), plan(2), CONFIG)
    assert (found["reward"].mean, found["reward"].n) == (pytest.approx((1.5 + 1.0) / 2), 2)
    assert (found["alignment"].mean, found["alignment"].n) == (0.25, 2)
    assert (found["success"].mean, found["success"].n) == (0.75, 2)


def test_every_metric_has_a_name_of_its_own_and_three_are_primary():
    metrics = metrics_of(load_config(overrides=["evaluation.prices={junior: [1, 2]}", "reward.overlong=0"]))
    names = [metric.name for metric in metrics]
    assert len(set(names)) == len(names)
    assert "part_overlong" not in names
    assert {"cost", "part_impact", *CRITERIA} < set(names)
    assert {metric.name for metric in metrics if metric.primary} == {"reward", "alignment", "macro_f1"}


def test_one_task_has_figures_without_intervals():
    found = stage_metrics(answers(rollout("t1", "GO", 2.0)), plan(labels={"t1": "yes"}), CONFIG)
    assert all((one.low, one.high, one.n) == (None, None, 1) for one in found.values())


def test_the_same_seed_gives_the_same_intervals_and_another_other_ones():
    many = {f"t{number}": "yes" for number in range(30)}
    records = [rollout("t1", "GO", 1 + number % 7 / 5, task_id=task) for number, task in enumerate(many)]
    found = stage_metrics(answers(*records), plan(labels=many), CONFIG)
    assert found == stage_metrics(answers(*records), plan(labels=many), CONFIG)
    other = CONFIG.model_copy(update={"seed": CONFIG.seed + 1})
    assert found["reward"].low != stage_metrics(answers(*records), plan(labels=many), other)["reward"].low


def test_baselines_are_measured_over_the_tasks_they_were_asked():
    given = [
        BaselineAnswer("majority", "t1", 0, "yes"),
        BaselineAnswer("majority", "t2", 0, "yes"),
        BaselineAnswer("single@base", "t1", 1, None, "unreadable"),
        BaselineAnswer("single@base", "t1", 0, "yes"),
    ]
    by_name = answers_by_baseline(given)
    assert by_name == {"majority": {"t1": ["yes"], "t2": ["yes"]}, "single@base": {"t1": ["yes", None]}}
    found = answer_metrics(by_name["majority"], plan(), CONFIG)
    assert (found["alignment"].mean, found["alignment"].n) == (0.5, 2)
    assert found["macro_f1"].mean == pytest.approx((2 / 3 + 0) / 2)
    assert answer_metrics(by_name["single@base"], plan(), CONFIG)["alignment"].mean == 0.5


def test_nobody_who_answered_nothing_is_measured():
    with pytest.raises(ValueError, match="at least one task"):
        answer_metrics({"other": ["yes"]}, plan(), CONFIG)


def test_outcomes_count_every_rollout_once_and_group_reasons():
    records = [
        *ROLLOUTS.records[:3],
        failed("t4", error="timeout after 31 s"),
        rollout("t1", "NO-GO", 1.0, repeat=1),
        failed("t2", repeat=1, error="timeout after 7 s"),
        failed("t3", repeat=1, error="no answer", decision="GO"),
        failed("t4", repeat=1, error=None),
    ]
    found = outcomes(answers(*records))
    assert (found["tasks"], found["rollouts"], found["failed"]) == (4, 8, 4)
    assert found["failures"] == {"timeout after # s": 2, "no answer": 1, "no reason recorded": 1}
    assert found["confusion"] == {
        "yes": {"yes": 1, "no": 1, "maybe": 0, "none": 2},
        "no": {"yes": 1, "no": 0, "maybe": 0, "none": 1},
        "maybe": {"yes": 0, "no": 0, "maybe": 1, "none": 1},
    }
