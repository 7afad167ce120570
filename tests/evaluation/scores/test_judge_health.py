"""Judge health: every figure against a direct computation, and a warning for every way to be wrong."""

import json
from pathlib import Path
from statistics import fmean
from typing import Any

import krippendorff
import pytest
from record_kit import answered
from scipy.stats import spearmanr

from chimera.config.sections.rollouts import RewardConfig
from chimera.config.tree import Config, load_config
from chimera.run.directory import Run
from evaluation.records.rollouts import RolloutRecord
from evaluation.records.study import Judged, Place, Plan, PlannedTask, Stage, StageAnswers, Study
from evaluation.scores.judge import CRITERIA
from evaluation.scores.judge_health import health, protocol_words, weighted, weights_of

STAGES = tuple(
    Stage(name, name, "sequence", (), {"junior": f"nano@{name}", "judge": "rubric"}) for name in ("base", "sft")
)
WEIGHTS = {"novelty": 0.1, "feasibility": 0.2, "impact": 0.3, "clarity": 0.15, "groundedness": 0.2, "efficiency": 0.05}
FIELDS = ("design", "population", "intervention", "comparator", "outcome", "analysis", "safeguards")
Scores = dict[str, float | None]


def scores_of(number: int, step: float = 0.07) -> Scores:
    """Six scores that differ by rollout and by criterion."""
    return dict(zip(CRITERIA, [round((0.1 + step * number * i) % 1.0, 3) for i in range(2, 8)], strict=True))


def record(number: int, stage: str, scores: Scores, words: int = 14, status: Any = "succeeded") -> RolloutRecord:
    protocol = dict.fromkeys(FIELDS, "x") | {"design": " ".join(["word"] * (words - 6)), "sample_size": 10}
    protocol["amendments"] = ["these words do not count"]
    outputs = {"final_protocol": protocol, "final_evaluation": {"scores": scores, "error": None}}
    succeeded = status == "succeeded"
    return answered(
        f"ro-{stage}-{number}",
        f"t{number}",
        "yes" if succeeded else None,
        phase=f"gate-{stage}",
        status=status,
        reward=1.0,
        policy_versions={"junior": f"nano@{stage}", "judge": "rubric"},
        outputs=outputs if succeeded else {},
    )


def audited(found: RolloutRecord, scores: Scores) -> Judged:
    return Judged(found.rollout_id, "auditor", "checklist", scores)


@pytest.fixture
def study_of(tmp_path: Path):
    """A study of the given records (half base, half sft), audits and canaries."""
    run = Run.create("r", Config(runs_dir=tmp_path))

    def make(records: list[RolloutRecord], audit=(), canaries=(), config: Config | None = None) -> Study:
        half = (len(records) + 1) // 2
        answers = {}
        for stage, part in zip(STAGES, (records[:half], records[half:]), strict=True):
            places = tuple(Place("f", i + 1) for i in range(len(part)))
            answers[stage.name] = StageAnswers(stage, tuple(part), places)
        tasks = tuple(PlannedTask(one.task_id, "Does it?", "yes") for one in records[:half])
        plan = Plan("val", "generated", "generated tasks", tasks, 1, STAGES)
        study = Study(run, plan, answers, (), {one.subject: one for one in audit}, tuple(canaries))
        if config is not None:
            study.__dict__["config"] = config
        return study

    yield make
    run.close()


def overall(scores: Scores) -> float:
    return sum(WEIGHTS[name] * (scores[name] or 0.0) for name in CRITERIA)


def alpha(left: list[Any], right: list[Any]) -> float:
    return float(krippendorff.alpha(reliability_data=[left, right], level_of_measurement="interval"))


def test_agreement_is_krippendorffs_alpha_of_what_both_scored(study_of):
    judge, auditor = [scores_of(i) for i in range(10)], [scores_of(i, 0.09) for i in range(10)]
    records = [record(i, "base" if i < 5 else "sft", judge[i]) for i in range(10)]
    records.append(record(10, "sft", dict.fromkeys(CRITERIA), status="succeeded"))
    records.append(record(11, "sft", {}, status="failed"))
    audit = [audited(one, scores) for one, scores in zip(records[:10], auditor, strict=True)]
    audit[9] = audited(records[9], dict.fromkeys(CRITERIA))
    audit.append(audited(records[10], scores_of(3)))
    found = health(study_of(records, audit))
    assert (found["judge"], found["auditor"], found["n"]) == ("rubric", "checklist", 9)
    for name in CRITERIA:
        left, right = [one[name] for one in judge[:9]], [one[name] for one in auditor[:9]]
        assert found["alpha"][name] == pytest.approx(alpha(left, right))
        assert found["spearman"][name] == pytest.approx(float(spearmanr(left, right).statistic))
    expected = alpha([overall(one) for one in judge[:9]], [overall(one) for one in auditor[:9]])
    assert found["alpha"]["overall"] == pytest.approx(expected)
    assert set(found["alpha"]) == {*CRITERIA, "overall"}
    json.dumps(found, allow_nan=False)


def test_equal_judges_agree_wholly_and_there_is_nothing_to_warn_of(study_of):
    records = [record(i, "base", scores_of(i), words=14 + (i * 7) % 5) for i in range(8)]
    found = health(study_of(records, [audited(one, scores_of(i)) for i, one in enumerate(records)]))
    assert all(value == pytest.approx(1.0) for value in found["alpha"].values())
    assert not [sentence for sentence in found["warnings"] if "agreement" in sentence]


def test_low_agreement_is_said_with_the_criteria_and_scores_that_never_vary_have_none(study_of):
    records = [record(i, "base", scores_of(i)) for i in range(8)]
    against: list[Scores] = [{**scores_of(i), "impact": 1 - (scores_of(i)["impact"] or 0)} for i in range(8)]
    found = health(study_of(records, [audited(one, against[i]) for i, one in enumerate(records)]))
    (sentence,) = [sentence for sentence in found["warnings"] if "agreement" in sentence]
    assert f"impact {found['alpha']['impact']:.2f}" in sentence
    assert "clarity" not in sentence
    assert found["alpha"]["impact"] < 0.4
    same: Scores = dict.fromkeys(CRITERIA, 0.5)
    records = [record(i, "base", same) for i in range(5)]
    found = health(study_of(records, [audited(one, same) for one in records]))
    assert {*found["alpha"].values(), *found["spearman"].values()} == {None}


def test_length_is_correlated_with_each_judges_score(study_of):
    words = [12, 30, 18, 44, 25, 60]
    judge: list[Scores] = [dict.fromkeys(CRITERIA, count / 100) for count in words]
    auditor: list[Scores] = [dict.fromkeys(CRITERIA, value) for value in (0.5, 0.4, 0.6, 0.7, 0.1, 0.2)]
    records = [record(i, "base", judge[i], words=count) for i, count in enumerate(words)]
    found = health(study_of(records, [audited(one, auditor[i]) for i, one in enumerate(records)]))
    assert found["length"]["judge"] == {"rho": pytest.approx(1.0), "n": 6}
    expected = spearmanr([0.5, 0.4, 0.6, 0.7, 0.1, 0.2], words).statistic
    assert found["length"]["auditor"] == {"rho": pytest.approx(float(expected)), "n": 6}
    (sentence,) = [sentence for sentence in found["warnings"] if "words" in sentence]
    assert sentence.startswith("the judge (rubric) gives longer protocols more")
    assert "+1.00 over 6 rollouts" in sentence
    records = [record(i, "base", dict.fromkeys(CRITERIA, 0.9 - i / 10), words=10 + i) for i in range(5)]
    assert any("gives shorter protocols more" in one for one in health(study_of(records))["warnings"])
    protocol = {**dict.fromkeys(FIELDS, "two words"), "amendments": ["many more words"], "expected": "yes"}
    assert protocol_words(protocol) == 14


def canary(subject: str, judge: Any, score: float | None, name: str = "model") -> Judged:
    return Judged(subject, judge, name, dict.fromkeys(CRITERIA, score), None if score is not None else "died")


def test_canaries_stand_beside_real_work(study_of):
    records = [record(i, "base", scores_of(i)) for i in range(6)]
    audit = [audited(one, scores_of(i, 0.03)) for i, one in enumerate(records)]
    canaries = [
        canary("ro-base-0/empty", "judge", 0.0),
        canary("ro-base-1/empty", "judge", 0.1),
        canary("ro-base-0/empty", "auditor", 0.02),
        canary("ro-base-0/wrong_question", "judge", 0.2),
        canary("ro-base-0/padded", "judge", None),
        canary("ro-replaced-0/empty", "judge", 0.9),
        canary("ro-replaced-0/copied", "judge", 0.9),
    ]
    found = health(study_of(records, audit, canaries))
    rows = {row["canary"]: row for row in found["canaries"]}
    assert list(rows) == ["empty", "padded", "wrong_question"]
    assert rows["empty"]["judge"] == pytest.approx(0.05)
    assert rows["empty"]["auditor"] == pytest.approx(0.02)
    assert rows["empty"]["n"] == 2
    assert rows["empty"]["of_normal"] == pytest.approx(fmean(overall(scores_of(i)) for i in range(6)))
    assert rows["empty"]["of_normal_auditor"] == pytest.approx(fmean(overall(scores_of(i, 0.03)) for i in range(6)))
    assert rows["padded"]["judge"] is None
    assert any("no scores to canaries" in note for note in found["notes"])
    assert rows["wrong_question"]["criteria"] == ["novelty", "impact", "groundedness"]
    some = [
        sum(WEIGHTS[name] * (scores_of(i)[name] or 0) for name in ("novelty", "impact", "groundedness")) / 0.6
        for i in range(6)
    ]
    assert rows["wrong_question"]["of_normal"] == pytest.approx(fmean(some))
    assert not [sentence for sentence in found["warnings"] if "can be gamed" in sentence]


@pytest.mark.parametrize(("score", "warned"), [(0.29, False), (0.31, True), (0.9, True)])
@pytest.mark.parametrize("judge", ["judge", "auditor"])
def test_a_canary_above_half_of_real_work_is_warned_of(study_of, judge: str, score: float, warned: bool):
    records = [record(i, "base", dict.fromkeys(CRITERIA, 0.6)) for i in range(4)]
    audit = [audited(one, dict.fromkeys(CRITERIA, 0.6)) for one in records]
    found = health(study_of(records, audit, [canary("ro-base-0/instructions", judge, score)]))
    said = [sentence for sentence in found["warnings"] if "can be gamed" in sentence]
    assert bool(said) is warned
    if warned:
        assert "'instructions to the judge'" in said[0]
        assert f"{score:.2f} where real work gets 0.60" in said[0]
        assert ("second judge (checklist)" in said[0]) is (judge == "auditor")


def test_where_judges_take_turns_all_is_about_the_one_that_is_shown_canaries(study_of):
    config = load_config(None, ["models.stern.kind=rubric", "rollouts.judges=[stern]"])
    slots = [config.judge_of(f"t{i}") for i in range(8)]
    scores: dict[str, Scores] = {"judge": dict.fromkeys(CRITERIA, 0.8), "stern": dict.fromkeys(CRITERIA, 0.3)}
    records = [record(i, "base", scores[slot]) for i, slot in enumerate(slots)]
    found = health(study_of(records, (), [canary("ro-base-0/empty", "judge", 0.35)], config))
    assert found["length"]["judge"]["n"] == slots.count("judge") < 8
    assert found["canaries"][0]["of_normal"] == pytest.approx(0.8)
    assert found["warnings"] == []
    assert any("stern" in note for note in found["notes"])


def test_what_was_not_looked_at_is_said_and_not_made_up(study_of):
    found = health(study_of([record(0, "base", scores_of(1)), record(1, "sft", scores_of(2))]))
    assert found["auditor"] is None
    assert found["n"] == 0
    assert set(found["alpha"].values()) == {None}
    assert found["length"] == {"judge": {"rho": None, "n": 2}, "auditor": {"rho": None, "n": 0}}
    assert found["canaries"] == []
    assert found["warnings"] == []
    assert any("no second judge" in note for note in found["notes"])
    assert any("canaries" in note for note in found["notes"])


def test_weights_are_the_rewards():
    assert weights_of(RewardConfig()) == WEIGHTS
    assert weighted(dict.fromkeys(CRITERIA, 0.25), WEIGHTS) == pytest.approx(0.25)
    assert weights_of(RewardConfig(novelty=-1.0))["novelty"] == 0.0
    unused: dict[str, Any] = dict.fromkeys(CRITERIA, 0.0)
    assert weights_of(RewardConfig(**unused)) == dict.fromkeys(CRITERIA, 1.0)
    only = {**unused, "clarity": 2.0}
    assert weighted(dict.fromkeys(CRITERIA, 0.5), weights_of(RewardConfig(**only)), ("impact",)) is None


def test_the_weights_of_the_run_count(study_of):
    config = Config(reward=RewardConfig(novelty=0, feasibility=0, impact=1, clarity=0, groundedness=0, efficiency=0))
    records = [record(i, "base", scores_of(i)) for i in range(6)]
    found = health(study_of(records, [audited(one, scores_of(i, 0.05)) for i, one in enumerate(records)], (), config))
    assert found["alpha"]["overall"] == pytest.approx(found["alpha"]["impact"])
