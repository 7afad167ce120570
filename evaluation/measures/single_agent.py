"""The single agent: calls of the juniors' own model with the abstract given, which show what the society adds to it."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

from agents.prompting import Message, opening
from agents.quoting import answer_format, quotable
from agents.react import read_answer
from agents.roles import ROLES
from agents.schemas import Hypothesis
from agents.tools.sources import given_sources
from chimera.config.roles import JUNIORS
from chimera.config.tree import Quotes
from chimera.core.errors import ModelError, UnreachableError
from chimera.core.types import ResearchTask
from chimera.serving.client import Completion
from evaluation.records.study import BaselineAnswer

ROLE = ROLES[JUNIORS[1]]
"""A junior's words and schema: small models know no others, and large ones need no others."""


class Chooser(Protocol):
    """A model that gives several answers to one request (see `chimera.serving.client.HttpModel`)."""

    async def choices(
        self,
        key: str,
        messages: Sequence[Mapping[str, Any]],
        *,
        response_format: Mapping[str, Any] | None = None,
        seed: int | None = None,
        n: int = 1,
    ) -> list[Completion]:
        """Answer `messages` up to `n` times; raises ModelError."""
        ...


async def single_agent(
    model: Chooser,
    task: ResearchTask,
    *,
    name: str,
    key: str,
    quotes: Quotes,
    repeat: int = 0,
    seed: int = 0,
    first: int = 0,
    samples: int = 1,
) -> list[BaselineAnswer]:
    """Ask for answers that know nothing of each other: no tools, no other role, no second try.

    An answer that cannot be read is none. A server that gives fewer answers than it is asked for, or refuses to give
    several, is asked again for the rest.

    Args:
        model: Serves the juniors of the stage.
        task: Of which only the brief is shown: the question and the abstract as the one source.
        name: The baseline's name.
        key: The slot that is asked.
        quotes: How it quotes, as the society does.
        repeat: Which rollout of the task this stands beside, from 0.
        seed: Of the model's sampling; a request is sent with the sum of this and the number of its first answer.
        first: Number of the first answer, from 0.
        samples: How many answers.

    Returns:
        As many answers as were asked for, numbered from `first`.

    Raises:
        UnreachableError: The model's server cannot be reached, so these are no answers of the model.
    """
    brief = task.brief()
    messages = opening(ROLE, brief.goal, sources=quotable(given_sources(brief), quotes))
    form = answer_format(ROLE, messages, quotes)
    found: list[BaselineAnswer] = []
    together = samples
    while (left := samples - len(found)) > 0:
        number = first + len(found)
        try:
            got = await model.choices(key, messages, response_format=form, seed=seed + number, n=min(together, left))
        except UnreachableError:
            raise
        except ModelError as error:
            if together > 1 and not error.retriable:
                together = 1  # many servers refuse a request for several answers
                continue
            reason = f"the model failed: {error}"
            asked = range(number, number + min(together, left))
            found += [BaselineAnswer(name, task.id, repeat, None, reason, 1, sample=one) for one in asked]
            continue
        found += [_read(name, task, repeat, number + place, one, messages) for place, one in enumerate(got[:left])]
    return found


def _read(
    name: str, task: ResearchTask, repeat: int, number: int, completion: Completion, messages: Sequence[Message]
) -> BaselineAnswer:
    answer, error = None, None
    try:
        answer = cast(Hypothesis, read_answer(ROLE, completion, messages)).answer
    except ValueError as fault:
        error = f"the answer could not be read: {fault}"
    used = completion.prompt_tokens, completion.completion_tokens
    return BaselineAnswer(name, task.id, repeat, answer, error, 1, *used, number)
