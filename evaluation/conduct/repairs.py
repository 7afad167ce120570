"""Replays of wrong answers with one step made right (see `evaluation.records.repairs`)."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from agents.context import Candidates, Choice, LearnedSociety, Selector
from agents.roles import SUPERVISOR
from chimera.config.tree import Config
from chimera.core.errors import RunError
from chimera.core.types import ResearchTask
from chimera.run.directory import Run
from chimera.serving.client import Endpoint
from evaluation.conduct.at_once import at_once
from evaluation.records.repairs import REPAIR, Repair
from evaluation.records.rollouts import RolloutInput, RolloutRecord
from evaluation.records.study import Stage
from evaluation.rollout.crew import Crew
from evaluation.rollout.make import Start
from evaluation.rollout.replay import Replay
from evaluation.rollout.worker import Job
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


class Repairs:
    """Makes the replays of one stage, whose policies are live.

    Args:
        run: The run that records them; owned by this process.
        phase: The phase under which the replays are recorded.
    """

    def __init__(
        self, run: Run, config: Config, crew: Crew, endpoints: Mapping[str, Endpoint], stage: Stage, phase: str
    ) -> None:
        self._run = run
        self._crew = crew
        self._endpoints = endpoints
        self._stage = stage
        self._phase = phase
        self._replay = Replay(config, run.path)
        self._rebuilding = asyncio.Lock()

    async def make(
        self,
        repairs: Sequence[Repair],
        selector: Callable[[], Selector],
        learned: LearnedSociety,
        task_of: Callable[[str], ResearchTask],
    ) -> AsyncGenerator[RolloutRecord, None]:
        """Replay each repair. Each replay, failed or not, is on disk when it is yielded.

        Args:
            selector: Gives who chooses among hypotheses where the repair does not.
            learned: What was learned for the society as a whole.

        Raises:
            UnreachableError: A model server cannot be reached.
            RunError: A rollout cannot be rebuilt from its trace.
        """

        async def replay(repair: Repair) -> RolloutRecord:
            return await self._one(repair, selector, learned, task_of(repair.of.task_id))

        async with aclosing(at_once(repairs, replay, self._crew.size)) as records:
            async for record in records:
                yield record

    async def _one(
        self, repair: Repair, selector: Callable[[], Selector], learned: LearnedSociety, task: ResearchTask
    ) -> RolloutRecord:
        of, author = repair.of, repair.author
        if repair.step == "supervisor" and author:
            selector = partial(GivenChoice, author)
        async with self._rebuilding:
            start = await start_of(repair, self._replay, self._run.path, task)
        input_ = RolloutInput(task, self._phase, of.repeat, of.seed)
        versions = self._stage.versions
        job = Job(repair.rollout_id, input_, self._endpoints, versions, selector, start=start, learned=learned)
        record, _ = await self._crew.rollout(job)
        return record


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
        donor: Any = (await _before(SUPERVISOR, repair.donor, replay, folder, task)).state
        state = _with_junior(state, donor, str(repair.author))
    elif repair.step == "refiner":
        hypothesis = {key: value for key, value in state["selected_hypothesis"].items() if key != "author"}
        state = {**state, "refined_hypothesis": hypothesis, "unreviewed_hypothesis": hypothesis}
    return replace(start, state=state)


def _with_junior(state: Any, donor: Any, author: str) -> Any:
    """`state` with one junior's hypothesis and messages as in `donor`."""
    replacement = {hypothesis["author"]: hypothesis for hypothesis in donor["initial_hypotheses"]}[author]
    return {
        **state,
        "messages": {**state["messages"], author: donor["messages"][author]},
        "initial_hypotheses": [
            replacement if hypothesis["author"] == author else hypothesis for hypothesis in state["initial_hypotheses"]
        ],
    }


async def _before(role: str, record: RolloutRecord, replay: Replay, folder: Path, task: ResearchTask) -> Start:
    assert record.trace is not None
    trace = await asyncio.to_thread(spans.read, folder / record.trace)
    reported = last_outcome(trace)
    if reported is None:
        raise RunError(f"{record.trace} holds no outcome, so rollout {record.rollout_id} cannot be replayed")
    attempt_id, outcome = reported
    return await replay.before(role, record, model_calls(trace, attempt_id=attempt_id), outcome["calls"], task)
