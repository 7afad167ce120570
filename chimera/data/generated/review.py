"""Generated tasks whose answer is the balance of many short studies, which four searches find.

A question asks about a subject, an outcome and a population. Four to sixteen studies of the subject vote by the rule of
`chimera.core.weighing`:

1. A study counts if its population and outcome are the asked ones and it has not been retracted.
2. It votes as its finding reads alone (`chimera.data.generated.tasks`): *yes* when it is significant in the asked
   direction, *no* when it is significant in the other or not significant; borderline is for neither side.
3. A trial weighs twice as much as a cohort, and a study of 400 or more participants twice as much as a smaller one.
4. The side with more points is the answer, *maybe* when they are equal.

Searches: half of the studies are cohorts, for `literature_search`, and half are trials, for `clinical_trials`. Of each,
half use the subject's name, which is in the question, and half a second name, which one study of the first half tells.
With `tools.trials=separate`, `literature_search` leaves trials out, which a search of all abstracts would return, too.
So with `tools.results=4` each of `SEARCHES` finds its quarter of the studies, at every level.

No shortcut: `TRAPS` are readers that miss one thing. Two are drawn for each task, and then studies until each
of these readers gives another answer than the rule. Labels are drawn first, with PubMedQA's mix.

Levels: 1 four studies; 2 eight, and retractions; 3 twelve, and more verbs in questions; 4 sixteen, synonyms of outcomes
in questions, and confidence intervals. Findings always say 'lower' or 'higher': to read a direction from two numbers is
what the harder levels of `chimera.data.generated.tasks` ask for, and would hide here what is gained by dividing work.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Literal, NamedTuple, get_args

from chimera.config.roles import LITERATURE, TRIALS
from chimera.core.types import ResearchTask, Section, YesNoMaybe
from chimera.core.weighing import PRECISE, Design, Vote, weigh, weight
from chimera.data.generated.tasks import LABEL_MIX, Finding, FindingPlan, draw_finding, endless
from chimera.data.generated.text import Direction, sentence_case, write_question
from chimera.data.generated.vocabulary import (
    CONDITIONS,
    CONTROLS,
    DRUG_ENDINGS,
    ENDPOINTS,
    FIRST,
    GROUPS,
    MIDDLE,
    PROGRAMME_ENDINGS,
    Kind,
    StudyEndpoint,
    Subject,
)

Name = Literal["name", "second name"]
"""The name by which a subject is searched."""
NAMES: tuple[Name, ...] = get_args(Name)
Search = tuple[str, Name]
"""A tool and a name."""
SEARCHES: tuple[Search, ...] = tuple((tool, name) for name in NAMES for tool in (LITERATURE, TRIALS))
"""Each finds a quarter of a task's studies; studies are in this order."""
STUDIES: dict[int, int] = {1: 4, 2: 8, 3: 12, 4: 16}
"""Number of studies, by level."""
OUTSIDERS: dict[int, int] = {1: 1, 2: 2, 3: 4, 4: 5}
"""How many of them have another population or another outcome, by level."""
RETRACTED: dict[int, int] = {1: 0, 2: 1, 3: 1, 4: 2}
"""How many are retracted, by level."""
SMALLEST, LARGEST = 100, 980
"""Limits of participants. Numbers are even, because the two groups of a study are equally large."""
ANSWERS: dict[YesNoMaybe, tuple[float, float, float]] = {
    "yes": (0.55, 0.35, 0.10),
    "no": (0.35, 0.55, 0.10),
    "maybe": (0.45, 0.45, 0.10),
}
"""By label, how often a study's finding answers yes, no and maybe, before studies are drawn until the label comes out.

The tilt to the label makes up for the traps: without it, the side with fewer studies would mostly be right.
"""

Flaw = Literal["population", "outcome", "retraction"]
"""Why a study does not count. No study has two flaws."""
Aspect = Literal["design", "size", "population", "outcome", "retraction"]
"""What a reader has to see to apply the rule."""


class StudyDraw(NamedTuple):
    """What the rule needs to know of a study."""

    search: Search
    design: Design
    participants: int
    answer: YesNoMaybe
    flaw: Flaw | None


@dataclass(frozen=True, slots=True)
class Reader:
    """Somebody who applies the rule without some aspects, or to the studies of some searches only."""

    ignores: frozenset[Aspect] = frozenset()
    searches: frozenset[Search] = frozenset(SEARCHES)

    def vote(self, plan: StudyDraw, study: str = "") -> Vote:
        """What this reader takes for the vote of a study."""
        counts = plan.search in self.searches and (plan.flaw is None or plan.flaw in self.ignores)
        design: Design = "cohort" if "design" in self.ignores else plan.design
        participants = 0 if "size" in self.ignores else plan.participants
        return Vote(study, plan.answer if counts else None, weight(design, participants))

    def answer(self, plans: Sequence[StudyDraw]) -> YesNoMaybe:
        return weigh(self.vote(plan) for plan in plans)


RULE = Reader()
"""Sees everything."""
TRAPS: dict[str, Reader] = {
    **{f"ignores {aspect}": Reader(frozenset({aspect})) for aspect in get_args(Aspect)},
    "reads cohorts only": Reader(searches=frozenset(way for way in SEARCHES if way[0] == LITERATURE)),
    "reads trials only": Reader(searches=frozenset(way for way in SEARCHES if way[0] == TRIALS)),
    "searches the first name only": Reader(searches=frozenset(way for way in SEARCHES if way[1] == "name")),
    "majority of all studies": Reader(frozenset(get_args(Aspect))),
}
"""Readers that miss one thing, or everything but the findings. The last is never drawn, and yet mostly wrong."""
DRAWN_TRAPS = 2
"""How many of them are wrong on a task by design."""
TRIES = 300
"""Draws of studies until other traps are drawn: not every label can have every set of traps."""


@dataclass(frozen=True, slots=True)
class ReviewStudy:
    """One abstract with its one finding.

    `tool` and `name` are the search that finds it. `second_name` is True if its text tells the second name.
    """

    id: str
    tool: str
    name: Name
    design: Design
    participants: int
    population: str
    endpoint: str
    finding: Finding
    retracted: bool
    sections: tuple[Section, ...]
    second_name: bool


@dataclass(frozen=True, slots=True)
class ReviewFacts:
    """What the generator drew for one task; `studies` are in the order of `SEARCHES`."""

    target: Direction
    endpoint: str
    asked_endpoint: str
    studies: tuple[ReviewStudy, ...]
    kind: Kind
    therapy: str
    second_name: str
    comparator: str
    population: str
    level: int


@dataclass(frozen=True, slots=True)
class ReviewTask:
    """A task with the facts that it was written from."""

    task: ResearchTask
    facts: ReviewFacts


def counts(facts: ReviewFacts, study: ReviewStudy) -> bool:
    """True if a study has the asked population and outcome and is not retracted (clause 1 of the rule)."""
    return study.population == facts.population and study.endpoint == facts.endpoint and not study.retracted


def vote(facts: ReviewFacts, study: ReviewStudy) -> Vote:
    """A study's true vote."""
    answer = study.finding.answer(facts.target) if counts(facts, study) else None
    return Vote(study.id, answer, weight(study.design, study.participants))


def generate(size: int, *, seed: int, levels: Sequence[int] = (1, 2, 3, 4)) -> list[ReviewTask]:
    """The first `size` tasks of a seed; levels take turns, so item i depends on seed, i and levels only.

    Raises:
        ValueError: `levels` is empty or holds anything but 1, 2, 3 and 4.
    """
    return list(islice(endless(generate_one, seed, levels), size))


def generate_one(seed: int, index: int, level: int) -> ReviewTask:
    rng = Random(f"review/{seed}/{index}/{level}")
    kind: Kind = rng.choice(("drug", "behaviour"))
    # No placebo: an abstract that mentions it counts as a trial, and cohorts are no trials.
    comparator = rng.choice([control for control in CONTROLS[kind] if control != "placebo"])
    subjects = draw_subjects(rng, kind, comparator)
    endpoint = rng.choice(ENDPOINTS)
    target: Direction = rng.choice(("lower", "higher"))
    label = rng.choices(list(ANSWERS), [LABEL_MIX[label] for label in ANSWERS])[0]
    group, condition = rng.choice(GROUPS), rng.choice(CONDITIONS)
    population = f"{group} with {condition}"
    id_ = f"review-{seed}-{index}"
    plans = draw_plans(rng, label, level)
    tellers = {next(n for n, plan in enumerate(plans) if plan.search == way) for way in SEARCHES if way[1] == "name"}
    studies: list[ReviewStudy] = []
    for number, plan in enumerate(plans):
        studied = other_population(rng, group, condition) if plan.flaw == "population" else population
        measured = rng.choice([e for e in ENDPOINTS if e != endpoint]) if plan.flaw == "outcome" else endpoint
        second = subjects["second name"].name if number in tellers else ""
        subject = subjects[plan.search[1]]
        studies.append(write_study(rng, f"{id_}-{number + 1}", plan, subject, measured, studied, target, level, second))
    facts = ReviewFacts(
        target=target,
        endpoint=endpoint.name,
        asked_endpoint=endpoint.synonym if level == 4 and rng.random() < 0.5 else endpoint.name,
        studies=tuple(studies),
        kind=kind,
        therapy=subjects["name"].name,
        second_name=subjects["second name"].name,
        comparator=comparator,
        population=population,
        level=level,
    )
    votes = tuple(vote(facts, study) for study in studies)
    task = ResearchTask(
        id=id_,
        goal=write_question(rng, subjects["name"], facts.asked_endpoint, population, target, level),
        context=tuple(section for study in studies for section in study.sections),
        label=weigh(votes),
        source="generated",
        long_answer=conclusion(facts, weigh(votes)),
        level=level,
        studies=tuple((study.id, study.sections) for study in studies),
        votes=votes,
    )
    return ReviewTask(task, facts)


def draw_subjects(rng: Random, kind: Kind, comparator: str) -> dict[Name, Subject]:
    """The subject under each of its names, which are one word each, so that a search of one finds nothing else."""
    endings = DRUG_ENDINGS if kind == "drug" else PROGRAMME_ENDINGS
    words: list[str] = []
    while len(words) < len(NAMES):
        word = rng.choice(FIRST) + rng.choice(MIDDLE) + rng.choice(MIDDLE) + rng.choice(endings)
        if word not in words:
            words.append(word)
    names = words if kind == "drug" else [word.capitalize() for word in words]
    control = f"the {comparator} group"
    return {
        which: Subject(kind, name, comparator, f"the {name} group", control)
        for which, name in zip(NAMES, names, strict=True)
    }


def other_population(rng: Random, group: str, condition: str) -> str:
    """A population that differs from the asked one by its group or by its condition."""
    if rng.random() < 0.5:
        return f"{rng.choice([other for other in GROUPS if other != group])} with {condition}"
    return f"{group} with {rng.choice([other for other in CONDITIONS if other != condition])}"


def draw_plans(rng: Random, label: YesNoMaybe, level: int) -> list[StudyDraw]:
    """Studies that together give `label`, and another answer to each of some readers that miss something."""
    readers = [trap for name, trap in TRAPS.items() if RETRACTED[level] or name != "ignores retraction"][:-1]
    while True:
        traps = rng.sample(readers, DRAWN_TRAPS)
        for _ in range(TRIES):
            plans = draw_any_plans(rng, label, level)
            if RULE.answer(plans) == label and all(trap.answer(plans) != label for trap in traps):
                return plans


def draw_any_plans(rng: Random, label: YesNoMaybe, level: int) -> list[StudyDraw]:
    """Studies with as many flaws as the level has, which may give any label."""
    count = STUDIES[level]
    flaws: list[Flaw | None] = [None] * count
    for place in range(RETRACTED[level] + OUTSIDERS[level]):
        outsider: Flaw = "population" if rng.random() < 0.5 else "outcome"
        flaws[place] = "retraction" if place < RETRACTED[level] else outsider
    rng.shuffle(flaws)
    answers = rng.choices(list(ANSWERS), ANSWERS[label], k=count)
    plans: list[StudyDraw] = []
    for number, (answer, flaw) in enumerate(zip(answers, flaws, strict=True)):
        search = SEARCHES[number * len(SEARCHES) // count]
        low, high = (SMALLEST, PRECISE) if rng.random() < 0.5 else (PRECISE, LARGEST)
        participants = 2 * int(rng.uniform(low, high) / 2)
        plans.append(StudyDraw(search, "trial" if search[0] == TRIALS else "cohort", participants, answer, flaw))
    return plans


BACKGROUNDS = (
    "Opinions on {condition} differ.",
    "Earlier reports on {condition} were small.",
    "Guidance for {condition} is old.",
)
METHODS: dict[Design, tuple[str, ...]] = {
    "cohort": (
        "A cohort study compared {name} with {comparator}.",
        "In a register at {sites} hospitals, {name} was compared with {comparator}.",
        "People who chose {name} were followed next to others with {comparator}.",
    ),
    "trial": (
        "We randomised participants to {name} or {comparator}.",
        "At {sites} clinics, participants were randomly assigned to {name} or {comparator}.",
        "A clinical trial compared {name} with {comparator}.",
    ),
}
LEADS = ("In {n} {population}, ", "Among {n} {population}, ")
SECOND_NAMES = ("{name} is also known as {second}.", "Another name of {name} is {second}.")
RETRACTIONS = (
    "This article has been retracted.",
    "The journal retracted this article at the authors' request.",
    "Retraction: the data of this article cannot be relied on.",
)
HARMLESS = ("This article has been translated.", "The journal published this article online first.")
HARMLESS_SHARE = 0.15
"""Share of the other studies that begin with a note, too, so that a note alone says nothing."""


def write_study(
    rng: Random,
    id_: str,
    plan: StudyDraw,
    subject: Subject,
    endpoint: StudyEndpoint,
    population: str,
    target: Direction,
    level: int,
    second: str,
) -> ReviewStudy:
    """The abstract of a study. It tells `second`, if there is one: the name that finds other studies."""
    lead = rng.choice(LEADS).format(n=plan.participants, population=population)
    finding_plan = FindingPlan(endpoint, plan.answer, "none", lead, "decisive", worded=True)
    finding = draw_finding(rng, subject, finding_plan, target, plan.participants // 2, level)
    retracted = plan.flaw == "retraction"
    notes = RETRACTIONS if retracted else HARMLESS if rng.random() < HARMLESS_SHARE else ()
    background = SECOND_NAMES if second else BACKGROUNDS
    text = rng.choice(background), rng.choice(METHODS[plan.design])
    parts = [("NOTE", rng.choice(notes))] if notes else []
    parts += [("BACKGROUND", text[0]), ("METHODS", text[1])]
    condition, sites = population.partition(" with ")[2], rng.randint(2, 9)
    values = {"name": subject.name, "comparator": subject.comparator, "condition": condition, "second": second}
    sections = [Section(label, sentence_case(text.format(**values, sites=sites))) for label, text in parts]
    return ReviewStudy(
        id=id_,
        tool=plan.search[0],
        name=plan.search[1],
        design=plan.design,
        participants=plan.participants,
        population=population,
        endpoint=endpoint.name,
        finding=finding,
        retracted=retracted,
        sections=(*sections, Section("RESULTS", finding.sentence)),
        second_name=bool(second),
    )


def conclusion(facts: ReviewFacts, label: YesNoMaybe) -> str:
    """What a review of all studies concludes, which reveals the label and is hidden from every agent."""
    verb = {"yes": "shows", "no": "does not show", "maybe": "leaves open"}[label]
    outcome = f"{facts.target} {facts.endpoint} in {facts.population}"
    return f"Taken together, this evidence {verb} that {facts.therapy} is followed by {outcome}."
