"""The single agent: one model call with the abstract given, which shows what the society adds to its own model."""

from typing import cast

from agents.prompting import opening, response_format
from agents.react import read_answer
from agents.roles import ROLES
from agents.schemas import Hypothesis
from agents.sources import given_sources
from chimera.errors import ModelError, UnreachableError
from chimera.serving.client import Model
from chimera.types import ResearchTask
from evaluation.baselines import SINGLE
from evaluation.study import BaselineAnswer

ROLE = ROLES["Pharmacologist"]
"""A junior's words and schema: small models know no others, and large ones need no others."""


def single_name(stage: str) -> str:
    """The baseline's name when it asks the juniors' model of `stage`, such as "single@base"."""
    return f"{SINGLE}{stage}"


async def single_agent(
    model: Model, task: ResearchTask, *, stage: str, repeat: int = 0, seed: int | None = None
) -> BaselineAnswer:
    """Ask once: no tools, no other role, no second try. An answer that cannot be read is none.

    Args:
        model: Serves the juniors of `stage` as the logical model "junior".
        task: Of which only the brief is shown: the question and the abstract as the one source.
        stage: Whose model is asked, for the baseline's name.
        repeat: Which rollout of the task this stands beside, from 0.
        seed: Of the model's sampling.

    Raises:
        UnreachableError: The model's server cannot be reached, so this is no answer of the model.
    """
    brief, name = task.brief(), single_name(stage)
    messages = opening(ROLE, brief.goal, sources=given_sources(brief))
    try:
        completion = await model.complete(ROLE.model, messages, response_format=response_format(ROLE), seed=seed)
    except UnreachableError:
        raise
    except ModelError as error:
        return BaselineAnswer(name, task.id, repeat, None, f"the model failed: {error}")
    try:
        answer = cast(Hypothesis, read_answer(ROLE, completion)).answer
    except ValueError as error:
        return BaselineAnswer(name, task.id, repeat, None, f"the answer could not be read: {error}")
    return BaselineAnswer(name, task.id, repeat, answer)
