"""Who answers the recorded prompts of a role in its place. No teacher is shown a label.

greedy   the same weights at temperature 0
vote     the same weights, several times: of the answers that say what most say, the one with the fewest false
         quotes, and among these the commonest text
slot     another slot's model, such as an endpoint
society  what the society came to in that rollout: its refined hypothesis, for roles that answer with a hypothesis
"""

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from agents.roles import ROLES
from agents.visit.prompting import dump, schema_in
from chimera.core.quotes import missing_quotes
from chimera.serving.client import Completion
from training.learning.base import Bench
from training.learning.experience import Call
from training.learning.states import State

Teacher = Literal["greedy", "vote", "slot", "society"]
Fault = Literal["stale", "unreadable", "misquoting"]
FAULTS: tuple[Fault, ...] = get_args(Fault)


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a teacher is given beside the prompt.

    Attributes:
        student: The slot that learns.
        slot: The slot that teaches, if another one does.
        answers: How many answers a vote is taken of.
    """

    bench: Bench
    student: str
    slot: str
    answers: int

    async def of(self, teacher: Teacher, state: State) -> "Call | Fault":
        """The teacher's answer to the prompt of `state`, or why it cannot be learned.

        Raises:
            ModelError: A model's server failed.
            RunError: A call cannot be asked again.
        """
        reply = await TEACHERS[teacher](self, state)
        if reply is None:
            return "stale"
        if (answer := reply.answer) is None:
            return "unreadable"
        return "misquoting" if missing_quotes(answer.quotes, reply.passages) else reply

    async def asked(self, slot: str, state: State, **options: Any) -> Completion:
        """The answer of a slot's model to the messages of the recorded prompt, in the form that was asked for."""
        exchange, seed = state.call.asked, self.bench.config.seed
        assert exchange is not None  # States are calls of a trace.
        return await self.bench.ask(
            slot, exchange.messages, response_format=exchange.response_format, seed=seed, **options
        )

    @property
    def version(self) -> str:
        """The student's weights, of which some teachers' answers must be."""
        return self.bench.versions[self.student]


async def _greedy(lesson: Lesson, state: State) -> Call | None:
    offered = state.call.asked.tools if state.call.asked is not None else None  # They are part of the prompt.
    completion = await lesson.asked(lesson.student, state, tools=offered or (), temperature=0.0)
    return state.call.answered(completion) if completion.weights_version == lesson.version else None


async def _vote(lesson: Lesson, state: State) -> Call | None:
    drawn = await lesson.bench.branch(state.call, lesson.answers, seed=lesson.bench.config.seed)
    answers = [call for call in drawn if call.weights_version == lesson.version]
    return elected(answers) if answers else None


async def _slot(lesson: Lesson, state: State) -> Call:
    # It is offered no tools, because it is to answer now.
    reply = state.call.answered(await lesson.asked(lesson.slot, state))
    if reply.answer is None:
        return reply
    # A model of another kind may put a fence around its JSON, which is not to be learned.
    text = _text(reply)
    return rewritten(reply, json.loads(text[text.index("{") : text.rindex("}") + 1]))


async def _society(lesson: Lesson, state: State) -> Call:
    return rewritten(state.call, state.episode.record.outputs["refined_hypothesis"])


TEACHERS: Mapping[Teacher, Callable[[Lesson, State], Awaitable[Call | None]]] = {
    "greedy": _greedy,
    "vote": _vote,
    "slot": _slot,
    "society": _society,
}
"""A teacher's answer to a prompt; None if it is by other weights than those that it must be by."""


def elected(answers: Sequence[Call]) -> Call:
    """Of answers to one prompt, at least one: what most say, with the fewest false quotes, in the commonest words.

    Answers that cannot be read have no vote, unless there are no others. Of equals the one that was drawn first.
    """
    read = [(call, answer) for call in answers if (answer := call.answer) is not None]
    if not read:
        return answers[0]
    stances, texts = Counter(answer.stance for _, answer in read), Counter(_text(call) for call, _ in read)
    seen = read[0][0].passages
    ranks = [
        (-stances[answer.stance], len(missing_quotes(answer.quotes, seen)), -texts[_text(call)])
        for call, answer in read
    ]
    return read[ranks.index(min(ranks))][0]


def rewritten(call: Call, answer: Mapping[str, Any]) -> Call:
    """The call with `answer` in the form that its role's answers have."""
    assert call.asked is not None
    fields = schema_in(ROLES[call.role], call.asked.messages).model_fields
    content = dump({name: answer[name] for name in fields})
    choice = {**call.asked.choice, "message": {"role": "assistant", "content": content}}
    return replace(call, asked=replace(call.asked, choice=choice))


def _text(call: Call) -> str:
    assert call.asked is not None
    return call.asked.choice["message"]["content"]
