"""One model fine-tuned on the labels of the training tasks alone: what a user would do without a society.

`training.tune.labels` fine-tunes the juniors' first weights; its prompt and its answers are here.
"""

import json
from collections.abc import Mapping
from typing import Any

from agents.visit.prompting import Message, schema_format
from chimera.core.errors import ModelError, UnreachableError
from chimera.core.types import ResearchTask, abstract_text
from chimera.serving.client import HttpModel
from evaluation.baselines.simple import LABELS
from evaluation.records.study import BaselineAnswer


def label_prompt(task: ResearchTask) -> list[Message]:
    """The abstract, the question, its options, and the request for the answer alone."""
    options = "".join(f"\n{option.name}: {option.text}" for option in task.options if option.text)
    request = f"{abstract_text(task.context)}\n\n{task.goal}{options}\nAnswer with {', '.join(task.labels[:-1])} or "
    return [{"role": "user", "content": f"{request}{task.labels[-1]} only."}]


def label_text(label: str) -> str:
    """A label as the model writes it: in the form of `label_format`."""
    return json.dumps(label, ensure_ascii=False)


def label_format(task: ResearchTask) -> Mapping[str, Any]:
    """The OpenAI response format of an answer: one of the task's labels."""
    return schema_format("label", {"enum": list(task.labels)})


async def label_answer(model: HttpModel, task: ResearchTask, *, key: str, repeat: int = 0) -> BaselineAnswer:
    """The answer of the fine-tuned model, served as `key`.

    Raises:
        UnreachableError: The model's server cannot be reached, so the model has not answered.
    """
    try:
        (completion,) = await model.choices(key, label_prompt(task), response_format=dict(label_format(task)))
        used = completion.prompt_tokens, completion.completion_tokens
        return BaselineAnswer(LABELS, task.id, repeat, json.loads(completion.content), None, 1, *used)
    except UnreachableError:
        raise
    except (ModelError, ValueError) as error:
        return BaselineAnswer(LABELS, task.id, repeat, None, f"the model failed: {error}", 1)
