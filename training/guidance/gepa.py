"""Instructions by reflective search over prompts: the library `gepa`, with rollouts of the society behind its adapter.

A candidate is a text for each learner: what follows the first lines of its roles' prompts. GEPA keeps the candidates
that are best on some task, has a model rewrite one of them from what went wrong on a few tasks, and tries that on all
tasks if it is better on these. It runs in a thread; rollouts and questions go through the bench, so what a run has
recorded is not made again, and a resumed search takes the same way.

Source: Agrawal et al. 2025, "GEPA: Reflective prompt evolution can outperform reinforcement learning".
"""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, ClassVar, TypeVar

from gepa.core.adapter import EvaluationBatch, ProposalFn
from gepa.core.state import GEPAState
from pydantic import Field

from agents.context import Guided
from chimera.config.tree import Config
from chimera.core.errors import ChimeraError
from chimera.core.types import ResearchTask
from chimera.data.tasks import Dataset
from chimera.run.policies import Part
from evaluation.records.rollouts import RolloutRecord
from training.guidance.budget import Budget, BudgetSpentError
from training.guidance.role_groups import RoleGroup, failure, role_groups, tells_too_much
from training.guidance.search import GuidanceSearch, SearchSettings, check_search
from training.guidance.writer import INSTRUCTIONS, Instructions, slot_of, write
from training.learning.base import Bench, Learned, PhasePlan, live_graph
from training.learning.states import check_teacher
from training.watch.summary import aligned

Value = TypeVar("Value")
ROLLOUTS = 150
"""Rollouts by default, and rewritings at most: one that was tried before costs no rollout."""


class GepaSettings(SearchSettings):
    """Instructions by reflective search over prompts (the library gepa)."""

    model: str | None = Field(default=None, description="slot whose model rewrites them; without it the role's own")
    minibatch: int = Field(default=3, ge=1, le=1000, description="tasks from which one rewriting is made and judged")
    tasks: int = Field(
        default=16, ge=3, le=1_000_000, description="training tasks that candidates are tried on: its search share"
    )
    budget: Budget = Budget(rollouts=ROLLOUTS)

    def asks(self) -> tuple[str, ...]:
        return () if self.model is None else (self.model,)


class Gepa:
    """GEPA over the instructions of the phase's roles."""

    Settings = GepaSettings
    part: ClassVar[Part | None] = "guidance"

    def check(self, plan: PhasePlan, settings: GepaSettings, config: Config, dataset: Dataset) -> None:
        check_search(plan, settings, config, dataset)
        check_teacher(plan, "model", slot_of(settings.model, plan.roles, config), [INSTRUCTIONS.schema], config)

    async def learn(self, plan: PhasePlan, settings: GepaSettings, bench: Bench) -> Learned:
        """Search until the budget is spent."""
        earlier = [episode.record for episode in await bench.episodes()]
        search = GuidanceSearch(plan, settings, bench, earlier)
        adapter = _Adapter(settings, bench, search)
        await asyncio.to_thread(adapter.optimize)
        return search.learned(adapter.counts)


class _Adapter:
    """The society as a `gepa.GEPAAdapter`: tasks are its data, rollouts its trajectories.

    Attributes:
        counts: Rewritings by what became of them.
    """

    def __init__(self, settings: GepaSettings, bench: Bench, search: GuidanceSearch) -> None:
        self._settings = settings
        self._bench = bench
        self._search = search
        self._loop = asyncio.get_running_loop()
        learners = role_groups(search.plan.roles, search.told, live_graph(bench))
        self._learners = {learner.name: learner for learner in learners}
        self._failed: Exception | None = None
        self._written = 0
        self.propose_new_texts: ProposalFn | None = self._propose
        self.counts = {"rewritten": 0, "dropped": 0, "unreadable": 0}

    def optimize(self) -> None:
        """Run GEPA to its end, in a thread of its own.

        Raises:
            ChimeraError: A rollout or a question could not be made.
        """
        from gepa.api import optimize

        seed_candidate = {name: learner.instructions for name, learner in self._learners.items()}
        with suppress(BudgetSpentError):
            optimize(
                seed_candidate,
                trainset=self._search.tasks,
                valset=self._search.tasks,
                adapter=self,
                reflection_minibatch_size=min(self._settings.minibatch, len(self._search.tasks)),
                stop_callbacks=self._is_over,
                logger=_Silent(),
                seed=self._bench.config.seed,
            )
        if self._failed is not None and not isinstance(self._failed, BudgetSpentError):
            raise self._failed

    def _is_over(self, gepa_state: GEPAState[Any, Any]) -> bool:
        """True if something failed, or a candidate is right on every task, or only what was tried is written again."""
        right = max(gepa_state.program_full_scores_val_set, default=0.0)
        return self._failed is not None or right >= 1.0 or self._written >= (self._settings.budget.rollouts or ROLLOUTS)

    def evaluate(
        self, batch: list[ResearchTask], candidate: dict[str, str], capture_traces: bool = False
    ) -> EvaluationBatch[RolloutRecord, RolloutRecord]:
        """Rollouts of `batch`, as GEPA asks for them: 1 for a right answer, 0 for a wrong one."""
        guidance = self._guidance(candidate)
        whole = len(batch) == len(self._search.tasks)
        records = self._wait(self._search.trial(guidance) if whole else self._search.play(guidance, batch))
        scores = [float(bool(aligned(record))) for record in records]
        return EvaluationBatch(outputs=records, scores=scores, trajectories=records if capture_traces else None)

    def make_reflective_dataset(
        self,
        candidate: dict[str, str],
        eval_batch: EvaluationBatch[RolloutRecord, RolloutRecord],
        components_to_update: list[str],
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """What came of each task, by learner."""
        tasks = {task.id: task for task in self._search.tasks}
        cases = [_case(record, tasks[record.task_id]) for record in eval_batch.trajectories or ()]
        return dict.fromkeys(components_to_update, cases)

    def _propose(
        self,
        candidate: dict[str, str],
        reflective_dataset: Mapping[str, Sequence[Mapping[str, Any]]],
        components_to_update: list[str],
    ) -> dict[str, str]:
        """Instructions rewritten by a model; the old ones where that gives none."""
        return {
            name: self._rewritten(self._learners[name], candidate[name], reflective_dataset[name])
            for name in components_to_update
        }

    def _rewritten(self, learner: RoleGroup, prompt: str, cases: Sequence[Mapping[str, Any]]) -> str:
        slot = slot_of(self._settings.model, learner.roles, self._bench.config)
        self._written += 1
        seed = (self._bench.config.seed * 7919 + self._written) % 2**31
        goal = f"Improve the instructions of {learner.name}."
        inputs = {"member": learner.name, "prompt": prompt, "failures": list(cases)}
        answer = self._wait(write(self._search, slot, INSTRUCTIONS, goal, seed, **inputs))
        if not isinstance(answer, Instructions):
            self.counts["unreadable"] += 1
            return prompt
        if why := tells_too_much(answer.prompt, self._bench.dataset.tasks):
            self.counts["dropped"] += 1
            self._bench.view.note(f"{self._search.plan.name}: instructions are dropped, because {why}")
            return prompt
        self.counts["rewritten"] += 1
        return answer.prompt

    def _guidance(self, candidate: Mapping[str, str]) -> Guided:
        """What roles are told with a candidate's texts; unchanged texts change nothing."""
        guidance = self._search.start
        for name, text in candidate.items():
            learner = self._learners[name]
            if text != learner.instructions:
                for role, prompt in learner.prompts(text).items():
                    guidance = self._search.changed(guidance, role, prompt=prompt)
        return guidance

    def _wait(self, work: Coroutine[Any, Any, Value]) -> Value:
        """The result of `work`, done in the run's event loop. GEPA goes on after an exception, so it is kept."""
        if self._failed is not None:
            work.close()
            raise self._failed
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except (BudgetSpentError, ChimeraError, OSError, CancelledError) as error:
            self._failed = error
            raise


def _case(record: RolloutRecord, task: ResearchTask) -> dict[str, Any]:
    """What came of a task, for whoever rewrites the instructions."""
    fault = failure(record, None)
    return {"goal": task.goal, **({"answered": record.answer, "right": record.label} if fault is None else fault)}


class _Silent:
    """GEPA's log: the live view and the metrics say what happens."""

    def log(self, message: str) -> None:
        return
