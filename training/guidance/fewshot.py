"""Few-shot examples from the society's own right answers: bootstrap with random search, as in DSPy.

    pool of each role = its answers in earlier rollouts on training tasks that came out right (or a teacher's)
    candidate 0: what roles are told now; 1: the first examples; others: some at random; the best on the search share

Source: Khattab et al. 2024, "DSPy" (BootstrapFewShotWithRandomSearch).
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import Any, ClassVar

from pydantic import Field

from agents.context import Guided
from agents.findings import Findings
from agents.roles import ROLES
from agents.visit.prompting import read_payload, response_format
from agents.visit.react import read_answer
from chimera.config.tree import Config
from chimera.core.errors import RunError
from chimera.data.tasks import Dataset
from chimera.run.policies import Part
from training.guidance.budget import BudgetSpentError
from training.guidance.role_groups import is_right
from training.guidance.search import GuidanceSearch, SearchSettings, check_search
from training.learning.base import Bench, Learned, PhasePlan
from training.learning.episodes import Episode
from training.learning.experience import Conversation
from training.learning.states import check_teacher

Example = dict[str, Any]
Pool = dict[str, list[Example]]
"""The examples of each role, one a task, in an order that does not depend on which rollout ended first."""


class FewshotSettings(SearchSettings):
    """Examples of good answers for each role, found by bootstrap and random search."""

    candidates: int = Field(default=16, ge=2, le=10_000, description="sets of examples that are tried")
    examples: int = Field(default=3, ge=1, le=100, description="examples that one role is shown at most")
    teacher: str | None = Field(
        default=None, description="slot whose model gives the examples; without it the role's own right answers"
    )

    def asks(self) -> tuple[str, ...]:
        return () if self.teacher is None else (self.teacher,)

    def most(self) -> str:
        return super().most() or f"{self.candidates * self.tasks:,} rollouts"


class Fewshot:
    """Random search over sets of examples."""

    Settings = FewshotSettings
    part: ClassVar[Part | None] = "guidance"

    def check(self, plan: PhasePlan, settings: FewshotSettings, config: Config, dataset: Dataset) -> None:
        check_search(plan, settings, config, dataset)
        if settings.teacher is not None:
            check_teacher(plan, "teacher", settings.teacher, [ROLES[role].schema for role in plan.roles], config)

    async def learn(self, plan: PhasePlan, settings: FewshotSettings, bench: Bench) -> Learned:
        """Search.

        Raises:
            RunError: No earlier rollout outside the search share came out right.
        """
        episodes = sorted(await bench.episodes(), key=lambda episode: episode.record.place)
        search = GuidanceSearch(plan, settings, bench, [episode.record for episode in episodes])
        searched = {task.id for task in search.tasks}
        outside = [episode for episode in episodes if episode.record.task_id not in searched]
        pool: Pool = {}
        with suppress(BudgetSpentError):
            pool = await collect(plan, settings, search, outside)
            for number in range(settings.candidates):
                await search.trial(drawn(search, pool, settings.examples, number, bench.config.seed))
        return search.learned({"pool": {role: len(entries) for role, entries in pool.items()}})


async def collect(
    plan: PhasePlan, settings: FewshotSettings, search: GuidanceSearch, episodes: Sequence[Episode]
) -> Pool:
    """The examples of each role from earlier rollouts; raises RunError if a role has none."""
    pool: Pool = {role: [] for role in plan.roles}
    for episode in episodes:
        conversations = await asyncio.to_thread(episode.conversations, plan.roles)
        for conversation in (visit for visit in conversations if visit.visit == 1):
            if settings.teacher is None:
                answer = conversation.answer if is_right(episode.record, conversation) else None
            else:
                answer = await _taught(search, settings.teacher, conversation, episode.record.label)
            goal = next(read_payload(message)["goal"] for message in conversation.messages if message["role"] == "user")
            entries = pool[conversation.role]
            if answer is not None and all(example["goal"] != goal for example in entries):
                entries.append({"goal": goal, **answer})
    if empty := [role for role, entries in pool.items() if not entries]:
        raise RunError(
            f"{plan.name}: of {len(episodes)} earlier rollouts outside its {len(search.tasks)} search tasks none gives "
            f"an example for {empty[0]}: gather more tasks, or name a teacher ({plan.name}.teacher)"
        )
    return pool


async def _taught(
    search: GuidanceSearch, teacher: str, conversation: Conversation, label: str
) -> dict[str, Any] | None:
    """The teacher's answer to what the role was asked; None if it is wrong or unreadable."""
    role, asked_messages = ROLES[conversation.role], conversation.messages[:-1]
    form = response_format(role, asked_messages)
    completion = await search.ask(teacher, asked_messages, response_format=form, seed=0)
    try:
        answer = read_answer(role, completion, asked_messages)
    except ValueError:
        return None
    return answer.model_dump() if isinstance(answer, Findings) or answer.stance in (None, label) else None


def drawn(search: GuidanceSearch, pool: Pool, most: int, number: int, seed: int) -> Guided:
    """Candidate `number`: 0 what roles are told now, 1 the first examples of each role, others some at random."""
    guidance, random = search.start, Random(f"{seed}/{search.plan.name}/{number}")
    if number == 0:
        return guidance
    for role, entries in pool.items():
        chosen = entries[:most] if number == 1 else random.sample(entries, min(random.randint(1, most), len(entries)))
        guidance = search.changed(guidance, role, examples=tuple(chosen))
    return guidance
