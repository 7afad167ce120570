"""Sub-goals: what a good answer of a role has, whatever becomes of the rollout. Each is read from the call alone."""

from agents.schemas import ExperimentProtocol, Hypothesis
from agents.visit.quoting import texts_read
from chimera.core.quotes import missing_quotes
from training.learning.experience import Call


def reached(call: Call) -> dict[str, bool]:
    """Each sub-goal of the call's answer, and whether it is reached; empty for a request for tools.

    readable   the answer fits the role's schema
    quotes     a hypothesis quotes something
    verbatim   all its quotes stand word for word in what the role has read
    expects    a protocol expects the answer of the hypothesis that it is to test
    """
    if call.asked is not None and call.asked.choice["message"].get("tool_calls"):
        return {}
    answer = call.answer
    found = {"readable": answer is not None}
    if isinstance(answer, Hypothesis) and call.asked is not None:
        found["quotes"] = bool(answer.quotes)
        found["verbatim"] = not missing_quotes(answer.quotes, texts_read(call.asked.messages))
    if isinstance(answer, ExperimentProtocol) and call.handed is not None:
        found["expects"] = answer.expected == call.handed
    return found


def share_reached(call: Call) -> float:
    """The share of the call's sub-goals that are reached; 0 if it has none."""
    found = reached(call)
    return sum(found.values()) / len(found) if found else 0.0
