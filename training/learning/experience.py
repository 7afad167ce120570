"""What one rollout holds of what its roles said: conversations, and calls with their tokens. Plain data."""

from dataclasses import dataclass, field, replace
from typing import Any

from agents.roles import ROLES
from agents.schemas import Answer
from agents.visit.quoting import texts_read
from agents.visit.react import read_answer
from chimera.core.types import Label
from chimera.serving.client import Completion, read_completions
from evaluation.traces.calls import TracedCall

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Conversation:
    """One visit of one role that came to a readable answer: an example to imitate.

    Attributes:
        role: Whose visit.
        visit: Which of its visits in the rollout, from 1.
        messages: OpenAI chat messages: the prompt, all assistant turns of the visit's last attempt, tool results.
        tools: OpenAI tool schemas that were offered at first; None when there were none.
        answer: The answer as the role's schema reads it.
        parsed: Whether the first answer was readable; False when it took the repair.
        weights_version: The weights that sampled the answer, as the server says.
        stance: What the answer says to the question (`agents.schemas.Answer.stance`).
        quotes: The sentences that the answer quotes (`agents.schemas.Answer.quotes`).
    """

    role: str
    visit: int
    messages: list[Message]
    tools: list[dict[str, Any]] | None
    answer: dict[str, Any]
    parsed: bool
    weights_version: str | None = None
    stance: Label | None = None
    quotes: tuple[str, ...] = ()

    def answered_by(self, call: "Call") -> "Conversation":
        """The same visit with another answer to its last prompt, such as a branch of its last call.

        Raises:
            ValueError: The call holds no readable answer.
        """
        answer = call.answer
        if answer is None or call.asked is None:
            raise ValueError(f"{call.response_id} holds no readable answer of {call.role}")
        message = {"role": "assistant", "content": call.asked.choice["message"]["content"]}
        return replace(
            self,
            messages=[*self.messages[:-1], message],
            answer=answer.model_dump(),
            weights_version=call.weights_version,
            stance=answer.stance,
            quotes=answer.quotes,
        )


@dataclass(frozen=True, slots=True)
class Call:
    """One model call as an action: the state is its prompt's tokens, the action its response's tokens.

    Attributes:
        visit: Which of the role's visits, from 1.
        attempt: Which try of that visit, from 1.
        step: Which call of that try, from 1.
        response_id: The server's id of the response.
        prompt_ids: Token ids of the prompt, as the server saw them.
        response_ids: Token ids of the response, as they were sampled.
        weights_version: The weights that sampled them, as the server says.
        immediate: The call's own reward r_t: parsed, call_valid and tool_succeeded of this call alone.
        outcome: Whether it earns the rollout's reward. False for an unreadable answer that was repaired, and for all
            calls of a try that was broken off.
        handed: The answer (yes, no or maybe) of the hypothesis that the prompt handed to the role, if it did.
        asked: The exchange in the trace: its messages, and what was offered. None where there is no trace.
    """

    rollout_id: str
    role: str
    visit: int
    attempt: int
    step: int
    response_id: str
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    weights_version: str | None
    immediate: float
    outcome: bool
    handed: str | None = None
    asked: TracedCall | None = field(default=None, repr=False, compare=False)

    @property
    def answer(self) -> Answer | None:
        """What the response says in the role's schema; None for a request for tools, or if it cannot be read."""
        if self.asked is None:
            return None
        completion = read_completions({"choices": [self.asked.choice]}, self.role)[0]
        try:
            return read_answer(ROLES[self.role], completion, self.asked.messages)
        except ValueError:
            return None

    @property
    def passages(self) -> list[str]:
        """The texts that the role had read; none where there is no trace."""
        return [] if self.asked is None else texts_read(self.asked.messages)

    @property
    def log_probs(self) -> tuple[float, ...] | None:
        """Natural logarithm of each response token's probability under the weights that sampled it, at temperature 1.

        As the server said, without the grammar's mask; None if it was not asked for them.
        """
        logprobs = self.asked.choice.get("logprobs") if self.asked is not None else None
        content = logprobs.get("content") if logprobs else None
        return None if content is None else tuple(float(token["logprob"]) for token in content)

    def answered(self, completion: Completion) -> "Call":
        """The call with another answer to the same messages. It has no token ids, and nothing came of it.

        Raises:
            ValueError: The call's exchange is not known.
        """
        if self.asked is None:
            raise ValueError(f"{self.response_id} has no exchange in its trace")
        origin = {"response_id": completion.response_id, "weights_version": completion.weights_version}
        choice = {"index": 0, "message": completion.message, "finish_reason": completion.finish_reason}
        exchange = replace(self.asked, choice=choice, response_ids=None, **origin)
        return replace(self, response_ids=(), immediate=0.0, outcome=False, asked=exchange, **origin)
