"""Makes conversations on tasks of the family `review`, in the form of the society (see `recipes.nano.transcripts`).

Each junior searches one database, first by the name in the question and then by another name that it read of. It reads
each study in a visit of its own and hands over a finding of it; the refiner weighs the findings of all. A researcher
with all tools and one who is given several studies hand over findings too, as the baselines do. By `Habits`, a
hasty reader takes every study for one that counts, the refiner gives all the same weight, and the designer is vague.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from agents.findings import (
    COMBINATION,
    FINDINGS,
    MOST_FINDINGS,
    TOPICS,
    Combination,
    Findings,
    StudyFinding,
    combined,
    counting,
    handed_over,
    tally,
    vote,
)
from agents.roles import DESIGNER, REFINER, ROLES
from agents.schemas import Answer
from agents.visit.prompting import Message, dump, opening, tool_message
from chimera.config.roles import JUNIORS, LITERATURE, OWN_TOOLS, TRIALS
from chimera.core.types import abstract_text
from chimera.core.weighing import Vote, weigh
from chimera.data.generated.review import NAMES, ReviewFacts, ReviewStudy, ReviewTask
from chimera.data.generated.text import Direction, write_question
from chimera.data.generated.vocabulary import CONDITIONS, ENDPOINTS, GROUPS, Subject
from recipes.nano.transcripts import Habits, Transcript, blur, concrete, feedback

DATABASES: dict[str, str] = {JUNIORS[0]: LITERATURE, JUNIORS[1]: TRIALS}
"""The one tool of each junior, as in configs/review.yaml."""
SOLO = JUNIORS[1]
"""The role whose prompt a researcher with all tools has, and one who is given studies."""
MOST_QUESTIONS = 2
"""Questions about one set of studies."""
VERB = {"yes": "gives", "no": "does not give", "maybe": "may give"}
Way = tuple[str, str]
"""A search: the tool, and whether by the name or the second name."""


def found_by(item: ReviewTask, way: Way) -> list[ReviewStudy]:
    """The studies that a search finds."""
    return [study for study in item.facts.studies if (study.tool, study.name) == way]


def query(facts: ReviewFacts, way: Way) -> str:
    return facts.therapy if way[1] == NAMES[0] else facts.second_name


def finding_of(facts: ReviewFacts, study: ReviewStudy) -> dict[str, Any]:
    """The finding that is right for a study."""
    populations = study.population, facts.population
    return {
        "study": study.id,
        "quote": study.finding.sentence,
        "retracted": study.retracted,
        "design": study.design,
        "size": study.participants,
        "group": compared(*(population.partition(" with ")[0] for population in populations)),
        "condition": compared(*(population.partition(" with ")[2] for population in populations)),
        "outcome": compared(study.endpoint, facts.endpoint),
        "direction": compared(study.finding.direction, facts.target),
        "significance": study.finding.significance,
        "answer": study.finding.answer(facts.target),
    }


def compared(says: str, asked: str) -> dict[str, Any]:
    return {"says": says, "asked": asked, "same": says == asked}


def hastily(finding: dict[str, Any]) -> dict[str, Any]:
    """A finding as a hasty reader hands it over: of a study that counts, whatever it is about."""
    return {**finding, "retracted": False, **{part: {**finding[part], "same": True} for part in TOPICS}}


def equally(finding: Mapping[str, Any]) -> Vote:
    """What a finding says to somebody for whom all studies weigh the same."""
    return replace(vote(finding), weight=1)


def findings_of(
    facts: ReviewFacts, studies: Sequence[ReviewStudy], *, searched: bool = False, hasty: bool = False
) -> Findings:
    """The findings that are right for `studies`, in this order.

    Args:
        searched: The second name is searched already.
        hasty: As a hasty reader hands them over.
    """
    leads = not searched and any(study.second_name for study in studies)
    findings = [finding_of(facts, study) for study in studies]
    return Findings(
        findings=[StudyFinding.model_validate(hastily(finding) if hasty else finding) for finding in findings],
        search=facts.second_name if leads else "",
    )


def combination_of(
    facts: ReviewFacts, findings: Sequence[dict[str, Any]], read: Callable[[Mapping[str, Any]], Vote] = vote
) -> Combination:
    """What the findings say together to somebody who weighs each as `read`."""
    answer = weigh(map(read, findings))
    return Combination(
        comparison=tally(findings, read),
        studies=counting(findings),
        claim=f"{facts.therapy} {VERB[answer]} {facts.target} {facts.endpoint}",
        answer=answer,
    )


def researcher(
    item: ReviewTask,
    role: str,
    ways: Sequence[Way],
    tools: Sequence[str],
    rng: random.Random,
    *,
    shown: int = MOST_FINDINGS,
    hasty: bool = False,
) -> Transcript:
    """A visit that makes the searches `ways` one after another and hands over its findings.

    Args:
        shown: The most studies that it is shown of each search.
    """
    goal, facts = item.task.goal, item.facts
    searched = ways[0][1] != NAMES[0]
    messages = opening(ROLES[role], goal, form=FINDINGS, search=facts.second_name if searched else None)
    read: list[ReviewStudy] = []
    for number, way in enumerate(ways):
        function = {"name": way[0], "arguments": dump({"query": query(facts, way)})}
        call = {"id": f"call{number}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        results = rng.sample(studies := found_by(item, way), min(shown, len(studies)))
        messages.append(tool_message(call["id"], {"results": [document(study) for study in results]}, goal))
        read += results
    messages.append(answered(findings_of(facts, read[:MOST_FINDINGS], searched=searched, hasty=hasty)))
    return Transcript(role, tuple(messages), tuple(tools))


def junior(item: ReviewTask, role: str, name: str, rng: random.Random, *, hasty: bool = False) -> Transcript:
    """A junior's first visit: it searches its database by one name, and reads the first study."""
    tool = DATABASES[role]
    return researcher(item, role, [(tool, name)], (tool,), rng, shown=1, hasty=hasty)


def further(item: ReviewTask, role: str, rng: random.Random, *, hasty: bool = False) -> Transcript:
    """A junior's visit that is given one study, and is asked about it in turn."""
    study = rng.choice(item.facts.studies)
    searched = item.facts.second_name if rng.random() < 0.3 else None
    return asked_in_turn(item, role, [study], rng, searched=searched, hasty=hasty)


def reader(item: ReviewTask, rng: random.Random, *, hasty: bool = False) -> Transcript:
    """A visit that is given two to four studies, as a single call is, and is asked about them in turn."""
    return asked_in_turn(item, SOLO, rng.sample(item.facts.studies, rng.choice((2, 3, 4))), rng, hasty=hasty)


def asked_in_turn(
    item: ReviewTask,
    role: str,
    studies: Sequence[ReviewStudy],
    rng: random.Random,
    *,
    searched: str | None = None,
    hasty: bool = False,
) -> Transcript:
    """A visit that is given `studies`, with several questions.

    Several answers to one reading make the most of a long prompt. Only what is asked about tells them apart.

    Args:
        searched: The second name, if it has been searched.
    """
    first, *others = (about(item, rng, rng.choice(studies)) for _ in range(MOST_QUESTIONS))
    sources = [document(study) for study in studies]
    messages = opening(ROLES[role], first.task.goal, form=FINDINGS, sources=sources, search=searched)
    messages.append(answered(findings_of(first.facts, studies, searched=bool(searched), hasty=hasty)))
    for other in others:
        messages.append({"role": "user", "content": dump({"goal": other.task.goal})})
        messages.append(answered(findings_of(other.facts, studies, searched=bool(searched), hasty=hasty)))
    return Transcript(role, tuple(messages))


def about(item: ReviewTask, rng: random.Random, study: ReviewStudy) -> ReviewTask:
    """The same studies with another question: half of the time about another group, condition or outcome.

    Without these questions nearly all that is read would be about what is asked, and no comparison would be learned.
    """
    facts = item.facts
    measured = rng.choice((study.endpoint, rng.choice(ENDPOINTS).name))
    endpoint = next(endpoint for endpoint in ENDPOINTS if endpoint.name == measured)
    name = endpoint.synonym if facts.level == 4 and rng.random() < 0.5 else endpoint.name
    way: Direction = rng.choice(("lower", "higher"))
    group, _, condition = study.population.partition(" with ")
    population = f"{rng.choice((group, rng.choice(GROUPS)))} with {rng.choice((condition, rng.choice(CONDITIONS)))}"
    subject = Subject(facts.kind, facts.therapy, facts.comparator, "", "")
    asked_facts = replace(facts, target=way, endpoint=endpoint.name, asked_endpoint=name, population=population)
    goal = write_question(rng, subject, name, population, way, facts.level)
    return replace(item, facts=asked_facts, task=replace(item.task, goal=goal))


def refiner(
    item: ReviewTask, rng: random.Random, *, true: bool = False, read: Callable[[Mapping[str, Any]], Vote] = vote
) -> Transcript:
    """The refiner's transcript: the findings of all searches, or others that were drawn for practice."""
    facts = item.facts
    studies = [study for tool in DATABASES.values() for name in NAMES for study in found_by(item, (tool, name))]
    findings = [finding_of(facts, study) for study in studies]
    if not true and rng.random() < 0.7:
        # Long lists come more often: in these the model skips or swaps lines.
        findings = practices(rng, rng.randint(rng.choice((1, 12)), 16))
    again = feedback(rng, "the evidence does not decide the question")
    prompt = opening(ROLES[REFINER], item.task.goal, form=COMBINATION, findings=handed_over(findings), feedback=again)
    return Transcript(REFINER, (*prompt, answered(combination_of(facts, findings, read))))


def practices(rng: random.Random, count: int) -> list[dict[str, Any]]:
    """Findings of no study. Most oppose what leads so far: where the leading answer changes, the model errs most."""
    findings: list[dict[str, Any]] = []
    for _ in range(count):
        leading = weigh(map(vote, findings))
        finding = practice(rng)
        if leading == finding["answer"] != "maybe" and rng.random() < 0.6:
            finding["answer"] = "no" if leading == "yes" else "yes"
        findings.append(finding)
    return findings


def practice(rng: random.Random) -> dict[str, Any]:
    """What the refiner needs to know of a finding, of no study."""
    flaw = rng.choice(("retracted", "group", "condition", "outcome", *[None] * 5))
    return {
        "study": "",
        "retracted": flaw == "retracted",
        "group": {"same": flaw != "group"},
        "condition": {"same": flaw != "condition"},
        "outcome": {"same": flaw != "outcome"},
        "design": rng.choice(("trial", "cohort")),
        "size": 2 * rng.randint(50, 490),
        "answer": rng.choice(("yes", "yes", "no", "no", "maybe")),
    }


def designer(item: ReviewTask, rng: random.Random, habits: Habits) -> Transcript:
    """The designer's transcript: a protocol for what the studies say together."""
    facts = item.facts
    findings = [finding_of(facts, study) for study in facts.studies]
    combination = combination_of(facts, findings)
    again = feedback(rng, "a field is not concrete")
    protocol = concrete(item, combination.answer, rng)
    if again is None:
        protocol = blur(protocol, rng, habits)
    hypothesis = combined(combination.model_dump(), findings)
    prompt = opening(ROLES[DESIGNER], item.task.goal, hypothesis=hypothesis, feedback=again)
    return Transcript(DESIGNER, (*prompt, answered(protocol)))


def stream(items: Iterator[ReviewTask], seed: int, habits: Habits) -> Iterator[Transcript]:
    """One transcript of each item, of a role drawn from `seed`."""
    rng = random.Random(seed)
    for item in map(partial(renamed, rng), items):
        kind, hasty = rng.random(), rng.random() < habits.hasty_reader
        if kind < 0.14:
            asked_item = about(item, rng, rng.choice(item.facts.studies)) if rng.random() < 0.5 else item
            yield junior(asked_item, rng.choice(list(DATABASES)), rng.choice(NAMES), rng, hasty=hasty)
        elif kind < 0.30:
            yield further(item, rng.choice(list(DATABASES)), rng, hasty=hasty)
        elif kind < 0.34:
            yield reader(item, rng, hasty=hasty)
        elif kind < 0.36:
            ways = (LITERATURE, NAMES[0]), (TRIALS, NAMES[0])
            yield researcher(item, SOLO, ways, OWN_TOOLS, rng, hasty=hasty)
        elif kind < 0.94:
            yield refiner(item, rng, read=equally if rng.random() < habits.equal_refiner else vote)
        else:
            yield designer(item, rng, habits)


def renamed(rng: random.Random, item: ReviewTask) -> ReviewTask:
    """The task with ids as users' seeds make them, so that the ids of this recipe's seeds are not learned by heart."""
    task = f"review-{rng.randint(0, 99)}-{rng.randint(0, 999)}"
    studies = [replace(study, id=f"{task}-{number}") for number, study in enumerate(item.facts.studies, start=1)]
    return replace(item, facts=replace(item.facts, studies=tuple(studies)))


def document(study: ReviewStudy) -> dict[str, str]:
    """A study as a passage of a search."""
    return {"id": study.id, "text": abstract_text(study.sections)}


def answered(answer: Answer) -> Message:
    return {"role": "assistant", "content": dump(answer.model_dump())}
