"""Makes conversations on tasks of the family `synthesis`, in the form of the society (see `recipes.nano.transcripts`).

Each junior searches in its own way, so that no junior sees all studies of a task but together they see every one. The
refiner has all passages before it and applies the rule to them. A researcher with all tools makes every search itself.
These transcripts are faultless, except that the designer is vague by `Habits`, as in the other family.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

from agents.roles import REFINER, ROLES
from agents.schemas import Hypothesis
from agents.tools.sources import sources_within
from agents.visit.prompting import Message, dump, opening, tool_message
from chimera.config.roles import JUNIORS, LITERATURE, OWN_TOOLS, TRIALS
from chimera.core.types import YesNoMaybe, abstract_text
from chimera.data.generated.synthesis import FoundStudy, SynthesisTask, decide, decisive
from chimera.data.generated.text import Direction, write_question
from chimera.data.generated.vocabulary import Subject
from recipes.nano.transcripts import TOOLS, Habits, Transcript, designer, feedback, supervisor

PLANS: dict[str, tuple[str, ...]] = dict(zip(JUNIORS, ((LITERATURE,), (TRIALS,), (LITERATURE, TRIALS)), strict=True))
"""The tools that each junior asks by the subject's name. With one tool, it also asks it by the second name."""
SOLO = JUNIORS[1]
"""The role whose prompt a researcher with all tools has."""
MOST_CHARS = 4000
"""Passages that the refiner is shown, in characters, as in configs/synthesis.yaml."""
MOST_QUESTIONS = 2
"""Questions about one set of studies."""
WAYS: tuple[Direction, ...] = ("lower", "higher")
VERB = {"yes": "gives", "no": "does not give", "maybe": "may give"}


@dataclass(frozen=True, slots=True)
class Searches:
    """The searches of one visit: tool, query and the study that is found."""

    made: tuple[tuple[str, str, FoundStudy], ...]

    @property
    def found(self) -> tuple[FoundStudy, ...]:
        """The studies in the order in which they are found."""
        return tuple(study for _, _, study in self.made)


def searches(item: SynthesisTask, tools: Sequence[str], *, second: bool) -> Searches:
    """Ask each tool by the subject's name; with `second` also by the second name, if what it found mentions it."""
    facts = item.facts
    first = [study for tool in tools for study in facts.studies if (study.tool, study.name) == (tool, "name")]
    entries = [(study.tool, facts.therapy, study) for study in first]
    for before in first if second else ():
        if before.second_name:
            entries += [
                (study.tool, facts.second_name, study)
                for study in facts.studies
                if (study.tool, study.name) == (before.tool, "second name")
            ]
    return Searches(tuple(entries))


def of_junior(item: SynthesisTask, name: str) -> Searches:
    return searches(item, PLANS[name], second=len(PLANS[name]) == 1)


def of_solo(item: SynthesisTask) -> Searches:
    """The searches of a researcher with all tools: every study of the task."""
    return searches(item, (LITERATURE, TRIALS), second=True)


def read(item: SynthesisTask, studies: Sequence[FoundStudy]) -> Hypothesis:
    """The hypothesis that follows from `studies`, which are read in this order.

    It quotes each study and says of each, in the same order, whether its population is the asked one and what it
    found. Then it repeats the clause of the largest, so that each step copies from the step before.
    """
    facts = item.facts
    answer = decide(facts.asked, facts.population, studies)
    deciding = decisive(facts.population, studies)
    if not deciding:
        last = "no study of them"
    elif len({study.finding.answer(facts.asked) for study in deciding}) > 1:
        last = "the largest disagree"
    else:
        last = f"largest {clause(deciding[0], facts.population)}"
    clauses = [clause(study, facts.population) for study in studies]
    return Hypothesis(
        evidence=[study.finding.sentence for study in studies],
        comparison="; ".join((f"asked {facts.asked} in {facts.population}", *clauses, last)),
        claim=f"{facts.therapy} {VERB[answer]} {facts.asked} {facts.endpoint}",
        answer=cast(YesNoMaybe, answer),
    )


def clause(study: FoundStudy, population: str) -> str:
    """What one study says to a question about `population`."""
    who = f"{study.participants} {study.population}"
    if study.population != population:
        return f"{who}, other"
    finding = study.finding
    return f"{who}, same, found {finding.direction}, {finding.statistic}, {finding.significance}"


def researcher(item: SynthesisTask, role: str, visit: Searches, tools: Sequence[str]) -> Transcript:
    """A visit that searches, reads and answers."""
    goal = item.task.goal
    messages: list[Message] = opening(ROLES[role], goal)
    for number, (tool, query, study) in enumerate(visit.made):
        function = {"name": tool, "arguments": dump({"query": query})}
        call = {"id": f"call{number}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append(tool_message(call["id"], {"results": [document(study)]}, goal))
    messages.append(answered(read(item, visit.found)))
    return Transcript(role, tuple(messages), tuple(tools))


def reader(item: SynthesisTask, role: str, rng: random.Random) -> Transcript:
    """A visit that is given all studies, and is asked about each population and direction in turn.

    Several answers to one reading make the most of a long prompt. Only the numbers and the population that are asked
    about tell the answers apart.
    """
    facts = item.facts
    documents = rng.sample(facts.studies, len(facts.studies))
    populations = dict.fromkeys(study.population for study in facts.studies)
    questions: list[tuple[str, Direction]] = [(population, way) for population in populations for way in WAYS]
    first, *others = rng.sample(questions, len(questions))[:MOST_QUESTIONS]
    prompt = opening(ROLES[role], ask(item, *first, rng), sources=[document(study) for study in documents])
    messages = [*prompt, answered(read(about(item, *first), documents))]
    for other in others:
        messages.append({"role": "user", "content": dump({"goal": ask(item, *other, rng)})})
        messages.append(answered(read(about(item, *other), documents)))
    return Transcript(role, tuple(messages))


def about(item: SynthesisTask, population: str, direction: Direction) -> SynthesisTask:
    """The same studies with another question."""
    return replace(item, facts=replace(item.facts, population=population, asked=direction))


def ask(item: SynthesisTask, population: str, direction: Direction, rng: random.Random) -> str:
    """A question about the studies of `item`."""
    facts = item.facts
    subject = Subject(facts.kind, facts.therapy, facts.comparator, "", "")
    return write_question(rng, subject, facts.asked_endpoint, population, direction, facts.level)


def refiner(item: SynthesisTask, proposals: dict[str, Hypothesis], rng: random.Random) -> Transcript:
    """The refiner's transcript: it reads all passages that the juniors found, those with the quotes first."""
    author = rng.choice(JUNIORS)
    chosen = proposals[author]
    names = rng.sample(JUNIORS, len(JUNIORS))
    studies = {study.id: study for name in names for study in of_junior(item, name).found}
    sources = sources_within([document(study) for study in studies.values()], chosen.evidence, MOST_CHARS)
    prompt = opening(
        ROLES[REFINER],
        item.task.goal,
        sources=sources,
        hypothesis=chosen.model_dump(),
        justification=f"the {author} quotes evidence that supports {chosen.answer}",
        feedback=feedback(rng, "the evidence does not decide the question"),
    )
    answer = read(item, [studies[source["id"]] for source in sources])
    return Transcript(REFINER, (*prompt, answered(answer)), TOOLS[REFINER])


def transcripts(item: SynthesisTask, rng: random.Random, habits: Habits) -> list[Transcript]:
    """One transcript of a researcher and sometimes one of another role, drawn from `rng`."""
    proposals = {name: read(item, of_junior(item, name).found) for name in JUNIORS}
    if rng.random() < 0.15:  # A hypothesis may be wrong: whoever reads it must not trust it.
        wrong = rng.choice(JUNIORS)
        answer = cast(YesNoMaybe, rng.choice(("yes", "no", "maybe")))
        proposals[wrong] = proposals[wrong].model_copy(update={"answer": answer})
    chosen = proposals[rng.choice(JUNIORS)]
    kind = rng.random()
    if kind < 0.3:
        name = rng.choice(JUNIORS)
        first = researcher(item, name, of_junior(item, name), TOOLS[name])
    elif kind < 0.45:
        first = researcher(item, SOLO, of_solo(item), OWN_TOOLS)
    else:
        first = reader(item, SOLO, rng)
    kind = rng.random()
    if kind < 0.3:
        return [first, refiner(item, proposals, rng)]
    if kind > 0.45:
        return [first]
    return [first, (supervisor if kind < 0.36 else designer)(item, proposals, chosen, rng, habits)]


def stream(items: Iterator[SynthesisTask], seed: int, habits: Habits) -> Iterator[Transcript]:
    rng = random.Random(seed)
    for item in items:
        yield from transcripts(item, rng, habits)


def document(study: FoundStudy) -> dict[str, str]:
    """A study as a passage of a search."""
    return {"id": study.id, "text": abstract_text(study.sections)}


def answered(hypothesis: Hypothesis) -> Message:
    return {"role": "assistant", "content": dump(hypothesis.model_dump())}
