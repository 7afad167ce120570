"""Rollouts that go on from a recorded one: what would have happened if something had been different there.

The state before a role is made by running the society with the recorded answers (`evaluation.rollout.replay`), so it is
what the same code makes of them. The rest of the graph is asked of the models, with the seeds of the recorded rollout.
"""

import asyncio
import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agents.roles import ROLES
from chimera.core.errors import ChimeraError, RunError
from chimera.core.types import ResearchTask
from chimera.run.jsonl import append_line
from chimera.run.policies import Policy
from evaluation.records.rollouts import RolloutInput, RolloutRecord
from evaluation.traces.calls import last_outcome, model_calls
from training.learning.episodes import Episode
from training.watch.summary import dollars, tokens_used

if TYPE_CHECKING:
    from agents.society import Start
    from training.lab.lab import Lab

REPLAYS = "replays.jsonl"
"""In the phase's folder: of which rollout a replay is, from where, and what was replaced, one a line."""


class Replays:
    """One phase's replays, recorded as rollouts of `<phase>--replays`, which no reader of training rollouts reads."""

    def __init__(self, lab: "Lab", phase: str) -> None:
        self._lab = lab
        self._label = f"{phase}--replays"
        self._file = lab.run.path / "phases" / phase / REPLAYS
        self._starting = asyncio.Semaphore(lab.config.rollouts.concurrency)
        self._making: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._tasks = {task.id: task for task in lab.dataset.tasks}
        self._known = {data["rollout_id"]: RolloutRecord.load(data) for data in lab.run.rollouts(self._label)}

    async def make(self, episode: Episode, at: str, instead: Mapping[str, Any], policies: Sequence[Policy]) -> Episode:
        """Run the society from `at` on as in `episode`; one that is recorded is not made again.

        Args:
            at: The role that works first.
            instead: Fields of the state before it (`agents.state.ResearchState`), with other values.
            policies: Candidates that work in this replay beside what is live.

        Raises:
            RunError: The state cannot be rebuilt from the record, or the model server has ended.
            ModelError: A candidate's weights do not fit the model that they are to replace.
        """
        lab, record = self._lab, episode.record
        versions = {**lab.policy_versions, **{policy.slot: policy.version for policy in policies}}
        about = {"of": record.rollout_id, "at": at, "instead": dict(instead), "versions": versions}
        rollout_id = f"re-{hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:12]}"
        async with self._making[rollout_id]:
            if rollout_id in self._known:
                return lab.episode(self._known[rollout_id])
            async with self._starting, lab.candidates.serve(policies) as candidates:
                start = await self._start(episode, at, instead)
                append_line(self._file, {"rollout_id": rollout_id, **about}, sync=True)
                # A candidate draws anew: what a rollout is compared with must not depend on the same random numbers.
                seed = record.seed + 1 if policies else record.seed
                input_ = RolloutInput(self._task(record), self._label, record.repeat, seed)
                replay = await lab.replay(rollout_id, input_, candidates, start)
                self._known[rollout_id] = replay.record
                return replay

    def spent(self) -> dict[str, float]:
        """How many replays the phase has made, and their tokens; the rebuilt part of each costs nothing."""
        if not self._known:
            return {}
        config, records = self._lab.config, self._known.values()
        used = [entry for record in records for entry in tokens_used(record, config.judge_of(record.task_id))]
        figures: dict[str, float] = {
            "replays": len(records),
            "replay_prompt_tokens": sum(read for _, read, _ in used),
            "replay_completion_tokens": sum(written for _, _, written in used),
        }
        if any(slot in config.evaluation.prices for slot, _, _ in used):
            figures["replay_usd"] = dollars(used, config.evaluation.prices)
        return figures

    async def _start(self, episode: Episode, at: str, instead: Mapping[str, Any]) -> "Start":
        """What the society had done before `at`, with `instead` in place of what it was."""
        from agents.state import ResearchState
        from evaluation.rollout.replay import Replay

        record, config = episode.record, self._lab.config
        if at not in ROLES:
            raise RunError(f"a replay cannot begin at {at!r}: the roles are {', '.join(ROLES)}")
        if unknown := set(instead) - set(ResearchState.__annotations__):
            raise RunError(f"a replay cannot replace {sorted(unknown)[0]!r}, which is no field of the society's state")
        trace = await asyncio.to_thread(episode.trace)
        reported = last_outcome(trace)
        if record.status != "succeeded" or reported is None:
            raise RunError(f"rollout {record.rollout_id} cannot be replayed: it failed ({record.error})")
        attempt_id, outcome = reported
        calls = model_calls(trace, attempt_id=attempt_id)
        try:
            replay = Replay(config, self._lab.run.path)
            start = await replay.before(at, record, calls, outcome["calls"], self._task(record))
        except ChimeraError as error:
            raise RunError(f"rollout {record.rollout_id} cannot be replayed from {at}: {error}") from error
        state: Any = {**start.state, **instead}
        return replace(start, state=state)

    def _task(self, record: RolloutRecord) -> ResearchTask:
        if record.task_id not in self._tasks:
            raise RunError(f"rollout {record.rollout_id} is on task {record.task_id}, which the data does not hold")
        return self._tasks[record.task_id]
