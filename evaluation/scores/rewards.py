"""The reward of one finished rollout: named parts that sum to it.

    total = sum of weight x judge score        (six criteria)
          + alignment x [the answer is the label]
          + parsed x share of answers that were readable at the first attempt
          + call_valid x valid tool calls + tool_succeeded x successful tool calls      (at most three each)
          + repeated_call x repeats + unverifiable_quote x final quotes in no source + overlong x [an answer was cut]
          + broken_rule x calls and answers against a hard rule

A part with weight 0 is left out. If a judge score is missing, its part and the total are None: the rollout is kept, but
no policy learns from it. A failed rollout has no reward, never zero.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from agents.visit.record import CallRecord, ModelCall, ToolUse
from agents.visit.sources import sources_seen
from chimera.config.sections.rollouts import RewardConfig
from chimera.core.quotes import missing_quotes
from chimera.core.types import ResearchTask
from evaluation.scores.alignment import aligned
from evaluation.scores.judge import CRITERIA

Call = TypeVar("Call", CallRecord, Any)
"""A record of a call, or a call in a trace (`evaluation.traces.calls`), which has role, visit and attempt, too."""
COUNTED_CALLS = 3
"""Number of tool calls that are rewarded. Rewarding more would reward calls for their own sake."""


@dataclass(frozen=True, slots=True)
class Reward:
    """One rollout's reward by part. A part is None if the judge gave no score; then `total` is None, too."""

    parts: Mapping[str, float | None]
    total: float | None


def part_title(name: str) -> str:
    """What readers call a part of the reward: the part `alignment` is that of a right answer."""
    return "right answer" if name == "alignment" else name.replace("_", " ")


def reward_names(config: RewardConfig) -> tuple[str, ...]:
    """The parts with a weight other than 0, in the order of the fields of `config`: the columns of every table."""
    return tuple(name for name in type(config).model_fields if getattr(config, name) != 0)


def compute_reward(
    state: Mapping[str, Any], records: Sequence[CallRecord], task: ResearchTask, config: RewardConfig
) -> Reward:
    """The reward of a finished rollout.

    Raises:
        ValueError: The rollout is not finished, or was not recorded; the message names what is missing.
    """
    if unfinished := [name for name in ("refined_hypothesis", "final_answer", "final_evaluation") if name not in state]:
        raise ValueError(
            f"task {task.id}: an unfinished rollout has no reward, its state lacks {', '.join(unfinished)}"
        )
    signals = _signals(state, last_attempts(records), task)
    scores = state["final_evaluation"]["scores"]
    parts: dict[str, float | None] = {}
    for name in reward_names(config):
        value = scores.get(name) if name in CRITERIA else signals[name]
        parts[name] = None if value is None else getattr(config, name) * value
    values = [value for value in parts.values() if value is not None]
    return Reward(parts, math.fsum(values) if len(values) == len(parts) else None)


def last_attempts(records: Sequence[Call]) -> list[Call]:
    """The calls that count, of all in their order: a role's attempt that ended in a server's failure does not, though
    it may have had more visits than the next one has."""
    last: list[Call] = []
    for new in records:
        last = [old for old in last if old.role != new.role or old.visit < new.visit or old.attempt >= new.attempt]
        last.append(new)
    return last


def call_reward(call: ToolUse, config: RewardConfig) -> float:
    """The immediate reward of one tool call, for credit by step: readable arguments, valid call, successful tool."""
    return math.fsum(
        (config.parsed * _is_object(call.arguments), config.call_valid * call.valid, config.tool_succeeded * call.ok)
    )


def _signals(state: Mapping[str, Any], records: Sequence[CallRecord], task: ResearchTask) -> dict[str, float]:
    """Every part that needs no judge, before its weight."""
    answers = [record for record in records if isinstance(record, ModelCall)]
    tools = [record for record in records if isinstance(record, ToolUse)]
    first = [bool(call.parsed) for call in answers if call.parsed is not None and not call.repair]
    if not first:
        raise ValueError(f"task {task.id}: no role's answer is among the {len(records)} records: observe the society")
    sources = [source["text"] for source in sources_seen(state["messages"])]
    return {
        "alignment": float(aligned(state["final_answer"], task.label)),
        "parsed": sum(first) / len(first),
        "call_valid": float(min(sum(call.valid for call in tools), COUNTED_CALLS)),
        "tool_succeeded": float(min(sum(call.ok for call in tools), COUNTED_CALLS)),
        "repeated_call": float(_repeats(tools)),
        "unverifiable_quote": float(len(missing_quotes(state["refined_hypothesis"]["evidence"], sources))),
        "overlong": float(any(call.finish_reason == "length" for call in answers)),
        "broken_rule": float(sum(record.rule is not None for record in records)),
    }


def _repeats(tools: Sequence[ToolUse]) -> int:
    """Number of calls that repeat an earlier call of the same visit word for word, so that its result was known."""
    counts = Counter((call.role, call.visit, call.tool, call.arguments) for call in tools)
    return sum(times - 1 for times in counts.values())


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(json.loads(arguments), dict)
    except json.JSONDecodeError:
        return False
