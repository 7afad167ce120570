"""Replays of wrong answers with one step made right (see `evaluation.records.repairs`)."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from agents.context import Candidates, Choice, Selector
from agents.roles import REFINER
from agents.society import Start
from agents.state import by_author
from chimera.core.errors import RunError
from chimera.core.types import ResearchTask
from evaluation.records.repairs import REPAIR, Repair
from evaluation.records.rollouts import RolloutRecord
from evaluation.rollout.replay import Replay
from evaluation.traces import spans
from evaluation.traces.calls import last_outcome, model_calls


class GivenChoice:
    """Chooses the author that a repair names; the supervisor's model justifies it."""

    def __init__(self, author: str) -> None:
        self._author = author

    def propose(self, candidates: Candidates, seed: int | None) -> Choice:
        return Choice(self._author, REPAIR)

    def select(self, candidates: Candidates, preferred: str, seed: int | None) -> Choice:
        """The author, whatever the model prefers."""
        return Choice(self._author, REPAIR)


def selector_of(repair: Repair, usual: Callable[[], Selector]) -> Callable[[], Selector]:
    """Gives who chooses among hypotheses in a replay: the author that the repair names, else who does it as usual."""
    return partial(GivenChoice, repair.author) if repair.step == "supervisor" and repair.author else usual


async def start_of(repair: Repair, replay: Replay, folder: Path, task: ResearchTask) -> Start:
    """What the society had done before the repair's first role, with the step made right.

    Args:
        replay: Rebuilds states from traces; used for one rollout at a time.

    Raises:
        ChimeraError: A trace cannot be read, or does not hold what its record says.
    """
    start = await _before(repair.at, repair.of, replay, folder, task)
    state: Any = start.state
    if repair.step == "juniors":
        assert repair.donor is not None
        donor: Any = (await _before(REFINER, repair.donor, replay, folder, task)).state  # After its last searches.
        author = str(repair.author)
        right = [hypothesis for hypothesis in donor["initial_hypotheses"] if hypothesis["author"] == author]
        state = {
            **state,
            "messages": {**state["messages"], author: donor["messages"][author]},
            "initial_hypotheses": by_author(state["initial_hypotheses"], right),
        }
    elif repair.step == "refiner":
        hypothesis = {key: value for key, value in state["selected_hypothesis"].items() if key != "author"}
        state = {**state, "refined_hypothesis": hypothesis, "unreviewed_hypothesis": hypothesis}
    return replace(start, state=state)


async def _before(role: str, record: RolloutRecord, replay: Replay, folder: Path, task: ResearchTask) -> Start:
    assert record.trace is not None
    trace = await asyncio.to_thread(spans.read, folder / record.trace)
    reported = last_outcome(trace)
    if reported is None:
        raise RunError(f"{record.trace} holds no outcome, so rollout {record.rollout_id} cannot be replayed")
    attempt_id, outcome = reported
    return await replay.before(role, record, model_calls(trace, attempt_id=attempt_id), outcome["calls"], task)
