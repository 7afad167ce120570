"""Makes the missing parts of an evaluation: rollouts of its stages, single-agent answers, audits and canaries.

Recorded parts are not made again (unless `again` says so), so an interrupted evaluation continues where it stopped.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeVar

from agents.context import Tools
from agents.roles import form_of
from chimera.config.roles import JUDGE
from chimera.config.tree import Config
from chimera.core.errors import RunError
from chimera.core.types import ResearchTask
from chimera.data.tasks import Dataset
from chimera.run.directory import Run
from chimera.run.jsonl import append_line, read_lines
from chimera.run.policies import Policy
from chimera.serving.client import HttpModel
from chimera.serving.process import ModelServers
from evaluation.baselines.labels import label_answer
from evaluation.baselines.map_reduce import map_reduce
from evaluation.baselines.simple import (
    AGENT,
    GREEDY,
    LABELS,
    MAP_REDUCE,
    SAMPLED,
    SINGLE,
    majority,
    of_stage,
    reader,
    tfidf,
)
from evaluation.baselines.single_agent import ROLE, single_agent
from evaluation.baselines.tool_agent import tool_agent
from evaluation.baselines.votes import affordable, with_consistency
from evaluation.causes.blame import examined
from evaluation.conduct.at_once import at_once
from evaluation.conduct.recorded_study import baseline_answers
from evaluation.conduct.repairs import selector_of, start_of
from evaluation.records.recorded import own_phase, recorded, repaired, repairs_phase, side_file
from evaluation.records.repairs import Repair
from evaluation.records.rollouts import RolloutInput, RolloutRecord
from evaluation.records.study import GATE, BaselineAnswer, Judged, Plan, Stage
from evaluation.rollout.answering import answering
from evaluation.rollout.crew import Crew, new_id
from evaluation.rollout.live import Live
from evaluation.rollout.progress import ProgressView
from evaluation.rollout.replay import Replay
from evaluation.rollout.worker import Job, SocietyWorker
from evaluation.scores.auditor import Auditor
from evaluation.scores.canaries import Work, canaries_of

Again = Literal["nothing", "failed", "everything"]
"""Which recorded parts are made again. "failed": those that failed or have no score."""
VOTES = "calls for a majority"
SINGLE_COST, VOTES_COST, JUDGE_COST = 0.2, 0.4, 0.05
"""Costs of a task's single calls and votes and of one judgement, in rollouts; rough, for the time left."""
GREEDY_JUNIOR = "greedy junior"
"""Logical model for the juniors' model at temperature 0."""
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class _Asked:
    """Missing answers of the single agent: `samples` answers, numbered from `first`."""

    kind: str
    task_id: str
    repeat: int
    first: int = 0
    samples: int = 1


@dataclass(frozen=True)
class Conductor:
    """Makes the missing parts of an evaluation.

    Attributes:
        run: Owned by this process.
        config: The run's configuration, with the evaluation's own settings.
        auditor: The second judge; None without one.
        again: Which recorded parts are made again.
        labels: The weights of the baseline that learned labels alone; None without it.
    """

    run: Run
    plan: Plan
    config: Config
    dataset: Dataset
    toolbox: Tools
    auditor: Auditor | None
    progress: ProgressView
    again: Again = "nothing"
    labels: Policy | None = None

    def missing(self, stage: Stage) -> list[RolloutInput]:
        """The rollouts of `stage` that must still be made."""
        there = {} if self.again == "everything" else recorded(self.run, self.plan, stage)
        if self.again == "failed":
            there = {key: entry for key, entry in there.items() if entry[0].reward is not None}
        phase, seed = own_phase(self.plan.split, stage), self.config.seed
        return [
            replace(RolloutInput.of(task, GATE, repeat, seed), phase=phase)
            for repeat in range(self.plan.repeats)
            for task in self._tasks()
            if (task.id, repeat) not in there
        ]

    def costs(self, todo: Mapping[str, Sequence[RolloutInput]]) -> dict[str, float]:
        """The expected cost of the parts of this evaluation, in rollouts (`training.watch.forecast`)."""
        tasks, rollouts = len(self.plan.tasks), sum(map(len, todo.values()))
        costs: dict[str, float] = {
            own_phase(self.plan.split, stage): len(todo[stage.name]) for stage in self.plan.stages
        }
        for stage in (self.plan.stages[0], self.plan.final) if rollouts else ():
            costs[f"single calls, {stage.title}"] = SINGLE_COST * tasks
            costs[f"{VOTES}, {stage.title}"] = VOTES_COST * tasks
        return costs | ({"second judge": JUDGE_COST * rollouts} if self.auditor is not None and rollouts else {})

    def baselines(self) -> None:
        """Record the answers of baselines that need no model, and replace those learned from other training data."""
        earlier = {(answer.baseline, answer.task_id, answer.repeat): answer for answer in self._answered()}
        for answers in (majority, tfidf, reader):
            computed = answers(self.dataset.train, self._tasks())
            new = [row for row in computed if earlier.get((row.baseline, row.task_id, row.repeat)) != row]
            self._write("baselines", new)

    def _answers_alone(self, stage: Stage) -> bool:
        """True if the junior model of `stage` still has to answer alone, as far as recorded rollouts tell."""
        return any(
            stages[-1] == stage and (self._unanswered(name) or self._votes_left(name, stages))
            for name, stages in self._alone_stages().items()
        )

    def needs_models(self, todo: Mapping[str, Sequence[RolloutInput]]) -> bool:
        """True if any remaining work needs a model of the run."""
        alone = any(map(self._answers_alone, self.plan.ends))
        if any(todo.values()) or alone or self._repairs() or self.labels_left():
            return True
        return bool(self._canaries("judge", self._judge_name()))

    async def run_stages(self, servers: ModelServers, todo: Mapping[str, Sequence[RolloutInput]]) -> None:
        """Make the rollouts in `todo` (by stage name) and all other missing parts that need the run's models.

        Raises:
            UnreachableError: A model server cannot be reached.
            RunError: The model server has ended, or a stage's models are damaged or differ from those of the run.
        """
        greedy = replace(servers.endpoints[self._alone], temperature=0.0)
        sampled = answering(servers.endpoints, self.config, self.config.evaluation.temperature)
        rollouts = self.config.rollouts
        model = HttpModel({**sampled, GREEDY_JUNIOR: greedy}, max_retries=rollouts.retries, pause_s=rollouts.pause_s)
        workers = [SocietyWorker(self.config, model, self.toolbox) for _ in range(rollouts.concurrency)]
        crew = Crew(self.run, workers, servers.check)
        live = await asyncio.to_thread(Live, self.run, self.config.models, servers)
        try:
            for stage in self.plan.stages:
                inputs = todo.get(stage.name, ())
                if not inputs and not self._answers_alone(stage):
                    continue
                with self.progress.part(stage.name):
                    await self._serve(live, stage)
                    await self._of_stage(crew, live, model, stage, inputs)
                    await self._single(model, stage)
            await self._examine(crew, live, model)
            await self._answer_by_labels(live, model)
            if self._canaries("judge", judge := self._judge_name()):
                await self._serve(live, self.plan.stages[0])  # Phases may have trained the judge's slot, too.
                await self._try_canaries(Auditor.of_training(model, self.config.slot(JUDGE), judge))
        finally:
            await model.aclose()

    async def _of_stage(
        self, crew: Crew, live: Live, model: HttpModel, stage: Stage, inputs: Sequence[RolloutInput]
    ) -> None:
        """Make the rollouts of a stage, which is being served."""
        if not inputs:
            return
        with self.progress.phase(own_phase(self.plan.split, stage), len(inputs), stage.versions, table=False):
            learned = live.society()
            jobs = [
                Job(
                    new_id("ev"),
                    rollout_input,
                    model.endpoints,
                    stage.versions,
                    live.selector,
                    learned=learned,
                    faults=stage.faults,
                )
                for rollout_input in inputs
            ]
            # Close the rollouts before the model: rollouts in progress must not fail on a closed model.
            async with aclosing(crew.rollouts(jobs)) as rollouts:
                async for record, _ in rollouts:
                    self.progress.add(record)

    async def _examine(self, crew: Crew, live: Live, model: HttpModel) -> None:
        """Replay the wrong answers of the last stage that are to be examined, each with its first wrong step right."""
        repairs, stage = self._repairs(), self.plan.final
        if not repairs:
            return
        await self._serve(live, stage)
        tasks, phase = {task.id: task for task in self._tasks()}, repairs_phase(self.plan)
        rebuild, rebuilding, learned = Replay(self.config, self.run.path), asyncio.Lock(), live.society()

        async def replay(repair: Repair) -> RolloutRecord:
            of, task = repair.of, tasks[repair.of.task_id]
            async with rebuilding:
                start = await start_of(repair, rebuild, self.run.path, task)
            selector = selector_of(repair, live.selector)
            inputs, versions = RolloutInput(task, phase, of.repeat, of.seed), stage.versions
            job = Job(repair.rollout_id, inputs, model.endpoints, versions, selector, start=start, learned=learned)
            record, _ = await crew.rollout(job)
            return record

        with self.progress.phase(phase, len(repairs), stage.versions, table=False):
            async with aclosing(at_once(repairs, replay, crew.size)) as records:
                async for record in records:
                    self.progress.add(record)

    def labels_left(self) -> list[tuple[str, int]]:
        """Task id and repeat of the answers that the model of labels alone has not given."""
        if not self.config.evaluation.labels:
            return []
        done = self._samples(LABELS)
        return [(task_id, repeat) for task_id, repeat in self._keys() if (task_id, repeat, 0) not in done]

    async def _answer_by_labels(self, live: Live, model: HttpModel) -> None:
        if self.labels is None:
            return
        await asyncio.to_thread(live.restore, [self.labels])
        tasks = {task.id: task for task in self._tasks()}

        async def answer(key: tuple[str, int]) -> list[BaselineAnswer]:
            task = tasks[key[0]]
            return [replace(await label_answer(model, task, key=GREEDY_JUNIOR, repeat=key[1]), goal=task.goal)]

        await self._make("baselines", "answers of the model of labels alone", self.labels_left(), answer)

    def _repairs(self) -> list[Repair]:
        """The repairs of recorded wrong answers that still have to be replayed."""
        if not (limit := self.config.evaluation.blame):
            return []
        answers = {stage.name: self._recorded(stage) for stage in self.plan.stages}
        done = {} if self.again == "everything" else repaired(self.run, self.plan)
        replayed = {
            name for name, (record, _) in done.items() if self.again != "failed" or record.status == "succeeded"
        }
        repairs = [case.repair for case in examined(self.plan, answers, limit) if case.repair is not None]
        return [repair for repair in repairs if repair.rollout_id not in replayed]

    def _recorded(self, stage: Stage) -> list[RolloutRecord]:
        """The recorded rollouts of a stage, in the order of the plan."""
        there = recorded(self.run, self.plan, stage)
        return [there[key][0] for key in self._keys() if key in there]

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
            if record.has_protocol and record.rollout_id not in done
        ]
        auditor = self.auditor

        async def audit(record: RolloutRecord) -> list[Judged]:
            return [await auditor.audit(record)]

        await self._make("audit", "second judge", records, audit)
        await self._try_canaries(auditor)

    async def _serve(self, live: Live, stage: Stage) -> None:
        """Put the stage's policies live and check that their versions are those of the run."""
        await asyncio.to_thread(live.restore, stage.policies)
        served = await asyncio.to_thread(live.versions)
        for name, version in stage.versions.items():
            if served.get(name) != version:
                raise RunError(
                    f"stage {stage.name} was made with {name}={version}, but {served.get(name)} is served: the run's "
                    "models must be the same"
                )

    async def _single(self, model: HttpModel, stage: Stage) -> None:
        """Let the junior model of `stage`, which is being served, answer alone: one greedy answer and sampled ones.

        The number of samples depends on their tokens and on those of the rollouts, so it is known only after both.
        """
        tasks = {task.id: task for task in self._tasks()}
        for name, stages in self._alone_stages().items():
            if stages[-1] != stage:
                continue

            async def answer(request: _Asked, name: str = name) -> list[BaselineAnswer]:
                task, repeat = tasks[request.task_id], request.repeat
                key = GREEDY_JUNIOR if request.kind == GREEDY else self._alone
                seed = RolloutInput.of(task, "single", repeat, self.config.seed).seed
                title, quotes = of_stage(request.kind, name), self.config.society.quotes
                shared: dict[str, Any] = {"name": title, "repeat": repeat, "seed": seed}
                form = form_of(self.config.society.graph, ROLE.name)
                if request.kind == AGENT:
                    samples = range(request.first, request.first + request.samples)
                    answers = [
                        await tool_agent(model, self.toolbox, self.config, task, sample=sample, **shared)
                        for sample in samples
                    ]
                elif request.kind == MAP_REDUCE:
                    shared |= {"quotes": quotes, "form": form, "combiner": self.plan.combining_slot or key}
                    answers = [await map_reduce(model, task, key=key, **shared)]
                else:
                    shared |= {"first": request.first, "samples": request.samples}
                    answers = await single_agent(model, task, key=key, quotes=quotes, form=form, **shared)
                about: dict[str, Any] = {"models": self.plan.without_roles(stage), "goal": task.goal}
                about["temperature"] = stage.temperature if request.kind in SAMPLED else None
                about["tool_calls"] = self.config.evaluation.agent_tool_calls if request.kind == AGENT else None
                return [replace(reply, **about) for reply in answers]

            await self._make("baselines", f"single calls, {stage.title}", self._unanswered(name), answer)
            votes = self._votes_left(name, stages)
            await self._make("baselines", f"{VOTES}, {stage.title}", votes, answer)

    async def _try_canaries(self, judge: Auditor) -> None:
        async def score(canary: tuple[str, Work]) -> list[Judged]:
            return [await judge.score(*canary)]

        name = "judge" if judge.judge == "judge" else "second judge"
        await self._make("canaries", f"canaries, {name}", self._canaries(judge.judge, judge.model), score)

    def _canaries(self, judge: Literal["judge", "auditor"], model: str) -> list[tuple[str, Work]]:
        """Canaries from rollouts of the first stage that a judge has not scored."""
        done = self._scored("canaries", judge, model)
        canaries = canaries_of(self._recorded(self.plan.stages[0]))
        return [(subject, work) for subject, work in canaries if subject not in done]

    async def _make(
        self, file: str, title: str, items: Sequence[Item], work: Callable[[Item], Awaitable[Sequence[Any]]]
    ) -> None:
        """Run `work` on each item, with the same concurrency as rollouts, and record its rows as they arrive."""
        if not items:
            return
        with self.progress.work(title, len(items)) as advance:
            async with aclosing(at_once(items, work, self.config.rollouts.concurrency)) as results:
                number = 0
                async for row in results:
                    self._write(file, row)
                    number += 1
                    advance(number, "")

    def _tasks(self) -> list[ResearchTask]:
        tasks = {task.id: task for task in self.dataset.tasks}
        return [tasks[task.id] for task in self.plan.tasks]

    @property
    def _alone(self) -> str:
        """The slot whose model also answers alone."""
        return self.config.slot(ROLE.name)

    def _judge_name(self) -> str:
        return self.plan.stages[0].versions[self.config.slot(JUDGE)]

    def _alone_stages(self) -> dict[str, list[Stage]]:
        """For each stage name that answers alone: the first and last stages that use this junior model."""
        stages: dict[str, list[Stage]] = {}
        for stage in self.plan.ends:
            stages.setdefault(self.plan.alone_of(stage).name, []).append(stage)
        return stages

    def _unanswered(self, name: str) -> list[_Asked]:
        """The first sampled and the greedy answers that the junior model called `name` has not given."""
        return [
            _Asked(kind, task_id, repeat)
            for kind in (SINGLE, GREEDY, *self._agents, *self._readers)
            for done in [self._samples(of_stage(kind, name))]
            for task_id, repeat in self._keys()
            if (task_id, repeat, 0) not in done
        ]

    def _votes_left(self, name: str, stages: Sequence[Stage]) -> list[_Asked]:
        """The further samples that self-consistency needs for the most expensive of `stages`."""
        if not with_consistency(self.config):
            return []
        return [request for kind in (SINGLE, *self._agents) for request in self._votes_of(kind, name, stages)]

    def _votes_of(self, kind: str, name: str, stages: Sequence[Stage]) -> list[_Asked]:
        single = of_stage(kind, name)
        calls = [call for call in self._answered() if call.baseline == single and call.sample == 0]
        votes = max(affordable(self._recorded(stage), calls) or 1 for stage in stages)
        done = self._samples(single)
        return [
            _Asked(kind, task_id, repeat, missing[0], votes - missing[0])
            for task_id, repeat in self._keys()
            if (missing := [number for number in range(1, votes) if (task_id, repeat, number) not in done])
        ]

    @property
    def _agents(self) -> tuple[str, ...]:
        """The kind of baseline of an agent with all tools, if it is asked for."""
        return (AGENT,) if self.config.evaluation.agent_tool_calls else ()

    @property
    def _readers(self) -> tuple[str, ...]:
        """The kind of baseline that reads study by study, if a task has several."""
        return (MAP_REDUCE,) if any(task.studies for task in self._tasks()) else ()

    def _samples(self, name: str) -> set[tuple[str, int, int]]:
        """Task id, repeat and sample number of the answers of baseline `name` that are kept."""
        answers = [] if self.again == "everything" else self._answered()
        return {
            (answer.task_id, answer.repeat, answer.sample)
            for answer in answers
            if answer.baseline == name and (self.again != "failed" or answer.error is None)
        }

    def _answered(self) -> list[BaselineAnswer]:
        return baseline_answers(self.run, self.plan, self.config.evaluation.agent_tool_calls)

    def _keys(self) -> list[tuple[str, int]]:
        return [(task.id, repeat) for repeat in range(self.plan.repeats) for task in self.plan.tasks]

    def _scored(self, file: str, judge: str, model: str) -> set[str]:
        """The subjects that a judge has scored already."""
        rows = read_lines(self.run.path / side_file(self.plan.split, file))
        judged = [row for row in rows if (row["judge"], row["model"]) == (judge, model)]
        return {row["subject"] for row in judged if self.again != "failed" or row["error"] is None}

    def _write(self, name: str, rows: Iterable[Any]) -> None:
        file = self.run.path / side_file(self.plan.split, name)
        for row in rows:
            append_line(file, asdict(row))
