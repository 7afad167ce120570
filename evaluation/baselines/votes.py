"""Baselines from recorded answers: majorities, and the society without its board. No model is asked.

* Self-consistency (Wang et al. 2022, arXiv:2203.11171): the majority of k sampled calls, for the largest k whose calls
  use no more tokens than the society did on the same tasks. Every call counts with its whole prompt.
* The same of visits of one agent that has all tools (`tool_agent`), if there are any.
* The majority of the three juniors, from the society's rollouts; where findings are combined, the rule on them.
* The society without board: the answer of the first refined hypothesis, from the same rollouts. Protocol, reviews,
  revisions and the principal investigator come after it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from agents.findings import COMBINED
from agents.roles import REFINER, SUPERVISOR
from chimera.config.roles import JUNIORS
from chimera.config.tree import Config
from chimera.core.types import Label
from evaluation.baselines.simple import (
    AGENT,
    AGENT_VOTE,
    BY_RULE,
    CONSISTENCY,
    JUNIOR_VOTE,
    SINGLE,
    UNREVIEWED,
    of_stage,
)
from evaluation.baselines.single_agent import ROLE
from evaluation.records.rollouts import RolloutRecord
from evaluation.records.study import BaselineAnswer, Plan, StageAnswers

MOST_CALLS = 64
"""Limit of votes. More votes change nothing, and a society with very long prompts could pay for many."""
FIRST_REFINEMENT = f"{REFINER}/1"


def majority_of(answers: Sequence[Label | None], favourite: Label | None = None) -> Label | None:
    """The commonest of `answers`; None if there is no answer.

    Args:
        answers: The answers in order; None does not vote.
        favourite: Wins a tie if it is among the commonest. Otherwise the first of them wins.
    """
    votes: list[Label] = [answer for answer in answers if answer is not None]
    most = max(map(votes.count, votes), default=0)
    commonest: list[Label] = [answer for answer in votes if votes.count(answer) == most]
    if favourite is not None and favourite in commonest:
        return favourite
    return commonest[0] if commonest else None


def with_consistency(config: Config) -> bool:
    """True if self-consistency is a baseline. At temperature 0 all answers would be equal, so it is not."""
    greedy = 0 in (config.evaluation.temperature, config.models[config.slot(ROLE.name)].temperature)
    return config.evaluation.self_consistency and not greedy


def affordable(records: Iterable[RolloutRecord], calls: Iterable[BaselineAnswer]) -> int | None:
    """The number of calls that on average use at most the tokens of a rollout; at least 1.

    Args:
        calls: Sampled single calls on the same tasks.

    Returns:
        None if no tokens are recorded for the rollouts or for the calls.
    """
    society = [used for record in records if (used := _tokens(record.counts))]
    single = [used for call in calls if (used := call.prompt_tokens + call.completion_tokens)]
    if not society or not single:
        return None
    return min(MOST_CALLS, max(1, int(fmean(society) / fmean(single))))


def counted(
    plan: Plan, answers: Mapping[str, StageAnswers], calls: Iterable[BaselineAnswer], *, consistency: bool = True
) -> Iterator[BaselineAnswer]:
    """All answers of these baselines for the first and the last stage.

    Args:
        calls: All recorded sampled calls. Tasks that lack some of the k votes are left out.
    """
    by_name: dict[str, list[BaselineAnswer]] = {}
    for call in calls:
        by_name.setdefault(call.baseline, []).append(call)
    for stage in plan.ends:
        records = answers[stage.name].records
        for voters, vote in ((SINGLE, CONSISTENCY), (AGENT, AGENT_VOTE)) if consistency else ():
            sampled = by_name.get(of_stage(voters, plan.alone_of(stage).name), [])
            yield from _consistency(of_stage(vote, stage.name), records, sampled)
        if any(record.outputs.get("selection", {}).get("author") == COMBINED for record in records):
            yield from (_by_rule(of_stage(BY_RULE, stage.name), record) for record in records)
        else:
            yield from (_juniors(of_stage(JUNIOR_VOTE, stage.name), record) for record in records)
        yield from (_unreviewed(of_stage(UNREVIEWED, stage.name), record) for record in records)


def _consistency(
    name: str, records: Sequence[RolloutRecord], calls: Sequence[BaselineAnswer]
) -> Iterator[BaselineAnswer]:
    k = affordable(records, (call for call in calls if call.sample == 0))
    if k is None:
        return
    votes: dict[tuple[str, int], list[BaselineAnswer]] = {}
    for call in sorted(calls, key=lambda call: call.sample):
        if call.sample < k:
            votes.setdefault((call.task_id, call.repeat), []).append(call)
    for (task_id, repeat), votes_of_task in votes.items():
        if len(votes_of_task) == k:
            yield _answer(
                name,
                (task_id, repeat),
                majority_of([call.answer for call in votes_of_task]),
                f"none of {k} answers could be read",
                [
                    {"calls": call.calls or 0, "prompt": call.prompt_tokens, "completion": call.completion_tokens}
                    for call in votes_of_task
                ],
            )


def _juniors(name: str, record: RolloutRecord) -> BaselineAnswer:
    """The juniors' majority. The supervisor's choice decides a tie, and then its calls count too."""
    answers = [hypothesis["answer"] for hypothesis in record.outputs.get("initial_hypotheses", ())]
    tied = len(set(answers)) == len(answers) > 1
    chosen = record.outputs.get("selected_hypothesis", {}).get("answer")
    roles = (*JUNIORS, SUPERVISOR) if tied else JUNIORS
    return _of_record(name, record, majority_of(answers, chosen), roles)


def _by_rule(name: str, record: RolloutRecord) -> BaselineAnswer:
    """What the findings of all juniors say by the rule. None of them has read everything, so no majority counts."""
    return _of_record(name, record, record.outputs.get("selected_hypothesis", {}).get("answer"), JUNIORS)


def _unreviewed(name: str, record: RolloutRecord) -> BaselineAnswer:
    answer = record.outputs.get("unreviewed_hypothesis", {}).get("answer")
    return _of_record(name, record, answer, (*JUNIORS, SUPERVISOR, FIRST_REFINEMENT))


def _of_record(name: str, record: RolloutRecord, answer: Label | None, visits: Sequence[str]) -> BaselineAnswer:
    """An answer from a rollout, with the work of some visits: "role" for all visits of a role, "role/1" for one."""
    used = [work for visit, work in record.visits.items() if visit in visits or visit.partition("/")[0] in visits]
    return _answer(name, (record.task_id, record.repeat), answer, record.error or "the rollout does not hold it", used)


def _answer(
    name: str, key: tuple[str, int], answer: Label | None, reason: str, used: Sequence[Mapping[str, int]]
) -> BaselineAnswer:
    sums = {field: sum(work[field] for work in used) for field in ("calls", "prompt", "completion")}
    error = reason if answer is None else None
    return BaselineAnswer(name, *key, answer, error, sums["calls"] or None, sums["prompt"], sums["completion"])


def _tokens(counts: Mapping[str, Any]) -> int:
    return counts.get("prompt_tokens", 0) + counts.get("completion_tokens", 0)
