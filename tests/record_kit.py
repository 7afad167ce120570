"""Records of rollouts and of their calls, and traces of calls that are made up."""

import json
from dataclasses import replace

from agents.visit.record import ModelCall, ToolUse, dump
from chimera.core.types import DECISION_OF_LABEL
from evaluation.records.rollouts import RolloutRecord
from evaluation.traces.spans import Position, exchange_span, operation_span, outcome_span


def answered(rollout_id, task_id, answer="yes", reward=1.0, /, **changes):
    """A rollout of a task whose label is yes; it failed if `answer` is None."""
    failed = answer is None
    fields = {
        "rollout_id": rollout_id,
        "task_id": task_id,
        "source": "generated",
        "level": 1,
        "phase": "gather",
        "repeat": 0,
        "seed": 0,
        "status": "failed" if failed else "succeeded",
        "error": "no JSON" if failed else None,
        "label": "yes",
        "answer": answer,
        "decision": None if failed else DECISION_OF_LABEL[answer],
        "reward": None if failed else reward,
    }
    return RolloutRecord(**(fields | changes))


def scored(rollout_id, task_id, reward, **changes):
    """A rollout that answered yes for `reward`, or failed without one."""
    return answered(rollout_id, task_id, None if reward is None else "yes", reward, **changes)


def model_call(role="HypothesisRefiner", **changes):
    """A call whose answer was read."""
    call = ModelCall(role, "senior", 1, 1, "r", "v1", "stop", 9, 9, 0.1, parsed=True, repair=False)
    return replace(call, **changes)


def tool_use(role="Geneticist", query="melanolix", **changes):
    """A search that found a passage."""
    arguments = json.dumps({"query": query})
    use = ToolUse(
        role, 1, 1, "literature_search", arguments, valid=True, ok=True, results=("17",), error=None, seconds=0.1
    )
    return replace(use, **changes)


def spans_of(rollout_id, visits):
    """A rollout's trace of `visits`: each one's role, its slot, and the requests and responses of its calls."""
    spans, records = [], []

    def at():
        number = len(spans) + 1
        return Position(rollout_id, "at", number, float(number), number + 0.5)

    for role, slot, calls in visits:
        for step, (request, response) in enumerate(calls, 1):
            spans.append(exchange_span(at(), request, response))
            parsed = None if response["choices"][0]["message"].get("tool_calls") else True
            told = {"response_id": response["id"], "weights_version": response["weights_version"]}
            records.append(dump(model_call(role, model=slot, step=step, parsed=parsed, **told)))
        own = {"role": role, "model": slot, "visit": 1, "attempt": 1}
        spans.append(operation_span(at(), role, own, [response["id"] for _, response in calls]))
    spans.append(outcome_span(at(), {"error": None, "outputs": {}, "reward": 1.0, "calls": records}))
    return spans
