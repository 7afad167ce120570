"""Map and reduce without roles: one call reads each study alone, a last one reads what they quoted.

It is the plain way to read more than one call can hold, so it shows what of the society's gain comes from dividing the
evidence, and what from its roles. It is handed every study of a task, as single calls are handed the abstract.
"""

import asyncio
from typing import Any

from agents.findings import COMBINATION, handed_over, weighed
from agents.roles import REFINER, ROLES, Role
from agents.schemas import Answer
from agents.visit.prompting import opening
from agents.visit.quoting import answer_format, quotable
from agents.visit.react import read_answer
from chimera.config.sections.society import Quotes
from chimera.core.errors import ModelError, UnreachableError
from chimera.core.types import ResearchTask, shown_options
from chimera.serving.client import Model
from evaluation.baselines.single_agent import ROLE, studies_of
from evaluation.records.study import BaselineAnswer


async def map_reduce(
    model: Model,
    task: ResearchTask,
    *,
    name: str,
    key: str,
    combiner: str,
    quotes: Quotes,
    form: str | None,
    repeat: int,
    seed: int,
) -> BaselineAnswer:
    """Ask once about each of the task's studies, then once about the sentences that these answers quote.

    Where the society hands over findings, the first calls do too, and the last weighs them as the refiner does, with
    what the refiner has learned.

    An unreadable answer to a study adds nothing to the last call; an unreadable last answer counts as no answer.

    Args:
        task: A task whose evidence lies in several studies.
        key: The model of the first calls.
        combiner: The model of the last.
        form: The form of the society's juniors' answers.
        seed: Seed of sampling; call n has this seed plus n.

    Raises:
        UnreachableError: The model's server cannot be reached.
    """
    reader, studies = _StudyReader(model, task), studies_of(task)
    readings = await asyncio.gather(
        *(
            reader.ask(key, ROLE, seed + place, form=form, sources=quotable([study], quotes), quotes=quotes)
            for place, study in enumerate(studies)
        )
    )
    by_study = {study["id"]: reading for study, reading in zip(studies, readings, strict=True) if reading is not None}
    if form:
        findings = handed_over(weighed(reading.model_dump() for reading in by_study.values()))
        last: dict[str, Any] = {"form": COMBINATION, "findings": findings}
    else:
        quoted = [{"id": id_, "text": " ".join(reading.quotes)} for id_, reading in by_study.items() if reading.quotes]
        last = {"sources": quotable(quoted, quotes)}
    role, readable = ROLES[REFINER] if form else ROLE, last.get("findings") or last.get("sources")
    combined = await reader.ask(combiner, role, seed + len(studies), quotes=quotes, **last) if readable else None
    answer = None if combined is None else combined.stance
    error = None if combined is not None else f"no answer could be read: {reader.error}"
    return BaselineAnswer(name, task.id, repeat, answer, error, reader.calls, reader.prompt, reader.completion)


class _StudyReader:
    """Asks models about passages, and counts calls and tokens."""

    def __init__(self, model: Model, task: ResearchTask) -> None:
        self._model = model
        self._goal, self._options = task.goal, shown_options(task.options)
        self.calls = self.prompt = self.completion = 0
        self.error = "no study has a sentence to quote"

    async def ask(self, key: str, role: Role, seed: int, *, quotes: Quotes, **inputs: Any) -> Answer | None:
        """The answer of `role` that follows from `inputs`; None if the model fails, or it cannot be read."""
        messages = opening(role, self._goal, options=self._options, **inputs)
        response_format = answer_format(role, messages, quotes)
        self.calls += 1
        try:
            completion = await self._model.complete(key, messages, response_format=response_format, seed=seed)
            self.prompt += completion.prompt_tokens
            self.completion += completion.completion_tokens
            return read_answer(role, completion, messages)
        except UnreachableError:
            raise
        except (ModelError, ValueError) as fault:
            self.error = str(fault)
            return None
