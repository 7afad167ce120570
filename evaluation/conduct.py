"""Fills in what an evaluation lacks: rollouts of its stages, the single agent, the second judge, the canaries.

What is recorded is never made again, so an interrupted evaluation goes on where it was.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol, TypeVar

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
from evaluation.baselines import majority, tfidf
from evaluation.canaries import Work, canaries_of
from evaluation.direct import DirectRollouts
from evaluation.plan import SELECTION
from evaluation.recorded import own_phase, recorded, side_file
from evaluation.rollouts import RolloutInput, RolloutRecord
from evaluation.single_agent import single_agent, single_name
from evaluation.study import GATE, BaselineAnswer, Judged, Plan, Stage

Again = Literal["nothing", "failed", "everything"]
"""What is made again although it is recorded: "failed" is all that failed or has no score."""
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
        selector: Who chooses among hypotheses in a stage.
        again: What is made again.
    """

    run: Run
    plan: Plan
    config: Config
    dataset: Dataset
    toolbox: Tools
    auditor: Auditor | None
    progress: Progress
    selector: Callable[[Stage], Selector]
    again: Again = "nothing"

    def missing(self, stage: Stage) -> list[RolloutInput]:
        """The rollouts of `stage` that are to be made."""
        there = {} if self.again == "everything" else recorded(self.run, self.plan, stage)
        if self.again == "failed":
            there = {key: found for key, found in there.items() if found[0].reward is not None}
        phase, seed = own_phase(self.plan.split, stage), self.config.seed
        return [
            replace(RolloutInput.of(task, GATE, repeat, seed), phase=phase)
            for repeat in range(self.plan.repeats)
            for task in self._tasks()
            if (task.id, repeat) not in there
        ]

    def baselines(self) -> None:
        """Answer with the baselines that need no model; what they answered on other training data is replaced."""
        known = {(row["baseline"], row["task_id"], row["repeat"]): row for row in self._rows("baselines")}
        for answers in (majority, tfidf):
            found = answers(self.dataset.train, self._tasks())
            new = [one for one in found if known.get((one.baseline, one.task_id, one.repeat)) != asdict(one)]
            self._write("baselines", new)

    def single_stages(self) -> list[Stage]:
        """The stages whose junior is to answer alone and has not done so."""
        return [stage for stage in self.plan.alone if self._unanswered(single_name(stage.name))]

    def needs_models(self, todo: Mapping[str, Sequence[RolloutInput]]) -> bool:
        """Whether anything is left that takes a model of the run."""
        return any(todo.values()) or bool(self.single_stages()) or bool(self._canaries("judge", self._judge_name()))

    async def run_stages(self, servers: ModelServers, todo: Mapping[str, Sequence[RolloutInput]]) -> None:
        """Make the rollouts in `todo`, by stage name, and whatever else needs the run's models.

        Raises:
            UnreachableError: A model server cannot be reached.
            RunError: The model server has ended, or a stage's models are not those that the run was made with.
        """
        model = HttpModel(servers.endpoints, max_retries=self.config.evaluation.retries)
        direct = DirectRollouts(self.run, self.config, model, self.toolbox)
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
                        # Closed at once when this ends early: what is under way must not fail on a closed model.
                        async with aclosing(direct.rollouts(inputs, stage, self.selector(stage))) as records:
                            async for record in records:
                                if record.status == "failed":
                                    servers.check()
                                self.progress.add(record)
                if stage.name in alone:
                    await self._single(model, stage)
            await self._try_canaries(Auditor.of_training(model, self._judge_name()))
        finally:
            await model.aclose()

    async def audit(self) -> None:
        """Have the second judge score every rollout of the plan that it has not scored, and its canaries.

        Raises:
            UnreachableError: The second judge cannot be reached; what it scored before is recorded.
        """
        if self.auditor is None:
            return
        done = self._scored("audit", "auditor", self.auditor.model)
        records = [
            record
            for stage in self.plan.stages
            for record, _ in recorded(self.run, self.plan, stage).values()
            if record.status == "succeeded" and record.rollout_id not in done
        ]
        await self._make("audit", "second judge", records, self.auditor.audit)
        await self._try_canaries(self.auditor)

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
        served = {**named, **await asyncio.to_thread(servers.versions)}
        for name, version in stage.versions.items():
            if name != SELECTION and served.get(name) != version:
                raise RunError(
                    f"stage {stage.name} was made with {name}={version}, but {served.get(name)} is served: the run's "
                    "models must be the same"
                )

    async def _single(self, model: HttpModel, stage: Stage) -> None:
        left = self._unanswered(single_name(stage.name))
        tasks = {task.id: task for task in self._tasks()}

        async def answer(key: tuple[str, int]) -> BaselineAnswer:
            task_id, repeat = key
            seed = RolloutInput.of(tasks[task_id], "single", repeat, self.config.seed).seed
            return await single_agent(model, tasks[task_id], stage=stage.name, repeat=repeat, seed=seed)

        await self._make("baselines", f"single agent, {stage.title}", left, answer)

    async def _try_canaries(self, judge: Auditor) -> None:
        """Have `judge` score the canaries that it has not scored."""

        async def score(canary: tuple[str, Work]) -> Judged:
            return await judge.score(*canary)

        name = "judge" if judge.judge == "judge" else "second judge"
        await self._make("canaries", f"canaries, {name}", self._canaries(judge.judge, judge.model), score)

    def _canaries(self, judge: Literal["judge", "auditor"], model: str) -> list[tuple[str, Work]]:
        """Work that deserves little, made from rollouts of the first stage, that a judge has not scored."""
        done = self._scored("canaries", judge, model)
        records = [record for record, _ in recorded(self.run, self.plan, self.plan.stages[0]).values()]
        return [(subject, work) for subject, work in canaries_of(records) if subject not in done]

    async def _make(self, file: str, title: str, items: Sequence[Item], work: Callable[[Item], Awaitable[Any]]) -> None:
        """Record what `work` gives for each item as it comes, so many at a time as rollouts are."""
        if not items:
            return
        with self.progress.work(title, len(items)) as advance:
            async with aclosing(_at_once(items, work, self.config.evaluation.concurrency)) as results:
                number = 0
                async for found in results:
                    self._write(file, [found])
                    number += 1
                    advance(number, "")

    def _tasks(self) -> list[ResearchTask]:
        known = {task.id: task for task in self.dataset.tasks}
        return [known[task.id] for task in self.plan.tasks]

    def _judge_name(self) -> str:
        return self.plan.stages[0].versions["judge"]

    def _unanswered(self, name: str) -> list[tuple[str, int]]:
        """Task and repeat of what the single agent of that name has not answered."""
        rows = [] if self.again == "everything" else self._rows("baselines")
        done = {(row["task_id"], row["repeat"]) for row in rows if row["baseline"] == name and self._counts(row)}
        keys = [(task.id, repeat) for repeat in range(self.plan.repeats) for task in self.plan.tasks]
        return [key for key in keys if key not in done]

    def _scored(self, file: str, judge: str, model: str) -> set[str]:
        """What a judge has scored already."""
        rows = [row for row in self._rows(file) if (row["judge"], row["model"]) == (judge, model)]
        return {row["subject"] for row in rows if self._counts(row)}

    def _counts(self, row: Mapping[str, Any]) -> bool:
        """Whether a recorded answer need not be made again."""
        return self.again != "failed" or row["error"] is None

    def _rows(self, name: str) -> list[dict[str, Any]]:
        return list(read_lines(self.run.path / side_file(self.plan.split, name)))

    def _write(self, name: str, rows: Iterable[Any]) -> None:
        file = self.run.path / side_file(self.plan.split, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        for row in rows:
            append_line(file, asdict(row))


async def _at_once(
    items: Iterable[Item], work: Callable[[Item], Awaitable[Found]], limit: int
) -> AsyncGenerator[Found, None]:
    """Results of `work` as they come, at most `limit` under way."""
    free = asyncio.Semaphore(limit)

    async def one(item: Item) -> Found:
        async with free:
            return await work(item)

    tasks = [asyncio.create_task(one(item)) for item in items]
    try:
        for done in asyncio.as_completed(tasks):
            yield await done
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
