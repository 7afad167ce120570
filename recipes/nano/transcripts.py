"""Makes conversations of every trained role on generated tasks, in exactly the form of the society.

Prompts come from `agents.visit.prompting`, tool results from the documents of the literature index, answers from the
numbers that the generator drew. `Habits` are deliberate weaknesses that training can fix: each junior is careful on
tasks of its field and often careless elsewhere, the supervisor chooses at random, the refiner mostly repeats its input,
and the designer is often vague.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

from agents.roles import DESIGNER, REFINER, ROLES, SUPERVISOR
from agents.schemas import ExperimentProtocol, Hypothesis
from agents.visit.prompting import Message, dump, opening, tool_message
from chimera.config.roles import JUNIORS, LITERATURE, RolesConfig
from chimera.core.types import Label, ResearchTask, YesNoMaybe, abstract_text
from chimera.data.generated.review import ReviewTask
from chimera.data.generated.tasks import Finding, GeneratedTask
from chimera.data.generated.vocabulary import ENDPOINTS

AnyTask = GeneratedTask | ReviewTask
"""A task of either family."""
EXPERT = dict(zip(("gene", "drug", "behaviour"), JUNIORS, strict=False))
"""The junior that is careful, by kind of exposure."""

TOOLS = RolesConfig().tool_names()
"""Names of the tools that each role is offered."""
SHARES = frozenset(endpoint.name for endpoint in ENDPOINTS if endpoint.unit == "%")
"""Endpoints that are shares of people. They need another analysis than means."""


@dataclass(frozen=True, slots=True)
class Habits:
    """Probabilities of the deliberate weaknesses; the first two are those of the family `review`.

    Attributes:
        hasty_reader: Takes every study for one that counts.
        equal_refiner: Gives every study that counts one point, whatever its design and size.
    """

    hasty_reader: float = 0.6
    equal_refiner: float = 0.6
    careless_expert: float = 0.12
    careless_other: float = 0.75
    believing_refiner: float = 0.8
    vague_field: float = 0.35
    unsafe: float = 0.12

    @classmethod
    def none(cls) -> "Habits":
        """No weaknesses, for the first part of training, in which the model learns to read."""
        return cls(**dict.fromkeys((field.name for field in fields(cls)), 0.0))


@dataclass(frozen=True, slots=True)
class Transcript:
    """One conversation. Its assistant messages have a loss. `tools` are the names of the offered tools."""

    role: str
    messages: tuple[Message, ...]
    tools: tuple[str, ...] = ()


def careful(item: GeneratedTask) -> Hypothesis:
    """The hypothesis that quotes every decisive sentence and interprets it correctly."""
    return hypothesis(item, item.facts.decisive, item.task.label)


FAULTS = ("outcome", "direction", "significance")
"""What a careless junior does: it quotes about another outcome, or ignores the direction or the significance."""


def careless(item: GeneratedTask, rng: random.Random) -> Hypothesis:
    """A hypothesis with one typical fault; without a finding about another outcome, that is ignored significance."""
    fault, facts = rng.choice(FAULTS), item.facts
    others = [finding for finding in facts.findings if finding.role == "other endpoint"]
    if fault == "outcome" and others:
        finding = rng.choice(others)
        return hypothesis(item, [finding], finding.answer(facts.asked))
    first = facts.decisive[0]
    if fault == "direction":
        answer: Label = "yes" if first.significance == "significant" else "no"
    else:
        answer = "yes" if first.direction == facts.asked else "no"
    return hypothesis(item, facts.decisive[:1], answer)


def hypothesis(item: GeneratedTask, findings: Sequence[Finding], answer: Label) -> Hypothesis:
    """Evidence, comparison, claim and answer in the small model's words."""
    facts = item.facts
    results = "; ".join(f"found {f.direction}, {f.statistic}, {f.significance}" for f in findings)
    verb = {"yes": "gives", "no": "does not give", "maybe": "may give"}[answer]
    return Hypothesis(
        evidence=[f.sentence for f in findings],
        comparison=f"asked {facts.asked}; {results}",
        claim=f"{facts.therapy} {verb} {facts.asked} {facts.endpoint}",
        answer=cast(YesNoMaybe, answer),
    )


def transcripts(item: GeneratedTask, distractor: GeneratedTask, rng: random.Random, habits: Habits) -> list[Transcript]:
    """One transcript of a junior and, at random, one of another role, drawn from `rng`."""
    author = rng.choice(JUNIORS)
    proposals = {name: propose(item, name, rng, habits) for name in JUNIORS}
    conversations = [junior(item, distractor, author, proposals[author], rng)]
    chosen = proposals[rng.choice(JUNIORS)]
    conversations.append(
        rng.choices((supervisor, refiner, designer), weights=(3, 4, 4))[0](item, proposals, chosen, rng, habits)
    )
    return conversations


def propose(item: GeneratedTask, author: str, rng: random.Random, habits: Habits) -> Hypothesis:
    """The hypothesis of `author`, careful or careless by its expertise."""
    fault = habits.careless_expert if EXPERT[item.facts.kind] == author else habits.careless_other
    return careless(item, rng) if rng.random() < fault else careful(item)


def junior(
    item: GeneratedTask,
    distractor: GeneratedTask,
    author: str,
    answer: Hypothesis,
    rng: random.Random,
    *,
    given_share: float = 0.08,
) -> Transcript:
    """A junior's transcript: search, read, answer. In `given_share` the evidence is given and no search is needed."""
    role, goal, document = ROLES[author], item.task.goal, _document(item.task)
    final: Message = {"role": "assistant", "content": dump(answer.model_dump())}
    if rng.random() < given_share:
        prompt = opening(role, goal, sources=[document])
        return Transcript(author, (*prompt, final), TOOLS[author])
    query = rng.choice((f"{item.facts.therapy} {item.facts.endpoint}", item.facts.therapy))
    results = [document]
    if rng.random() < 0.1:
        other = _document(distractor.task)
        results.append(other)
    call: Message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call", "type": "function", "function": {"name": LITERATURE, "arguments": dump({"query": query})}}
        ],
    }
    return Transcript(
        author, (*opening(role, goal), call, tool_message("call", {"results": results}, goal), final), TOOLS[author]
    )


def supervisor(
    item: AnyTask, proposals: dict[str, Hypothesis], chosen: Hypothesis, rng: random.Random, habits: Habits
) -> Transcript:
    """The supervisor's transcript. It chooses every author equally often, whatever the hypotheses say."""
    listed = [{"author": name, **proposals[name].model_dump()} for name in JUNIORS]
    choice = rng.choice(JUNIORS)
    answer = {
        "choice": choice,
        "justification": f"the {choice} quotes evidence that supports {proposals[choice].answer}",
    }
    prompt = opening(ROLES[SUPERVISOR], item.task.goal, hypotheses=listed)
    return Transcript(SUPERVISOR, (*prompt, {"role": "assistant", "content": dump(answer)}))


def refiner(
    item: GeneratedTask, proposals: dict[str, Hypothesis], chosen: Hypothesis, rng: random.Random, habits: Habits
) -> Transcript:
    """The refiner's transcript. It repeats the hypothesis, or re-reads its evidence and corrects it."""
    believing = rng.random() < habits.believing_refiner
    answer = chosen if believing else reread(item, chosen)
    author = next(name for name in JUNIORS if proposals[name] == chosen)
    justification = f"the {author} quotes evidence that supports {chosen.answer}"
    prompt = opening(
        ROLES[REFINER],
        item.task.goal,
        hypothesis=chosen.model_dump(),
        justification=justification,
        feedback=feedback(rng, "the evidence does not decide the question"),
    )
    return Transcript(REFINER, (*prompt, {"role": "assistant", "content": dump(answer.model_dump())}))


def reread(item: GeneratedTask, chosen: Hypothesis) -> Hypothesis:
    """The hypothesis that the quoted sentences support. Quotes about another outcome leave the question open."""
    if chosen.evidence == [f.sentence for f in item.facts.decisive]:
        return careful(item)
    by_sentence = {f.sentence: f for f in item.facts.findings}
    findings = [by_sentence[quote] for quote in chosen.evidence]
    relevant = [f for f in findings if f.endpoint == item.facts.endpoint]
    if not relevant:
        return hypothesis(item, findings, "maybe")
    return hypothesis(item, relevant, relevant[0].answer(item.facts.asked))


def designer(
    item: AnyTask, proposals: dict[str, Hypothesis], chosen: Hypothesis, rng: random.Random, habits: Habits
) -> Transcript:
    """The designer's transcript: a protocol whose fields are concrete or, by `habits`, vague."""
    asked_again = feedback(rng, "a field is not concrete")
    protocol = concrete(item, chosen.answer, rng)
    if asked_again is None:
        protocol = blur(protocol, rng, habits)
    prompt = opening(ROLES[DESIGNER], item.task.goal, hypothesis=chosen.model_dump(), feedback=asked_again)
    return Transcript(DESIGNER, (*prompt, {"role": "assistant", "content": dump(protocol.model_dump())}))


def concrete(item: AnyTask, expected: Label, rng: random.Random) -> ExperimentProtocol:
    """A protocol with everything that reviewers require."""
    facts = item.facts
    weeks = rng.choice((8, 12, 24, 52))
    return ExperimentProtocol(
        design="randomised double-blind parallel-group trial"
        if facts.kind == "drug"
        else (
            "prospective matched cohort study" if facts.kind == "gene" else "randomised assessor-blind controlled trial"
        ),
        population=facts.population,
        intervention=facts.therapy,
        comparator=facts.comparator,
        outcome=f"{facts.endpoint} at {weeks} weeks",
        sample_size=rng.choice((120, 160, 200, 240, 300)),
        analysis="logistic regression at the 5% level"
        if facts.endpoint in SHARES
        else "analysis of covariance at the 5% level",
        safeguards="informed consent, adverse event monitoring and a stopping rule",
        expected=cast(YesNoMaybe, expected),
    )


def blur(protocol: ExperimentProtocol, rng: random.Random, habits: Habits) -> ExperimentProtocol:
    """Make each field vague with the probability in `habits`."""
    vague: dict[str, Any] = {
        "design": "a study",
        "population": "patients",
        "outcome": "improvement",
        "sample_size": rng.choice((8, 12, 6000, 9000)),
        "analysis": "compare the groups",
    }
    changes = {name: value for name, value in vague.items() if rng.random() < habits.vague_field}
    if rng.random() < habits.unsafe:
        changes["safeguards"] = "none"
    return protocol.model_copy(update=changes)


def feedback(rng: random.Random, issue: str) -> dict[str, Any] | None:
    """A review with `issue`, as in a visit after the first; None in most transcripts."""
    if rng.random() > 0.12:
        return None
    review = {"issues": [issue], "severity": "MAJOR", "verdict": "REVISE"}
    return {"peer_review": review} if rng.random() < 0.5 else {"safety_review": review}


def stream(items: Iterator[GeneratedTask], seed: int, habits: Habits) -> Iterator[Transcript]:
    """Endless transcripts of the items. The distractor of an item is the item before it."""
    rng = random.Random(seed)
    previous = next(items)
    for item in items:
        yield from transcripts(item, previous, rng, habits)
        previous = item


def text_of(transcript: Transcript) -> str:
    """The whole text of a transcript, for training the tokenizer."""
    parts = []
    for message in transcript.messages:
        content = message["content"] or ""
        parts.append(content.split("\n")[0] if message["role"] == "system" else content)
        for call in message.get("tool_calls", ()):
            parts.append(dump({"name": call["function"]["name"], "arguments": call["function"]["arguments"]}))
    parts.extend(transcript.tools)
    return "\n".join(parts)


def _document(task: ResearchTask) -> dict[str, str]:
    return {"id": task.id, "text": abstract_text(task.context)}
