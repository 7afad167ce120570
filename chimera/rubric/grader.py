"""The `rubric` model: a deterministic grader behind the same interface as a language model.

It plays the review board, the principal investigator and the judge if no strong model is configured. It reads only the
role's prompt, never a label, and the same payload always gives the same answer.
"""

from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

from chimera.rubric.judge import judge
from chimera.rubric.payload import read_works
from chimera.rubric.reviews import final_decision, peer_review, safety_review

GRADERS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "PeerReview": peer_review,
    "SafetyReview": safety_review,
    "FinalDecision": final_decision,
    "Judgement": judge,
    "RelativeJudgement": lambda payload: {"scores": [_overall({**payload, **work}) for work in read_works(payload)]},
}
"""The grader of each kind of answer, by the name of the JSON schema in the request."""


def _overall(work: Mapping[str, Any]) -> float:
    """The mean of the judge's scores, so that it does not depend on what a work is compared with."""
    return round(fmean(judge(work).values()), 4)


def grade(schema_name: str, payload: Mapping[str, Any]) -> dict[str, Any]:
    """The rubric's answer to a role's payload, in the form of the named schema.

    Args:
        schema_name: One of `GRADERS`.
        payload: The JSON object of the role's first user message.

    Raises:
        ValueError: The schema is unknown, or the payload lacks a key or holds a wrong value; the message names it.
    """
    if schema_name not in GRADERS:
        raise ValueError(f"the rubric cannot answer schema {schema_name!r}: it knows {', '.join(GRADERS)}")
    return GRADERS[schema_name](payload)
