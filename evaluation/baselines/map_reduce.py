"""Map and reduce without roles: one call reads each study alone, a last one reads what they quoted.

It is the plain way to read more than one call can hold, so it shows what of the society's gain comes from dividing the
evidence, and what from its roles. It is handed every study of a task, as single calls are handed the abstract.
"""

import asyncio
from collections.abc import Sequence
from typing import cast

from agents.schemas import Hypothesis
from agents.tools.sources import SourceText
from agents.visit.prompting import opening
from agents.visit.quoting import answer_format, quotable
from agents.visit.react import read_answer
from chimera.config.sections.society import Quotes
from chimera.core.errors import ModelError, UnreachableError
from chimera.core.types import ResearchTask, abstract_text, shown_options
from chimera.serving.client import Model
from evaluation.baselines.single_agent import ROLE
from evaluation.records.study import BaselineAnswer


async def map_reduce(
    model: Model, task: ResearchTask, *, name: str, key: str, quotes: Quotes, repeat: int, seed: int
) -> BaselineAnswer:
    """Ask once about each of the task's studies, then once about the sentences that these answers quote.

    An unreadable answer to a study adds nothing to the last call; an unreadable last answer counts as no answer.

    Args:
        task: A task whose evidence lies in several studies.
        seed: Seed of sampling; call n has this seed plus n.

    Raises:
        UnreachableError: The model's server cannot be reached.
    """
    reader = _StudyReader(model, task, key, quotes)
    studies = [{"id": id_, "text": abstract_text(sections)} for id_, sections in task.studies]
    readings = await asyncio.gather(*(reader.ask([study], seed + place) for place, study in enumerate(studies)))
    quoted = [
        {"id": study["id"], "text": " ".join(reading.evidence)}
        for study, reading in zip(studies, readings, strict=True)
        if reading is not None and reading.evidence
    ]
    combined = await reader.ask(quoted, seed + len(studies)) if quoted else None
    answer = None if combined is None else combined.answer
    error = None if combined is not None else f"no answer could be read: {reader.error}"
    return BaselineAnswer(name, task.id, repeat, answer, error, reader.calls, reader.prompt, reader.completion)


class _StudyReader:
    """Asks one model about passages, and counts calls and tokens."""

    def __init__(self, model: Model, task: ResearchTask, key: str, quotes: Quotes) -> None:
        self._model, self._key = model, key
        self._quotes: Quotes = quotes
        self._goal, self._options = task.goal, shown_options(task.options)
        self.calls = self.prompt = self.completion = 0
        self.error = "no study has a sentence to quote"

    async def ask(self, passages: Sequence[SourceText], seed: int) -> Hypothesis | None:
        """The answer that follows from `passages`; None if the model fails, or it cannot be read."""
        messages = opening(ROLE, self._goal, options=self._options, sources=quotable(passages, self._quotes))
        form = answer_format(ROLE, messages, self._quotes)
        self.calls += 1
        try:
            completion = await self._model.complete(self._key, messages, response_format=form, seed=seed)
            self.prompt += completion.prompt_tokens
            self.completion += completion.completion_tokens
            return cast(Hypothesis, read_answer(ROLE, completion, messages))
        except UnreachableError:
            raise
        except (ModelError, ValueError) as fault:
            self.error = str(fault)
            return None
