"""Lessons from failed training tasks (Reflexion), each checked on other tasks before it stays (as Voyager's skills).

    for each round: a model reads failures of a role and writes a lesson
        dropped if it names a task, a question or an answer, or mends none of the failed tasks that it is checked on
        kept if the society is then better on the search share: right more often, or as often with more reward

At most `lessons` more a role, so all of them are told with every task and none has to be retrieved.

Source: Shinn et al. 2023, "Reflexion"; Wang et al. 2023, "Voyager".
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import Any, ClassVar

from pydantic import Field

from agents.visit.prompting import payload_of, read_payload
from chimera.config.tree import Config
from chimera.core.types import LABELS
from chimera.data.tasks import Dataset
from chimera.run.jsonl import read_lines
from chimera.run.policies import Part
from evaluation.conduct.kept import FOLDER, PREFERENCES
from evaluation.records.rollouts import RolloutRecord
from training.guidance.budget import BudgetSpentError
from training.guidance.role_groups import RoleGroup, failure, names_a_label, role_groups, tells_too_much
from training.guidance.search import GuidanceSearch, SearchSettings, check_search
from training.guidance.writer import LESSONS, Lessons, slot_of, write
from training.learning.base import Bench, Learned, PhasePlan, live_graph
from training.learning.episodes import Episode
from training.learning.states import check_teacher
from training.watch.summary import aligned

CHECKED, MOST_CHECKED = 3, 6
"""A lesson is first checked on so many tasks, at least and at most."""
SHOWN = 4
"""Failures that the writer is shown at once."""


class LessonsSettings(SearchSettings):
    """Lessons from failed training tasks, checked on others before they stay."""

    rounds: int = Field(default=12, ge=1, le=10_000, description="rounds of 1 or 2 lessons, for each form of answer")
    lessons: int = Field(default=3, ge=1, le=100, description="most lessons that a role learns beside those it has")
    model: str | None = Field(default=None, description="slot whose model writes them; without it the role's own")

    def asks(self) -> tuple[str, ...]:
        return () if self.model is None else (self.model,)

    def most(self) -> str:
        return super().most() or f"{(2 * self.rounds + 1) * self.tasks:,} rollouts for each form of answer"


class LessonsAlgorithm:
    """Writes, checks and keeps lessons."""

    Settings = LessonsSettings
    part: ClassVar[Part | None] = "guidance"

    def check(self, plan: PhasePlan, settings: LessonsSettings, config: Config, dataset: Dataset) -> None:
        check_search(plan, settings, config, dataset)
        check_teacher(plan, "model", slot_of(settings.model, plan.roles, config), [LESSONS.schema], config)

    async def learn(self, plan: PhasePlan, settings: LessonsSettings, bench: Bench) -> Learned:
        """Search, for one group of roles after another."""
        episodes = sorted(await bench.episodes(), key=lambda episode: episode.record.place)
        search = GuidanceSearch(plan, settings, bench, [episode.record for episode in episodes])
        searched = {task.id for task in search.tasks}
        outside = [episode for episode in episodes if episode.record.task_id not in searched]
        counts = Counter[str]()
        with suppress(BudgetSpentError):
            records = await search.trial(search.start)
            for learner in role_groups(plan.roles, search.told, live_graph(bench)):
                records = await _LessonRounds(settings, bench, search, learner, counts).run(records, outside)
        return search.learned(dict(counts))


class _LessonRounds:
    """The rounds of one learner."""

    def __init__(
        self, settings: LessonsSettings, bench: Bench, search: GuidanceSearch, learner: RoleGroup, counts: Counter[str]
    ) -> None:
        self._settings = settings
        self._bench = bench
        self._search = search
        self._learner = learner
        self._counts = counts
        self._lessons: list[str] = []

    async def run(self, records: Sequence[RolloutRecord], outside: Sequence[Episode]) -> list[RolloutRecord]:
        """Try lessons; returns the rollouts of the search share with those that stay.

        Args:
            records: The same with what is told so far.
            outside: Rollouts of other training tasks, whose failures lessons are written from.
        """
        failures = await asyncio.to_thread(_failures, outside, self._learner.roles)
        failures += await asyncio.to_thread(_corrections, self._bench, self._learner.roles)
        records = list(records)
        for number in range(self._settings.rounds):
            if not failures or len(self._lessons) >= self._settings.lessons or all(map(aligned, records)):
                break
            shown = Random(f"{self._bench.config.seed}/{self._search.plan.name}/{self._learner.name}/{number}").sample(
                failures, min(SHOWN, len(failures))
            )
            for lesson in await self._written(shown, number):
                if len(self._lessons) < self._settings.lessons:
                    records = await self._tried(lesson, records)
        return records

    async def _written(self, failures: Sequence[dict[str, Any]], number: int) -> list[str]:
        """New lessons from `failures`, without those that say too much."""
        slot = slot_of(self._settings.model, self._learner.roles, self._bench.config)
        seed = Random(f"{self._bench.config.seed}/{number}").getrandbits(31)
        before = [lesson for role in self._learner.roles for lesson in self._search.told(role).lessons]
        had = list(dict.fromkeys([*before, *self._lessons]))
        answer = await write(
            self._search,
            slot,
            LESSONS,
            f"Write lessons for {self._learner.name}.",
            seed,
            member=self._learner.name,
            instructions=self._learner.instructions,
            lessons=had or None,
            failures=list(failures),
        )
        lessons = answer.lessons if isinstance(answer, Lessons) else []
        self._counts["written"] += len(lessons)
        self._counts["unreadable"] += answer is None
        allowed = [lesson for lesson in lessons if not self._says_too_much(lesson)]
        return [lesson for lesson in dict.fromkeys(allowed) if lesson not in had]

    def _says_too_much(self, lesson: str) -> bool:
        dataset = self._bench.dataset
        why = tells_too_much(lesson, dataset.tasks) or names_a_label(lesson, dataset.labels or LABELS)
        if why:
            self._counts["dropped"] += 1
            self._bench.view.note(f"{self._search.plan.name}: a lesson is dropped, because {why}: {lesson!r}")
        return why is not None

    async def _tried(self, lesson: str, records: Sequence[RolloutRecord]) -> list[RolloutRecord]:
        """Check `lesson`, and keep it if the society is then better (`GuidanceSearch.score`)."""
        search, guidance = self._search, self._search.best
        for role in self._learner.roles:
            lessons = (*self._search.told(role).lessons, *self._lessons, lesson)
            guidance = search.changed(guidance, role, lessons=lessons)
        by_id = {task.id: task for task in search.tasks}
        wrong = [by_id[record.task_id] for record in records if not aligned(record)]
        others = [task for task in search.tasks if task not in wrong]
        checks = [*wrong[:MOST_CHECKED], *others[: max(0, CHECKED - len(wrong))]]
        mended = sum(bool(aligned(record)) for record in await search.play(guidance, checks))
        before = sum(bool(aligned(record)) for record in records if record.task_id in {task.id for task in checks})
        if mended <= before:
            self._counts["not_mending"] += 1
            return list(records)
        after = await search.trial(guidance)
        if search.best != guidance:
            self._counts["not_better"] += 1
            return list(records)
        self._counts["kept"] += 1
        self._lessons.append(lesson)
        self._bench.view.note(f"{search.plan.name}: {self._learner.name} is told: {lesson}")
        return after


def _corrections(bench: Bench, roles: Sequence[str]) -> list[dict[str, Any]]:
    """What a person changed or rejected of the answers of `roles` (`python -m chimera ask --confirm`), with the reason.

    Those about validation and test tasks are left out: nobody may learn from them.
    """
    held_out = {task.goal for task in (*bench.dataset.validation, *bench.dataset.test)}
    cases: list[dict[str, Any]] = []
    for file in sorted((bench.config.runs_dir / FOLDER).glob(f"*/{PREFERENCES}")):
        for line in read_lines(file):
            goal = payload_of(line["prompt"])["goal"]
            if line["role"] in roles and goal not in held_out:
                right = (line["chosen"] or {}).get("answer")
                shown = {"output": line["rejected"], "reviews": [line["reason"]]}
                cases.append({"goal": goal, **shown, "answered": line["rejected"]["answer"], "right": right})
    return cases


def _failures(episodes: Sequence[Episode], roles: Sequence[str]) -> list[dict[str, Any]]:
    """What `roles` were asked and did not answer rightly."""
    cases: list[dict[str, Any]] = []
    for episode in episodes:
        for conversation in episode.conversations(roles):
            fault = failure(episode.record, conversation) if conversation.visit == 1 else None
            if fault is not None:
                prompt = next(read_payload(message) for message in conversation.messages if message["role"] == "user")
                cases.append({"goal": prompt["goal"], **fault})
    return cases
