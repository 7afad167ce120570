"""What another answer of a role is worth: the parts of the reward that the role earns, weighted.

    direct   from the answer itself: is it right, are its quotes true, what would the deterministic judge say, and, as
             the part `relative`, what does the judge say of all answers to the state beside each other
    replay   from the society: the rest of the graph runs with this answer in place of the recorded one

An answer's own `alignment` is the society's when the rubric is the principal investigator and the refiner gives the
answer, because the rubric takes it over. For a junior it is what its hypothesis is worth if it is chosen.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from agents.findings import Findings, as_hypothesis, with_findings
from agents.roles import DESIGNER, PRINCIPAL_INVESTIGATOR, REFINER, ROLES, SUPERVISOR
from agents.schemas import Answer, ExperimentProtocol, Hypothesis
from chimera.config.roles import JUDGE, JUNIORS
from chimera.config.sections.graph import GraphConfig
from chimera.config.sections.rollouts import RewardConfig
from chimera.config.tree import Config
from chimera.core.errors import ConfigError
from chimera.core.quotes import missing_quotes
from chimera.rubric.judge import judge
from evaluation.scores.judge import finished_work
from evaluation.scores.relative import relative
from training.learning.base import Bench, PhasePlan, live_graph
from training.learning.experience import Call
from training.learning.states import State, findings_in

How = Literal["direct", "replay"]
RELATIVE = "relative"
"""The part that the judge gives to answers to one state beside each other (`evaluation.scores.relative`)."""
OWN: Mapping[type[Answer], tuple[str, ...]] = {
    Hypothesis: ("alignment", "groundedness", "unverifiable_quote", "parsed", RELATIVE),
    ExperimentProtocol: ("novelty", "feasibility", "impact", "clarity", "efficiency", "parsed", RELATIVE),
}
"""The parts that can be read from an answer itself, or from the answers to one state beside each other."""
JUDGED = frozenset({"novelty", "feasibility", "impact", "clarity", "groundedness", "efficiency"})
REPLAYED = (*JUNIORS, REFINER, DESIGNER)
"""The roles after whose answer a replay can begin."""


@dataclass(frozen=True, slots=True)
class Worth:
    """What one answer is worth.

    Attributes:
        value: The sum of the parts.
        parts: Each part with its weight.
        moved: How far the relative judge's score changed with the answer's place; None where it did not judge.
    """

    value: float
    parts: Mapping[str, float]
    how: How
    moved: float | None = None


def check_reward(plan: PhasePlan, weights: Mapping[str, float], reward: RewardConfig) -> None:
    """Raise ConfigError if a phase's own reward names a part that rollouts do not have.

    Args:
        weights: The weights of the parts that its roles earn.
        reward: The weights of the whole reward; a part whose weight is 0 is not computed.
    """
    for name in weights:
        if name not in RewardConfig.model_fields:
            raise ConfigError(
                f"{plan.name}.reward names {name!r}, which is no part of the reward: the parts are "
                f"{', '.join(RewardConfig.model_fields)}"
            )
        if getattr(reward, name) == 0:
            raise ConfigError(
                f"{plan.name}.reward.{name} needs a value, and rollouts have none because reward.{name}=0: set "
                f"reward.{name} to another number, or leave it out of {plan.name}.reward"
            )


def earned(parts: Mapping[str, float | None], weights: Mapping[str, float], reward: RewardConfig) -> dict[str, float]:
    """The parts of a rollout's reward that a phase's roles earn, by their own weights.

    Args:
        parts: The rollout's parts, weighted by `reward`; a missing one is left out.
        weights: The weights of the parts that the roles earn; empty for the whole reward.
    """
    amounts = {name: value for name, value in parts.items() if value is not None}
    if not weights:
        return amounts
    return {name: weight * amounts[name] / getattr(reward, name) for name, weight in weights.items() if name in amounts}


def how_valued(
    plan: PhasePlan, weights: Mapping[str, float], method: Literal["auto", "direct", "replay"], config: Config
) -> How:
    """How the answers of a phase's roles are valued. "auto" reads the answers themselves where their parts allow it.

    Args:
        weights: The weights of the parts that its roles earn; empty for the whole reward.

    Raises:
        ConfigError: The roles' answers cannot be valued like this.
    """
    reason = _not_direct(plan, weights, config)
    if method != "replay" and reason is None:
        return "direct"
    check_reward(plan, weights, config.reward)
    if method == "direct":
        raise ConfigError(f"{plan.name}.value=direct cannot work: {reason}; set {plan.name}.value=replay")
    if others := [role for role in plan.roles if role not in REPLAYED]:
        raise ConfigError(
            f"{plan.name} cannot value answers of {others[0]} by replay: a replay can begin after "
            f"{', '.join(REPLAYED)} only; leave {others[0]} out of {plan.name}.roles"
        )
    return "replay"


def _not_direct(plan: PhasePlan, weights: Mapping[str, float], config: Config) -> str | None:
    """Why the parts cannot be read from the answers themselves; None if they can."""
    if not weights:
        return f"{plan.name}.reward is empty, so its roles earn the whole reward"
    for role in plan.roles:
        direct_parts = OWN.get(ROLES[role].schema, ())
        if others := [name for name in weights if name not in direct_parts]:
            return f"{others[0]} does not follow from an answer of {role} alone"
    judges = [config.models[slot] for slot in (config.slot(JUDGE), *config.rollouts.judges)]
    if JUDGED & set(weights) and any(model.kind != "rubric" for model in judges):
        return f"a judge is a language model, and would have to be asked for {', '.join(JUDGED & set(weights))}"
    return None


class Values:
    """Values further answers to recorded states.

    Args:
        weights: The weights of the parts that the roles earn; empty for the whole reward.
        how: See `how_valued`.
    """

    def __init__(self, weights: Mapping[str, float], how: How, bench: Bench) -> None:
        self._weights = dict(weights)
        self._how: How = how
        self._bench = bench

    async def of_group(self, state: State, answers: Sequence[Call]) -> list[Worth | None]:
        """The worth of each of several answers to `state`, as `of` gives it.

        With the part `relative`, the judge compares those that can be read. One that it gives no score has no worth.
        """
        worths = list(await asyncio.gather(*(self.of(state, answer) for answer in answers)))
        if RELATIVE not in self._weights:
            return worths
        works = {
            number: _work(state, answer, call.passages)
            for number, call in enumerate(answers)
            if worths[number] is not None and (answer := call.answer) is not None
        }
        if not works:
            return worths
        slot = self._bench.config.judge_of(state.episode.record.task_id)
        placed = await relative(partial(self._bench.ask, slot), list(works.values()), seed=self._bench.config.seed)
        for number, place in zip(works, placed, strict=True):
            worth = worths[number]
            if worth is None or place is None:
                worths[number] = None
                continue
            parts = {**worth.parts, RELATIVE: self._weights[RELATIVE] * place.score}
            worths[number] = Worth(math.fsum(parts.values()), parts, worth.how, place.moved)
        return worths

    async def of(self, state: State, answered: Call) -> Worth | None:
        """The worth of one answer to `state`; None if it has none: it asks for a tool, or the replay has no reward.

        An answer that cannot be read earns no part, so it is worth 0.
        """
        if answered.asked is not None and answered.asked.choice["message"].get("tool_calls"):
            return None
        answer = answered.answer
        if answer is None:
            return Worth(0.0, dict.fromkeys(self._weights, 0.0), self._how)
        if self._how == "direct":
            weights = {name: weight for name, weight in self._weights.items() if name != RELATIVE}
            amounts = own_parts(state, answered, answer, weights)
            parts = {name: weight * amounts[name] for name, weight in weights.items()}
            return Worth(math.fsum(parts.values()), parts, "direct")
        at = role_after(state.call.role, live_graph(self._bench))
        record = (await self._bench.replay(state.episode, at=at, instead=replaced(state, answer))).record
        if record.reward is None:
            return None
        parts = earned(record.parts, self._weights, self._bench.config.reward)
        return Worth(math.fsum(parts.values()), parts, "replay")


def role_after(role: str, graph: GraphConfig) -> str:
    """Where a replay begins: the first role of `graph` that works with the answer of `role`, one of `REPLAYED`."""
    from agents.graph import IN_ORDER, working  # LangGraph takes half a second.

    following = (SUPERVISOR,) if role in JUNIORS else IN_ORDER[IN_ORDER.index(role) + 1 :]
    return next((name for name in following if name in working(graph)), PRINCIPAL_INVESTIGATOR)


def own_parts(state: State, answered: Call, answer: Answer, names: Mapping[str, Any]) -> dict[str, float]:
    """The parts `names` of an answer, each before its weight.

    Judged parts are the deterministic judge's scores of the recorded work with this answer in its place.
    """
    read = answered.passages
    amounts = {
        "alignment": state.right(answer),
        "unverifiable_quote": float(len(missing_quotes(answer.quotes, read))),
        "parsed": 1.0,
    }
    if JUDGED & set(names):
        amounts |= judge(_work(state, answer, read))
    return {name: amounts[name] for name in names}


def _work(state: State, answer: Answer, read: list[str]) -> dict[str, Any]:
    """The judge's input with `answer` in place of what the role had answered."""
    outputs = dict(state.episode.record.outputs)
    if isinstance(answer, ExperimentProtocol):
        outputs["final_protocol"] = {**answer.model_dump(), "amendments": []}
    else:
        refined = as_hypothesis(answer, findings_in(state.episode.record))
        outputs |= {"refined_hypothesis": refined, "final_answer": answer.stance}
    sources = {source["text"]: source for source in outputs["selection"]["sources"]}
    sources |= {text: {"id": "read", "text": text} for text in read if text not in sources}
    return finished_work(outputs, list(sources.values()), outputs["research_goal"])


def replaced(state: State, answer: Answer) -> dict[str, Any]:
    """The fields of the society's state that hold `answer` in place of what the role had answered."""
    role, content = state.call.role, as_hypothesis(answer, findings_in(state.episode.record))
    if role == REFINER:
        return {"refined_hypothesis": content, "unreviewed_hypothesis": content}
    if role == DESIGNER:
        return {"experimental_protocol": content}
    hypothesis, recorded = {**content, "author": role}, state.episode.record.outputs["initial_hypotheses"]
    if isinstance(answer, Findings):
        earlier = [content, *(other for other in recorded if other["author"] == role)]
        hypothesis = {"author": role, **with_findings(earlier, content)}
    return {"initial_hypotheses": [hypothesis if other["author"] == role else other for other in recorded]}
