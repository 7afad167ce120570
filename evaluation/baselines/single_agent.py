"""The single agent: calls of the juniors' model with the abstract. Comparing it shows what the society adds."""

from collections.abc import Sequence

from agents.findings import MOST_FINDINGS
from agents.roles import ROLES
from agents.visit.prompting import Message, opening
from agents.visit.quoting import answer_format, quotable
from agents.visit.react import read_answer
from agents.visit.sources import SourceText, given_sources
from chimera.config.roles import JUNIORS
from chimera.config.sections.society import Quotes
from chimera.core.errors import ModelError, UnreachableError
from chimera.core.types import ResearchTask, abstract_text, shown_options
from chimera.serving.client import Completion, HttpModel
from evaluation.records.study import BaselineAnswer

ROLE = ROLES[JUNIORS[1]]
"""The role whose prompt and schema are used: small models know no others, and large ones need no others."""


def studies_of(task: ResearchTask) -> list[SourceText]:
    """A task's studies as passages."""
    return [{"id": id_, "text": abstract_text(sections)} for id_, sections in task.studies]


async def single_agent(
    model: HttpModel,
    task: ResearchTask,
    *,
    name: str,
    key: str,
    quotes: Quotes,
    form: str | None = None,
    repeat: int = 0,
    seed: int = 0,
    first: int = 0,
    samples: int = 1,
) -> list[BaselineAnswer]:
    """Ask for independent answers, without tools, other roles or second attempts.

    An unreadable answer counts as no answer. A server that returns too few answers, or refuses to return several, is
    asked again for the rest.

    Args:
        model: Serves the juniors of the stage.
        task: The task. The model sees only its brief: the question, and the abstract as the only source.
        quotes: How answers quote sources, as configured for the society.
        form: The form of the answers, as of the society's juniors; findings are of as many studies as one may hold.
        repeat: The repeat of the society's rollout that this is compared with, from 0.
        seed: Seed of sampling. A request has the sum of this seed and the number of its first answer.
        first: Number of the first answer, from 0.

    Returns:
        As many answers as were asked for, numbered from `first`.

    Raises:
        UnreachableError: The model's server cannot be reached, so the model has not answered.
    """
    brief = task.brief()
    options = shown_options(brief.options)
    sources = (studies_of(task)[:MOST_FINDINGS] if form else None) or given_sources(brief)
    messages = opening(ROLE, brief.goal, options=options, form=form, sources=quotable(sources, quotes))
    response_format = answer_format(ROLE, messages, quotes)
    answers: list[BaselineAnswer] = []
    together = samples
    while (left := samples - len(answers)) > 0:
        number = first + len(answers)
        try:
            got = await model.choices(
                key, messages, response_format=response_format, seed=seed + number, n=min(together, left)
            )
        except UnreachableError:
            raise
        except ModelError as error:
            if together > 1 and not error.retriable:
                together = 1  # many servers refuse a request for several answers
                continue
            reason = f"the model failed: {error}"
            numbers = range(number, number + min(together, left))
            answers += [BaselineAnswer(name, task.id, repeat, None, reason, 1, sample=sample) for sample in numbers]
            continue
        answers += [
            _read(name, task, repeat, number + place, choice, messages) for place, choice in enumerate(got[:left])
        ]
    return answers


def _read(
    name: str, task: ResearchTask, repeat: int, number: int, completion: Completion, messages: Sequence[Message]
) -> BaselineAnswer:
    answer, error = None, None
    try:
        answer = read_answer(ROLE, completion, messages).stance
    except ValueError as fault:
        error = f"the answer could not be read: {fault}"
    used = completion.prompt_tokens, completion.completion_tokens
    return BaselineAnswer(name, task.id, repeat, answer, error, 1, *used, number)
