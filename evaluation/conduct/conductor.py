"""Fills in what an evaluation lacks: rollouts of its stages, the single agent, the second judge, the canaries.

What is recorded is never made again, so an interrupted evaluation goes on where it was.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol, TypeVar

from agents.context import Tools
from chimera.config.roles import JUDGE
from chimera.config.tree import Config
from chimera.core.errors import RunError
from chimera.core.types import ResearchTask
from chimera.data.tasks import Dataset
from chimera.run.directory import Run
from chimera.run.jsonl import append_line, read_lines
from chimera.serving.client import HttpModel
from chimera.serving.process import ModelServers
from evaluation.conduct.direct import DirectRollouts
from evaluation.conduct.live import Live
from evaluation.measures.baselines import GREEDY, SINGLE, majority, of_stage, reader, tfidf
from evaluation.measures.single_agent import ROLE, single_agent
from evaluation.measures.votes import affordable, with_consistency
from evaluation.records.recorded import baseline_answers, own_phase, recorded, side_file
from evaluation.records.rollouts import RolloutInput, RolloutRecord
from evaluation.records.study import GATE, BaselineAnswer, Judged, Plan, Stage
from evaluation.scores.auditor import Auditor
from evaluation.scores.canaries import Work, canaries_of

Again = Literal["nothing", "failed", "everything"]
"""What is made again although it is recorded: "failed" is all that failed or has no score."""
GREEDY_JUNIOR = "greedy junior"
"""The name under which the juniors' model answers at temperature 0."""
Item = TypeVar("Item")
Found = TypeVar("Found")


class Progress(Protocol):
    """Shows how far the evaluation is (see `training.watch.view.View`)."""

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


@dataclass(frozen=True, slots=True)
class _Asked:
    """Answers of the single agent that are to be made: `samples` of them, from number `first`."""

    kind: str
    task_id: str
    repeat: int
    first: int = 0
    samples: int = 1


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
        again: What is made again.
    """

    run: Run
    plan: Plan
    config: Config
    dataset: Dataset
    toolbox: Tools
    auditor: Auditor | None
    progress: Progress
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
        known = {(one.baseline, one.task_id, one.repeat): one for one in self._answered()}
        for answers in (majority, tfidf, reader):
            found = answers(self.dataset.train, self._tasks())
            new = [one for one in found if known.get((one.baseline, one.task_id, one.repeat)) != one]
            self._write("baselines", new)

    def single_stages(self) -> list[Stage]:
        """The stages with whose weights the junior model is to answer alone and has not done so."""
        return [stages[-1] for name, stages in self._alone_stages().items() if self._calls_left(name, stages)]

    def needs_models(self, todo: Mapping[str, Sequence[RolloutInput]]) -> bool:
        """Whether anything is left that takes a model of the run."""
        return any(todo.values()) or bool(self.single_stages()) or bool(self._canaries("judge", self._judge_name()))

    async def run_stages(self, servers: ModelServers, todo: Mapping[str, Sequence[RolloutInput]]) -> None:
        """Make the rollouts in `todo`, by stage name, and whatever else needs the run's models.

        Raises:
            UnreachableError: A model server cannot be reached.
            RunError: The model server has ended, or a stage's models are not those that the run was made with, or are
                damaged.
        """
        greedy = replace(servers.endpoints[self._alone], temperature=0.0)
        endpoints = {**servers.endpoints, GREEDY_JUNIOR: greedy}
        model = HttpModel(endpoints, max_retries=self.config.evaluation.retries)
        direct = DirectRollouts(self.run, self.config, model, self.toolbox, servers.check)
        alone = {stage.name for stage in self.single_stages()}
        live = await asyncio.to_thread(Live, self.run, self.config.models, servers)
        try:
            for stage in self.plan.stages:
                inputs = todo.get(stage.name, ())
                if not inputs and stage.name not in alone:
                    continue
                await self._serve(live, stage)
                if inputs:
                    with self.progress.phase(
                        own_phase(self.plan.split, stage), len(inputs), stage.versions, table=False
                    ):
                        # Closed at once when this ends early: what is under way must not fail on a closed model.
                        async with aclosing(direct.rollouts(inputs, stage, live.selector())) as records:
                            async for record in records:
                                self.progress.add(record)
                if stage.name in alone:
                    await self._single(model, stage)
            await self._try_canaries(Auditor.of_training(model, self.config.slot(JUDGE), self._judge_name()))
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
        auditor = self.auditor

        async def audit(record: RolloutRecord) -> list[Judged]:
            return [await auditor.audit(record)]

        await self._make("audit", "second judge", records, audit)
        await self._try_canaries(auditor)

    async def _serve(self, live: Live, stage: Stage) -> None:
        """Put the stage's policies live, and make sure that it is what the run was made with."""
        await asyncio.to_thread(live.restore, stage.policies)
        served = await asyncio.to_thread(live.versions)
        for name, version in stage.versions.items():
            if served.get(name) != version:
                raise RunError(
                    f"stage {stage.name} was made with {name}={version}, but {served.get(name)} is served: the run's "
                    "models must be the same"
                )

    async def _single(self, model: HttpModel, stage: Stage) -> None:
        """Have the junior model of `stage`, which is served now, answer alone: once greedily, and sampled.

        How many samples the society's tokens allow is known when each task has one.
        """
        tasks = {task.id: task for task in self._tasks()}
        for name, stages in self._alone_stages().items():
            if stages[-1] != stage:
                continue

            async def answer(asked: _Asked, name: str = name) -> list[BaselineAnswer]:
                task, repeat = tasks[asked.task_id], asked.repeat
                key = GREEDY_JUNIOR if asked.kind == GREEDY else self._alone
                seed = RolloutInput.of(task, "single", repeat, self.config.seed).seed
                options = {"repeat": repeat, "seed": seed, "first": asked.first, "samples": asked.samples}
                return await single_agent(
                    model, task, name=of_stage(asked.kind, name), quotes=self.config.society.quotes, key=key, **options
                )

            await self._make("baselines", f"single calls, {stage.title}", self._unanswered(name), answer)
            votes = self._votes_left(name, stages)
            await self._make("baselines", f"calls for a majority, {stage.title}", votes, answer)

    async def _try_canaries(self, judge: Auditor) -> None:
        """Have `judge` score the canaries that it has not scored."""

        async def score(canary: tuple[str, Work]) -> list[Judged]:
            return [await judge.score(*canary)]

        name = "judge" if judge.judge == "judge" else "second judge"
        await self._make("canaries", f"canaries, {name}", self._canaries(judge.judge, judge.model), score)

    def _canaries(self, judge: Literal["judge", "auditor"], model: str) -> list[tuple[str, Work]]:
        """Work that deserves little, made from rollouts of the first stage, that a judge has not scored."""
        done = self._scored("canaries", judge, model)
        records = [record for record, _ in recorded(self.run, self.plan, self.plan.stages[0]).values()]
        return [(subject, work) for subject, work in canaries_of(records) if subject not in done]

    async def _make(
        self, file: str, title: str, items: Sequence[Item], work: Callable[[Item], Awaitable[Sequence[Any]]]
    ) -> None:
        """Record the rows that `work` gives for each item as they come, with the same concurrency as rollouts."""
        if not items:
            return
        with self.progress.work(title, len(items)) as advance:
            async with aclosing(_at_once(items, work, self.config.evaluation.concurrency)) as results:
                number = 0
                async for found in results:
                    self._write(file, found)
                    number += 1
                    advance(number, "")

    def _tasks(self) -> list[ResearchTask]:
        known = {task.id: task for task in self.dataset.tasks}
        return [known[task.id] for task in self.plan.tasks]

    @property
    def _alone(self) -> str:
        """The slot whose model also answers alone."""
        return self.config.slot(ROLE.name)

    def _judge_name(self) -> str:
        return self.plan.stages[0].versions[self.config.slot(JUDGE)]

    def _alone_stages(self) -> dict[str, list[Stage]]:
        """By the name under which a junior model answers alone: the first and the last stage, where they have it."""
        found: dict[str, list[Stage]] = {}
        for stage in self.plan.ends:
            found.setdefault(self.plan.alone_of(stage).name, []).append(stage)
        return found

    def _calls_left(self, name: str, stages: Sequence[Stage]) -> list[_Asked]:
        return self._unanswered(name) + self._votes_left(name, stages)

    def _unanswered(self, name: str) -> list[_Asked]:
        """The single calls, sampled and greedy, that have not been made of the junior model called `name`."""
        return [
            _Asked(kind, task_id, repeat)
            for kind in (SINGLE, GREEDY)
            for done in [self._samples(of_stage(kind, name))]
            for task_id, repeat in self._keys()
            if (task_id, repeat, 0) not in done
        ]

    def _votes_left(self, name: str, stages: Sequence[Stage]) -> list[_Asked]:
        """The further samples that self-consistency needs for all of `stages`."""
        if not with_consistency(self.config):
            return []
        single = of_stage(SINGLE, name)
        calls = [one for one in self._answered() if one.baseline == single and one.sample == 0]
        votes = 1
        for stage in stages:
            records = [record for record, _ in recorded(self.run, self.plan, stage).values()]
            votes = max(votes, affordable(records, calls) or 1)
        done = self._samples(single)
        found: list[_Asked] = []
        for task_id, repeat in self._keys():
            missing = [number for number in range(1, votes) if (task_id, repeat, number) not in done]
            if missing:
                found.append(_Asked(SINGLE, task_id, repeat, missing[0], votes - missing[0]))
        return found

    def _samples(self, name: str) -> set[tuple[str, int, int]]:
        """Task, repeat and number of what need not be asked again under that name."""
        answers = [] if self.again == "everything" else self._answered()
        return {
            (one.task_id, one.repeat, one.sample)
            for one in answers
            if one.baseline == name and (self.again != "failed" or one.error is None)
        }

    def _answered(self) -> list[BaselineAnswer]:
        return baseline_answers(self.run, self.plan)

    def _keys(self) -> list[tuple[str, int]]:
        return [(task.id, repeat) for repeat in range(self.plan.repeats) for task in self.plan.tasks]

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
