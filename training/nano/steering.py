"""Makes conversations in which guidance switches planted habits off (see `chimera.config.sections.guidance`).

Without guidance a role has the habits of `training.nano.transcripts`. A lesson, a skill or a sentence of the system
prompt that names a fault switches this fault off; an example of a task on which the fault would show halves it; any
other guidance changes nothing. So a method that finds, writes or selects guidance has something to find.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

from agents.roles import DESIGNER, REFINER, ROLES
from agents.visit.prompting import dump, read_payload
from chimera.config.roles import JUNIORS
from chimera.config.sections.guidance import Guidance
from chimera.data.generated.tasks import GeneratedTask
from training.nano.sentences import BELIEF, HELD_BACK, SENTENCES, UNSAFE, VAGUE, WORDS, against
from training.nano.transcripts import (
    EXPERT,
    FAULTS,
    Habits,
    Transcript,
    careful,
    concrete,
    designer,
    junior,
    refiner,
    supervisor,
    with_fault,
)

Channel = Literal["lessons", "skills", "prompt", "examples"]
CHANNELS: tuple[Channel, ...] = ("lessons", "skills", "prompt", "examples")
FAULTS_OF: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(JUNIORS, FAULTS),
    REFINER: (BELIEF,),
    DESIGNER: (VAGUE, UNSAFE),
}
"""The faults that a role's planted habits have."""
WHEN: tuple[str, ...] = ("always", "before the answer", "when a study reports several results")
"""When a skill helps."""
PLAIN_SHARE = 0.35
"""Conversations without any guidance."""
CHOICE_SHARE = 0.9
"""Juniors' conversations in which only the choice between a careful and a faulty answer is learned."""
ALL_SHARE = 0.7
"""Guidance that is about all faults of a role; the rest is about any number of them."""
SHORT_SHARE = 0.5
"""Conversations whose system prompt is one of the user's own: the first line, and what else is said."""
HALF = 0.5
CARELESS = Habits(careless_expert=0.8, careless_other=0.8)
"""Without guidance all juniors are equally careless, so that only guidance tells when a fault happens."""


@dataclass(frozen=True, slots=True)
class Steering:
    """Guidance, and what it does: faults in `off` do not happen, those in `halved` half as often."""

    guidance: Guidance = field(default_factory=Guidance)
    off: frozenset[str] = frozenset()
    halved: frozenset[str] = frozenset()

    def stops(self, fault: str, rng: random.Random) -> bool:
        return fault in self.off or (fault in self.halved and rng.random() < HALF)


def steer(role: str, wanted: Mapping[Channel, list[str]], rng: random.Random, others: "WorkedExamples") -> Steering:
    """Guidance for `role`: for each channel sentences (or examples) in random order."""
    prompt, lessons, skills = "", tuple(wanted.get("lessons", ())), ()
    if "prompt" in wanted:
        usual, said = ROLES[role].prompt, wanted["prompt"]
        prompt = "\n".join((usual if said and rng.random() < HALF else usual.split("\n")[0], *said))
    if told := wanted.get("skills"):
        skills = tuple({"name": f"check {n + 1}", "when": rng.choice(WHEN), "do": one} for n, one in enumerate(told))
    shown = [others.of(role, fault, rng) for fault in wanted.get("examples", ())]
    examples = tuple(one for one in shown if one is not None)
    guidance = Guidance(prompt=prompt, lessons=lessons, examples=examples, skills=skills)
    off = {fault for one in (*lessons, *wanted.get("prompt", ()), *wanted.get("skills", ())) for fault in against(one)}
    halved = {fault for fault, one in zip(wanted.get("examples", ()), shown, strict=True) if one is not None}
    return Steering(guidance, frozenset(off), frozenset(halved))


def draw(role: str, rng: random.Random, others: "WorkedExamples") -> Steering:
    """Guidance as a user or a method might give it: much of it fits, some fits other roles, some is about nothing."""
    wanted: dict[Channel, list[str]] = {"prompt": []} if rng.random() < SHORT_SHARE else {}
    if rng.random() < PLAIN_SHARE:
        return steer(role, wanted, rng, others)
    own = FAULTS_OF.get(role, ())
    for channel in rng.sample(CHANNELS, rng.choice((1, 1, 1, 2))):
        faults = rng.sample(own, len(own) if rng.random() < ALL_SHARE else rng.randint(0, len(own)))
        if channel == "examples":
            wanted[channel] = faults
            continue
        said = [rng.choice(SENTENCES[fault]) for fault in faults]
        foreign = [fault for fault in WORDS if fault not in own]
        if rng.random() < 0.4:
            said.append(rng.choice(SENTENCES[None]))
        if rng.random() < 0.2:
            said.append(rng.choice(SENTENCES[rng.choice(foreign)]))
        rng.shuffle(said)
        wanted[channel] = said
    return steer(role, wanted, rng, others)


class WorkedExamples:
    """Worked examples by the fault that would show on them, from the tasks that came before."""

    def __init__(self, kept: int = 200) -> None:
        self._kept = kept
        self._tasks: dict[str, list[GeneratedTask]] = {}

    def add(self, item: GeneratedTask) -> None:
        for fault in (shows(item), BELIEF, VAGUE, UNSAFE):
            found = self._tasks.setdefault(fault, [])
            found.append(item)
            del found[: -self._kept]

    def of(self, role: str, fault: str, rng: random.Random) -> dict[str, Any] | None:
        """An example for `role` of a task on which `fault` would show; None before there was such a task."""
        if not (tasks := self._tasks.get(fault)):
            return None
        item = rng.choice(tasks)
        if role == DESIGNER:
            made = concrete(item, item.task.label, rng).model_dump()
            return {"goal": item.task.goal, **made}
        right = careful(item).model_dump()
        if role == REFINER:
            wrong = with_fault(item, rng.choice(FAULTS), rng)
            return {"goal": item.task.goal, "hypothesis": {"answer": wrong.answer}, **right}
        return {"goal": item.task.goal, **right}


def shows(item: GeneratedTask) -> str:
    """The fault of juniors that a right answer to `item` speaks against."""
    first = item.facts.decisive[0]
    if first.significance != "significant":
        return "significance"
    return "direction" if first.direction != item.facts.asked else "outcome"


def guided(transcript: Transcript, guidance: Guidance) -> Transcript:
    """The conversation as it is with `guidance` in its opening messages, as `agents.visit.visits` writes it."""
    system, user, *rest = transcript.messages
    system = {**system, "content": guidance.prompt or ROLES[transcript.role].prompt}
    user = {**user, "content": dump({**guidance.payload(), **read_payload(user)})}
    return replace(transcript, messages=(system, user, *rest))


def transcript(
    item: GeneratedTask, distractor: GeneratedTask, rng: random.Random, others: WorkedExamples
) -> Transcript:
    """One conversation with guidance, of a role drawn from `rng`."""
    habits, author = CARELESS, rng.choice(JUNIORS)
    kind = rng.random()
    if kind < 0.85:
        steering = draw(author, rng, others)
        answer = propose(item, author, rng, habits, steering)
        made = junior(item, distractor, author, answer, rng, given_share=0.85)
        if rng.random() < CHOICE_SHARE:
            made = replace(made, others=answers(item, rng))
        return guided(made, steering.guidance)
    proposals = {name: propose(item, name, rng, habits, Steering()) for name in JUNIORS}
    chosen = proposals[author]
    role, make = (REFINER, refiner) if kind < 0.92 else (DESIGNER, designer)
    if kind > 0.98:
        return supervisor(item, proposals, chosen, rng, habits)
    steering = draw(role, rng, others)
    left = replace(
        habits,
        believing_refiner=share(habits.believing_refiner, BELIEF, steering),
        vague_field=share(habits.vague_field, VAGUE, steering),
        unsafe=share(habits.unsafe, UNSAFE, steering),
    )
    return guided(make(item, proposals, chosen, rng, left), steering.guidance)


def share(usual: float, fault: str, steering: Steering) -> float:
    """How often a fault that usually happens in a share `usual` of answers happens with this guidance."""
    return 0.0 if fault in steering.off else usual * (HALF if fault in steering.halved else 1.0)


def answers(item: GeneratedTask, rng: random.Random) -> tuple[str, ...]:
    """The careful answer to `item` and one with each fault."""
    made = [careful(item), *(with_fault(item, fault, rng) for fault in FAULTS)]
    return tuple(dict.fromkeys(dump(one.model_dump()) for one in made))


def propose(item: GeneratedTask, author: str, rng: random.Random, habits: Habits, steering: Steering) -> Any:
    """The hypothesis of `author`: careful, or with a fault that shows on this task and that no guidance stops."""
    usual = habits.careless_expert if EXPERT[item.facts.kind] == author else habits.careless_other
    right = careful(item)
    wrong = {fault: with_fault(item, fault, rng) for fault in FAULTS}
    shown = [fault for fault, answer in wrong.items() if answer != right]
    if not shown or rng.random() >= usual or steering.stops(fault := rng.choice(shown), rng):
        return right
    return wrong[fault]


def stream(items: Iterator[GeneratedTask], seed: int) -> Iterator[Transcript]:
    """Endless conversations, two of each item. The distractor of an item is the item before it."""
    rng, others = random.Random(seed), WorkedExamples()
    previous = next(items)
    for item in items:
        yield transcript(item, previous, rng, others)
        yield transcript(item, previous, rng, others)
        others.add(item)
        previous = item


def exams(items: Sequence[GeneratedTask]) -> dict[str, list[Transcript]]:
    """Faultless junior transcripts of `items`, by what the junior is told; the same items and order in each."""
    others = WorkedExamples()
    for item in items:
        others.add(item)
    told: dict[str, Callable[[random.Random], Mapping[Channel, list[str]]]] = {
        "nothing": lambda rng: {},
        "other lessons": lambda rng: {"lessons": rng.sample(SENTENCES[None], 3)},
        "examples": lambda rng: {"examples": list(FAULTS)},
        "lessons in words of their own": lambda rng: {"lessons": [rng.choice(HELD_BACK[one]) for one in FAULTS]},
        **{f"a lesson on {one}": lambda rng, one=one: {"lessons": [rng.choice(SENTENCES[one])]} for one in FAULTS},
    }
    for channel in CHANNELS[:3]:
        told[channel] = lambda rng, channel=channel: {channel: [rng.choice(SENTENCES[one]) for one in FAULTS]}
    return {name: [_asked(pair, wanted, others) for pair in pairwise(items)] for name, wanted in told.items()}


def _asked(
    pair: tuple[GeneratedTask, GeneratedTask],
    wanted: Callable[[random.Random], Mapping[Channel, list[str]]],
    others: WorkedExamples,
) -> Transcript:
    item, distractor = pair
    rng = random.Random(item.task.id)
    author = rng.choice(JUNIORS)
    asked = junior(item, distractor, author, careful(item), rng, given_share=0.4)
    return guided(asked, steer(author, wanted(rng), rng, others).guidance)
