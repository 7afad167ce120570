"""Fills in what an evaluation lacks: rollouts of its stages, the single agent, the second judge, the canaries.

What is recorded is never made again, so an interrupted evaluation goes on where it was.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, TypeVar

from agents.context import Selector, Tools
from chimera.config import Config
from chimera.data import Dataset
from chimera.errors import RunError
from chimera.jsonl import append_line, read_lines
from chimera.runs import Run
from chimera.serving.checkpoint import locate
from chimera.serving.client import HttpModel
from chimera.serving.process import ModelServers
from chimera.types import ResearchTask
from evaluation.auditor import Auditor
from evaluation.baselines import MAJORITY, SINGLE, TFIDF, majority, tfidf
from evaluation.canaries import canaries_of
from evaluation.direct import DirectRollouts, RewardFunction
from evaluation.plan import SELECTION
from evaluation.rollouts import RolloutInput, RolloutRecord
from evaluation.single_agent import single_agent, single_name
from evaluation.study import GATE, BaselineAnswer, Plan, Stage, own_phase, recorded, side_file

Item = TypeVar("Item")
Found = TypeVar("Found")


class Progress(Protocol):
    """Shows how far the evaluation is (see `training.view.View`)."""

    def phase(
        self, name: str, total: int, versions: Mapping[str, str], *, table: bool = True
    ) -> AbstractContextManager[None]:
        """Rollouts of one stage are made."""
        ...

    def add(self, record: RolloutRecord) -> None:
        """One more has ended."""
        ...

    def work(self, name: str, total: int) -> AbstractContextManager[Callable[[int, str], None]]:
        """Something else is done, in `total` pieces."""
        ...


@dataclass(frozen=True)
class Conductor:
    """Makes what is missing of an evaluation.

    Attributes:
        run: Owned by this process.
        plan: What is evaluated.
        config: The run's configuration, with the evaluation's own settings.
        dataset: The data that the plan's tasks are from.
        toolbox: The society's tools.
        auditor: The second judge; None without one.
        progress: Shows how far it is.
        reward: Computes rewards.
        selector: Who chooses among hypotheses in a stage.
    """

    run: Run
    plan: Plan
    config: Config
    dataset: Dataset
    toolbox: Tools
    auditor: Auditor | None
    progress: Progress
    reward: RewardFunction
    selector: Callable[[Stage], Selector]

    def missing(self, stage: Stage, *, again: str = "nothing") -> list[RolloutInput]:
        """The rollouts of `stage` that are to be made.

        Args:
            stage: The stage.
            again: "failed" makes failed and unscored rollouts once more, "everything" all of them.
        """
        there = {} if again == "everything" else recorded(self.run, self.plan, stage)
        if again == "failed":
            there = {key: found for key, found in there.items() if found[0].reward is not None}
        phase, seed = own_phase(self.plan.split, stage), self.config.seed
        return [
            replace(RolloutInput.of(task, GATE, repeat, seed), phase=phase)
            for repeat in range(self.plan.repeats)
            for task in self._tasks()
            if (task.id, repeat) not in there
        ]

    def baselines(self) -> None:
        """Answer with the baselines that need no model, unless that is done."""
        for name, answers in ((MAJORITY, majority), (TFIDF, tfidf)):
            if self._unanswered(name):
                self._write("baselines", answers(self.dataset.train, self._tasks()))

    def single_stages(self) -> list[Stage]:
        """The stages whose junior answers alone and has not done so: the first, and the last if its junior differs."""
        stages = {stage.versions["junior"]: stage for stage in (self.plan.final, self.plan.stages[0])}
        return [stage for stage in stages.values() if self._unanswered(single_name(stage.name))]

    def canaries_left(self) -> bool:
        """Whether a judge has not been tried with canaries."""
        judges = {("judge", self._judge_name())} | ({("auditor", self.auditor.model)} if self.auditor else set())
        return not judges <= {(row["judge"], row["model"]) for row in self._rows("canaries")}

    def needs_models(self, todo: Mapping[str, Sequence[RolloutInput]]) -> bool:
        """Whether anything is left that takes a model of the run."""
        return any(todo.values()) or bool(self.single_stages()) or self.canaries_left()

    async def run_stages(self, servers: ModelServers, todo: Mapping[str, Sequence[RolloutInput]]) -> None:
        """Make the rollouts in `todo`, by stage name, and whatever else needs the run's models.

        Raises:
            UnreachableError: A model server cannot be reached.
            RunError: The model server has ended, or a stage's models are not those that the run was made with.
        """
        model = HttpModel(servers.endpoints, max_retries=self.config.evaluation.retries)
        direct = DirectRollouts(self.run, self.config, model, self.toolbox, self.reward)
        alone = {stage.name for stage in self.single_stages()}
        try:
            for stage in self.plan.stages:
                inputs = todo.get(stage.name, ())
                if not inputs and stage.name not in alone:
                    continue
                await self._serve(servers, stage)
                if inputs:
                    with self.progress.phase(
                        own_phase(self.plan.split, stage), len(inputs), stage.versions, table=False
                    ):
                        async for record in direct.rollouts(inputs, stage, self.selector(stage)):
                            if record.status == "failed":
                                servers.check()
                            self.progress.add(record)
                if stage.name in alone:
                    await self._single(model, stage)
            if self.canaries_left():
                await self._canaries(model)
        finally:
            await model.aclose()

    async def audit(self) -> None:
        """Have the second judge score every rollout of the plan that it has not scored."""
        if self.auditor is None:
            return
        auditor = self.auditor
        done = {row["subject"] for row in self._rows("audit") if row["model"] == auditor.model}
        records = [
            record
            for stage in self.plan.stages
            for record, _ in recorded(self.run, self.plan, stage).values()
            if record.status == "succeeded" and record.rollout_id not in done
        ]
        if records:
            with self.progress.work("second judge", len(records)) as advance:
                number = 0
                async for judged in self._at_once(records, auditor.audit):
                    self._write("audit", [judged])
                    number += 1
                    advance(number, auditor.model)

    async def _serve(self, servers: ModelServers, stage: Stage) -> None:
        """Put the stage's weights behind the models."""
        policies = {policy.learner: policy for policy in stage.policies}
        served = await asyncio.to_thread(servers.versions)
        for learner in ("junior", "senior"):
            version = stage.versions.get(learner)
            if version is None or served.get(learner, version) == version:
                continue
            policy = policies.get(learner)
            folder = self.run.path / policy.folder if policy else locate(getattr(self.config.models, learner).path)
            await asyncio.to_thread(servers.load_weights, learner, folder, version=version)
        named = {name: endpoint.model for name, endpoint in servers.endpoints.items()}
        now = {**named, **await asyncio.to_thread(servers.versions)}
        wrong = {name: now.get(name) for name, version in stage.versions.items() if name not in (SELECTION,)}
        for name, version in wrong.items():
            if version != stage.versions[name]:
                raise RunError(
                    f"stage {stage.name} was made with {name}={stage.versions[name]}, but {version} is served: the "
                    "run's models must be the same"
                )

    async def _single(self, model: HttpModel, stage: Stage) -> None:
        left = self._unanswered(single_name(stage.name))
        tasks = {task.id: task for task in self._tasks()}

        async def answer(key: tuple[str, int]) -> BaselineAnswer:
            task_id, repeat = key
            seed = RolloutInput.of(tasks[task_id], "single", repeat, self.config.seed).seed
            return await single_agent(model, tasks[task_id], stage=stage.name, repeat=repeat, seed=seed)

        with self.progress.work(f"single agent, {stage.title}", len(left)) as advance:
            number = 0
            async for found in self._at_once(left, answer):
                self._write("baselines", [found])
                number += 1
                advance(number, "")

    async def _canaries(self, model: HttpModel) -> None:
        """Try both judges with protocols that deserve little, made from a good rollout of the first stage."""
        records = [record for record, _ in recorded(self.run, self.plan, self.plan.stages[0]).values()]
        judges = [Auditor.of_training(model, self._judge_name()), *([self.auditor] if self.auditor else [])]
        for subject, work in canaries_of(records):
            self._write("canaries", [await judge.score(subject, work) for judge in judges])

    async def _at_once(self, items: Iterable[Item], work: Callable[[Item], Awaitable[Found]]) -> AsyncIterator[Found]:
        """Results of `work` as they come, so many at a time as rollouts are."""
        limit = asyncio.Semaphore(self.config.evaluation.concurrency)

        async def one(item: Item) -> Found:
            async with limit:
                return await work(item)

        tasks = [asyncio.create_task(one(item)) for item in items]
        try:
            for done in asyncio.as_completed(tasks):
                yield await done
        finally:
            for task in tasks:
                task.cancel()

    def _tasks(self) -> list[ResearchTask]:
        known = {task.id: task for task in self.dataset.tasks}
        return [known[task.id] for task in self.plan.tasks]

    def _judge_name(self) -> str:
        return self.plan.stages[0].versions["judge"]

    def _unanswered(self, name: str) -> list[tuple[str, int]]:
        repeats = self.plan.repeats if name.startswith(SINGLE) else 1
        done = {(row["task_id"], row["repeat"]) for row in self._rows("baselines") if row["baseline"] == name}
        return [
            (task.id, repeat) for repeat in range(repeats) for task in self.plan.tasks if (task.id, repeat) not in done
        ]

    def _rows(self, name: str) -> list[dict[str, Any]]:
        return list(read_lines(self.run.path / side_file(self.plan.split, name)))

    def _write(self, name: str, rows: Iterable[Any]) -> None:
        file = self.run.path / side_file(self.plan.split, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        for row in rows:
            append_line(file, asdict(row))
