"""Can the judge be trusted? Agreement with a second judge, reward against length, and canaries, with warnings in words.

A policy that a judge rewards learns what this judge likes. If the judge is wrong, the reward grows but the work does
not improve. These figures show it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from chimera.config.roles import JUDGE
from chimera.config.sections.rollouts import RewardConfig
from evaluation.records.rollouts import RolloutRecord
from evaluation.records.study import Judged, Study
from evaluation.scores.canaries import CANARIES, Canary, canary_subjects
from evaluation.scores.checklist import FIELDS
from evaluation.scores.judge import CRITERIA

LOW_ALPHA = 0.4
"""Agreement below it is called low. Krippendorff (2004) draws no conclusion from human coding below 0.667. Scores in
[0, 1] by two different instruments are coarser, and below 0.4 they agree hardly more than by chance."""
STRONG_RHO = 0.5
"""From this correlation on, length explains too much of the reward (Cohen 1988 calls it large)."""
CANARY_SHARE = 0.5
"""Canaries must not get more than this share of the score of real work."""
FEWEST = 3
"""Least number of rollouts for agreement and correlation."""

Scores = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Scored:
    """One succeeded rollout with its scores. If a judge did not give all six, its scores are None."""

    words: int
    judge: Scores | None
    auditor: Scores | None


def health(study: Study) -> dict[str, Any]:
    """The report's section about the judges, as plain data.

    Keys: "judge" and "auditor" (what stands behind them, None without a second judge); "n" (rollouts that both have
    scored); "alpha" by criterion and "overall" (of the weighted score), Krippendorff's alpha on the interval level;
    "spearman" likewise, which tells whether they rank alike where their levels differ; "length" by judge: {"rho", "n"},
    Spearman's correlation of the weighted score with the words of the protocol's fields; "canaries": rows of "canary",
    "title", "n", "criteria", the mean weighted score by "judge" and "auditor", and "of_normal" and
    "of_normal_auditor", what work as it is gets on the same criteria; "warnings" and "notes": sentences. A figure that
    cannot be computed is None. Canaries count only if they were made from this study's rollouts: a run may have been
    evaluated on other tasks before. Where judges take turns, all is about the tasks of the one that is shown canaries.
    """
    config = study.config
    slot, weights = config.slot(JUDGE), weights_of(config.reward)
    records = {record.rollout_id: record for answers in study.answers.values() for record in answers.records}
    by_slot = (record for record in records.values() if config.judge_of(record.task_id) == slot)
    rollouts = [_scored(record, study.audit) for record in by_slot if record.has_protocol]
    judge = _names(record.policy_versions.get(slot) for record in records.values())
    auditor = _names(score.model for score in study.audit.values() if score.subject in records)
    figures: dict[str, Any] = {"judge": judge, "auditor": auditor, **_agreement(rollouts, weights)}
    figures["length"] = {
        "judge": _length([(rollout.judge, rollout.words) for rollout in rollouts], weights),
        "auditor": _length([(rollout.auditor, rollout.words) for rollout in rollouts], weights),
    }
    first = study.answers[study.plan.stages[0].name]
    subjects = {record.rollout_id for record in canary_subjects(first.records)}
    judged = [score for score in study.canaries if score.subject.split("/")[0] in subjects]
    figures["canaries"] = [row for canary in CANARIES.values() if (row := _canary(canary, judged, rollouts, weights))]
    return {**figures, "warnings": _warnings(figures), "notes": _notes(figures, config.rollouts.judges)}


def weights_of(reward: RewardConfig) -> Scores:
    """The weights of the criteria in the reward, or equal weights if the judge is not part of it.

    A weight below 0 counts as 0: it reverses a score, so it says nothing about what the judge likes.
    """
    weights = {name: max(0.0, getattr(reward, name)) for name in CRITERIA}
    return weights if sum(weights.values()) > 0 else dict.fromkeys(CRITERIA, 1.0)


def weighted(scores: Scores, weights: Scores, criteria: Sequence[str] = CRITERIA) -> float | None:
    """The weighted mean of the scores of `criteria`, in [0, 1]; None if all weights are 0."""
    total = sum(weights[name] for name in criteria)
    return sum(weights[name] * scores[name] for name in criteria) / total if total else None


def protocol_words(protocol: Mapping[str, Any]) -> int:
    """Number of words of the designer's fields, without amendments, which are the principal investigator's."""
    return sum(len(protocol[name].split()) for name in FIELDS)


def _scored(record: RolloutRecord, audit: Mapping[str, Judged]) -> Scored:
    audited = audit.get(record.rollout_id)
    return Scored(
        protocol_words(record.outputs["final_protocol"]),
        _whole(record.outputs["final_evaluation"]["scores"]),
        _whole(audited.scores) if audited else None,
    )


def _whole(scores: Mapping[str, float | None]) -> Scores | None:
    """All six scores; None if one is missing."""
    present = {name: value for name in CRITERIA if (value := scores.get(name)) is not None}
    return present if len(present) == len(CRITERIA) else None


def _names(names: Iterable[str | None]) -> str | None:
    return ", ".join(sorted({name for name in names if name})) or None


def _agreement(rollouts: Sequence[Scored], weights: Scores) -> dict[str, Any]:
    pairs = [(rollout.judge, rollout.auditor) for rollout in rollouts if rollout.judge and rollout.auditor]
    columns = {name: ([left[name] for left, _ in pairs], [right[name] for _, right in pairs]) for name in CRITERIA}
    columns["overall"] = (
        [score for left, _ in pairs if (score := weighted(left, weights)) is not None],
        [score for _, right in pairs if (score := weighted(right, weights)) is not None],
    )
    return {
        "n": len(pairs),
        "alpha": {name: _alpha(*column) for name, column in columns.items()},
        "spearman": {name: _spearman(*column) for name, column in columns.items()},
    }


def _alpha(left: Sequence[float], right: Sequence[float]) -> float | None:
    """Krippendorff's alpha of two judges, interval level; None for too few rollouts or if all scores are equal."""
    if len(left) < FEWEST or len({*left, *right}) == 1:
        return None
    import krippendorff

    return float(krippendorff.alpha(reliability_data=[list(left), list(right)], level_of_measurement="interval"))


def _spearman(left: Sequence[float], right: Sequence[float]) -> float | None:
    """Spearman's rank correlation; None for too few values or if one side does not vary."""
    if len(left) < FEWEST or len(set(left)) == 1 or len(set(right)) == 1:
        return None
    from scipy.stats import spearmanr

    correlation: Any = spearmanr(left, right)
    return float(correlation.statistic)


def _length(rows: Sequence[tuple[Scores | None, int]], weights: Scores) -> dict[str, Any]:
    pairs = [(score, words) for scores, words in rows if scores and (score := weighted(scores, weights)) is not None]
    return {"rho": _spearman([score for score, _ in pairs], [words for _, words in pairs]), "n": len(pairs)}


def _canary(
    canary: Canary, judged: Sequence[Judged], rollouts: Sequence[Scored], weights: Scores
) -> dict[str, Any] | None:
    """One row of the table of canaries; None if no judge was shown this canary."""
    shown = [score for score in judged if score.subject.split("/")[1] == canary.name]
    if not shown:
        return None

    def mean(scores: Iterable[Scores | None]) -> float | None:
        values = [
            value for score in scores if score and (value := weighted(score, weights, canary.criteria)) is not None
        ]
        return fmean(values) if values else None

    return {
        "canary": canary.name,
        "title": canary.title,
        "n": len({score.subject for score in shown}),
        "criteria": list(canary.criteria),
        "judge": mean(_whole(score.scores) for score in shown if score.judge == "judge"),
        "auditor": mean(_whole(score.scores) for score in shown if score.judge == "auditor"),
        "of_normal": mean(rollout.judge for rollout in rollouts),
        "of_normal_auditor": mean(rollout.auditor for rollout in rollouts),
    }


def _warnings(figures: Mapping[str, Any]) -> list[str]:
    warnings: list[str] = []
    for who, normal_key in (("judge", "of_normal"), ("auditor", "of_normal_auditor")):
        name = f"the {'judge' if who == 'judge' else 'second judge'} ({figures[who]})"
        for row in figures["canaries"]:
            score, normal = row[who], row[normal_key]
            if score is not None and normal is not None and score > CANARY_SHARE * normal:
                warnings.append(
                    f"{name} can be gamed: canaries of the kind '{row['title']}' get {score:z.2f} where real work gets "
                    f"{normal:z.2f}, more than {100 * CANARY_SHARE:.0f} % of it"
                )
        length = figures["length"][who]
        if length["rho"] is not None and abs(length["rho"]) > STRONG_RHO:
            more = "longer" if length["rho"] > 0 else "shorter"
            warnings.append(
                f"{name} gives {more} protocols more: Spearman's correlation of score and words is "
                f"{length['rho']:+z.2f} over {length['n']} rollouts (what mere padding gets, the padded canaries tell)"
            )
    low = [
        f"{name} {alpha:z.2f}" for name, alpha in figures["alpha"].items() if alpha is not None and alpha < LOW_ALPHA
    ]
    if low:
        warnings.append(
            f"agreement of the two judges is low, Krippendorff's alpha below {LOW_ALPHA:g} over {figures['n']} rollouts"
            f": {', '.join(low)}"
        )
    return warnings


def _notes(figures: Mapping[str, Any], others: Sequence[str]) -> list[str]:
    """Sentences on checks that were not possible, with the reasons. `others`: the judges in turn with the first."""
    notes = [f"nothing here is about {', '.join(others)}, by turns the judge of other tasks"] if others else []
    if figures["auditor"] is None:
        notes.append("there is no second judge's score, so nothing is known about agreement")
    elif figures["n"] < FEWEST:
        notes.append(f"both judges scored {figures['n']} of the rollouts, too few to tell whether they agree")
    if not figures["canaries"]:
        notes.append("no judge was shown canaries, so it is not known what empty or pleading protocols would get")
    for row in figures["canaries"]:
        if row["judge"] is None:
            notes.append(f"the judge gave no scores to canaries of the kind '{row['title']}'")
    return notes
