"""Generated tasks whose answer follows from several studies, each of which is found by a search of its own.

A question asks about a subject, an outcome and a population. Two or three short abstracts report on the outcome. Each
has its own size and population, and their results conflict. Cohorts are found by `literature_search` and trials by
`clinical_trials`; the third study is a cohort that has the subject under a second name, which only the first mentions.

The published rule (`decide`):

1. Only findings about the asked outcome count, in studies of the asked population.
2. The study with the most participants decides. Its finding is read alone, as in `chimera.data.generated.tasks`: *yes*
   when it is significant in the asked direction, *no* when it is significant in the other or not significant, *maybe*
   when it is borderline.
3. *Maybe* when the largest studies are equally large and disagree, and when no study is about the asked population.

Labels have PubMedQA's mix. Which search finds the deciding study is drawn anew for every task, and the other studies
mostly give another answer.

Levels: 1 two studies of the asked population, one twice the other; 2 adds a study of another population and the second
name; 3 adds findings on other outcomes, closer sizes and findings without 'lower' or 'higher'; 4 adds synonyms of
outcomes in questions, and confidence intervals.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from random import Random
from typing import Literal

from chimera.config.roles import LITERATURE, TRIALS
from chimera.core.types import LABELS, Label, ResearchTask, Section
from chimera.data.generated.tasks import (
    LABEL_MIX,
    OTHER_ANSWER,
    Finding,
    FindingPlan,
    draw_finding,
    endless,
)
from chimera.data.generated.text import Direction, sentence_case, write_question
from chimera.data.generated.vocabulary import (
    ACTIVITIES,
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
SEARCHES: tuple[tuple[str, Name], ...] = ((LITERATURE, "name"), (TRIALS, "name"), (LITERATURE, "second name"))
"""The tool and the name that find each study of a task, in the order of its studies."""
STUDIES: dict[int, int] = {1: 2, 2: 3, 3: 3, 4: 3}
"""Number of studies, by level."""
OUTSIDERS: dict[int, int] = {1: 0, 2: 1, 3: 1, 4: 1}
"""How many of them are about another population, by level, unless all are."""
LARGEST_OTHER: dict[int, float] = {1: 0.5, 2: 0.7, 3: 0.85, 4: 0.85}
"""Most participants of the other studies of the asked population, as a share of the deciding study's, by level."""
SMALLEST, LARGEST = 100, 980
"""Limits of participants. Numbers are even, because the two groups of a study are equally large."""

Rule = Literal["largest", "balanced", "none"]
"""Why the label holds: the largest study says so, the largest two disagree, or no study has the asked population."""
MAYBE_RULES: dict[int, dict[Rule, float]] = {
    1: {"largest": 0.5, "balanced": 0.5},
    **{level: {"largest": 0.35, "balanced": 0.35, "none": 0.3} for level in (2, 3, 4)},
}
LEADS = ("In {n} {population}, ", "Among {n} {population}, ")
ALSO = ("In the same participants, ", "In these people, ")


@dataclass(frozen=True, slots=True)
class FoundStudy:
    """One abstract: who was studied, and its findings in the order of the text; the first is about the asked outcome.

    `tool` and `name` are the search that finds it. `second_name` is True if its text mentions the second name.
    """

    id: str
    tool: str
    name: Name
    population: str
    participants: int
    findings: tuple[Finding, ...]
    sections: tuple[Section, ...]
    second_name: bool

    @property
    def finding(self) -> Finding:
        """The finding about the asked outcome."""
        return self.findings[0]


@dataclass(frozen=True, slots=True)
class SynthesisFacts:
    """What the generator drew for one task; `studies` are in the order of `SEARCHES`."""

    asked: Direction
    endpoint: str
    asked_endpoint: str
    studies: tuple[FoundStudy, ...]
    rule: Rule
    kind: Kind
    therapy: str
    second_name: str
    comparator: str
    population: str
    condition: str
    level: int


@dataclass(frozen=True, slots=True)
class SynthesisTask:
    """A task with the facts that it was written from."""

    task: ResearchTask
    facts: SynthesisFacts


def matching(population: str, studies: Iterable[FoundStudy]) -> list[FoundStudy]:
    """The studies of the asked population (clause 1 of the rule)."""
    return [study for study in studies if study.population == population]


def decisive(population: str, studies: Iterable[FoundStudy]) -> list[FoundStudy]:
    """The largest studies of the asked population (clause 2): none, one, or several of equal size."""
    matches = matching(population, studies)
    most = max((study.participants for study in matches), default=0)
    return [study for study in matches if study.participants == most]


def decide(target: Direction, population: str, studies: Iterable[FoundStudy]) -> Label:
    """The published rule: the answer that `studies` give to a question about `population` in direction `target`."""
    answers = {study.finding.answer(target) for study in decisive(population, studies)}
    return answers.pop() if len(answers) == 1 else "maybe"


def part_labels(
    target: Direction, population: str, studies: Sequence[FoundStudy]
) -> Iterator[tuple[frozenset[str], Label]]:
    """The answer that each set of `studies` gives by itself: what is right for a role that has found no others."""
    for count in range(len(studies) + 1):
        for part in combinations(studies, count):
            yield frozenset(study.id for study in part), decide(target, population, part)


def generate(size: int, *, seed: int, levels: Sequence[int] = (1, 2, 3, 4)) -> list[SynthesisTask]:
    """The first `size` tasks of a seed; levels take turns, so item i depends on seed, i and levels only.

    Raises:
        ValueError: `levels` is empty or holds anything but 1, 2, 3 and 4.
    """
    return list(islice(stream(seed=seed, levels=levels), size))


def stream(*, seed: int, levels: Sequence[int] = (1, 2, 3, 4)) -> Iterator[SynthesisTask]:
    return endless(generate_one, seed, levels)


def generate_one(seed: int, index: int, level: int) -> SynthesisTask:
    rng = Random(f"synthesis/{seed}/{index}/{level}")
    subject, second = draw_subjects(rng)
    endpoints = rng.sample(ENDPOINTS, 2)
    target: Direction = rng.choice(("lower", "higher"))
    label = rng.choices(LABELS, [LABEL_MIX[label] for label in LABELS])[0]
    rule: Rule = "largest"
    if label == "maybe":
        rule = rng.choices(list(MAYBE_RULES[level]), list(MAYBE_RULES[level].values()))[0]
    group, condition = rng.choice(GROUPS), rng.choice(CONDITIONS)
    population = f"{group} with {condition}"
    plans = plan_studies(rng, label, rule, level)
    id_ = f"synthesis-{seed}-{index}"
    studies: list[FoundStudy] = []
    for way, plan in zip(SEARCHES[: len(plans)], plans, strict=True):
        studied = population if plan.matches else other_population(rng, group, condition)
        named = subject if way[1] == "name" else second
        leads_on = second.name if way == SEARCHES[0] and len(plans) == len(SEARCHES) else ""
        findings = write_findings(rng, plan, named, endpoints, studied, target, level)
        studies.append(write_study(rng, f"{id_}-{len(studies) + 1}", way, plan, named, studied, findings, leads_on))
    asked_endpoint = endpoints[0].synonym if level == 4 and rng.random() < 0.5 else endpoints[0].name
    facts = SynthesisFacts(
        asked=target,
        endpoint=endpoints[0].name,
        asked_endpoint=asked_endpoint,
        studies=tuple(studies),
        rule=rule,
        kind=subject.kind,
        therapy=subject.name,
        second_name=second.name,
        comparator=subject.comparator,
        population=population,
        condition=condition,
        level=level,
    )
    task = ResearchTask(
        id=id_,
        goal=write_question(rng, subject, asked_endpoint, population, target, level),
        context=tuple(section for study in studies for section in study.sections),
        label=decide(target, population, studies),
        source="generated",
        long_answer=conclusion(facts),
        level=level,
        studies=tuple((study.id, study.sections) for study in studies),
        part_labels=tuple(part_labels(target, population, studies)),
    )
    return SynthesisTask(task, facts)


def draw_subjects(rng: Random) -> tuple[Subject, Subject]:
    """A subject under its first and under its second name, with the same comparison."""
    kind: Kind = rng.choice(("drug", "behaviour"))
    # No placebo: an abstract that mentions it counts as a trial, and cohorts are no trials.
    comparator = rng.choice([control for control in CONTROLS[kind] if control != "placebo"])
    activity, endings = rng.choice(ACTIVITIES), DRUG_ENDINGS if kind == "drug" else PROGRAMME_ENDINGS
    first = draw_name(rng, endings)
    second = draw_name(rng, endings)
    while second == first:
        second = draw_name(rng, endings)

    def subject(name: str) -> Subject:
        word = name if kind == "drug" else name.capitalize()
        title = name if kind == "drug" else f"the {word} {activity} programme"
        return Subject(kind, title, comparator, f"the {word} group", f"the {comparator} group")

    return subject(first), subject(second)


def draw_name(rng: Random, endings: Sequence[str]) -> str:
    """An invented name, longer than those of the other family, because each task needs two that no other task has."""
    return rng.choice(FIRST) + rng.choice(MIDDLE) + rng.choice(MIDDLE) + rng.choice(endings)


def other_population(rng: Random, group: str, condition: str) -> str:
    """A population that differs from the asked one by its group or by its condition."""
    if rng.random() < 0.5:
        return f"{rng.choice([other for other in GROUPS if other != group])} with {condition}"
    return f"{group} with {rng.choice([other for other in CONDITIONS if other != condition])}"


@dataclass(frozen=True, slots=True)
class StudyPlan:
    """A study before its numbers and sentences are drawn: its answer, its size, and whether its population is asked."""

    answer: Label
    participants: int
    matches: bool


def plan_studies(rng: Random, label: Label, rule: Rule, level: int) -> list[StudyPlan]:
    """The studies that together give `label` by `rule`, in random order."""
    count, outsiders = STUDIES[level], OUTSIDERS[level]
    most = even(rng, 200, 900)
    plans: list[StudyPlan] = []
    if rule == "largest":
        plans.append(StudyPlan(label, most, matches=True))
    elif rule == "balanced":
        plans += [StudyPlan(answer, most, matches=True) for answer in ("yes", "no")]
    else:
        outsiders = count
    while len(plans) < count - outsiders:
        smaller = even(rng, SMALLEST, int(most * LARGEST_OTHER[level]))
        plans.append(StudyPlan(draw_other(rng, label, len(plans)), smaller, matches=True))
    while len(plans) < count:
        # Mostly larger than the deciding study, or else the largest of all would decide in most tasks.
        low = most if rng.random() < 0.6 else SMALLEST
        plans.append(StudyPlan(draw_other(rng, label, len(plans)), even(rng, low, LARGEST), matches=False))
    rng.shuffle(plans)
    return plans


def draw_other(rng: Random, label: Label, number: int) -> Label:
    """The answer of a study that does not decide: mostly another one than the label.

    Every second one is drawn without regard to the label, or else the rarest answer would be the label.
    """
    weights = [LABEL_MIX[answer] for answer in LABELS] if number % 2 == 0 else OTHER_ANSWER[label]
    return rng.choices(LABELS, weights)[0]


def even(rng: Random, low: int, high: int) -> int:
    return 2 * rng.randint(low // 2, high // 2)


def write_findings(
    rng: Random,
    plan: StudyPlan,
    subject: Subject,
    endpoints: Sequence[StudyEndpoint],
    population: str,
    target: Direction,
    level: int,
) -> tuple[Finding, ...]:
    """The finding about the asked outcome and, from level 3 on in half of the studies, one about another outcome."""
    arm = plan.participants // 2
    lead = rng.choice(LEADS).format(n=plan.participants, population=population)
    plans = [FindingPlan(endpoints[0], plan.answer, "none", lead, "decisive")]
    if level >= 3 and rng.random() < 0.5:
        other = rng.choices(LABELS, OTHER_ANSWER[plan.answer])[0]
        plans.append(FindingPlan(endpoints[1], other, "none", rng.choice(ALSO), "other endpoint"))
    return tuple(draw_finding(rng, subject, finding_plan, target, arm, level) for finding_plan in plans)


COHORT_BACKGROUNDS = (
    "The role of {name} in {condition} is debated.",
    "Little is known about {name} in people with {condition}.",
    "Opinions on {name} differ among those who treat {condition}.",
)
TRIAL_BACKGROUNDS = (
    "Care for {condition} could gain from new work.",
    "Earlier reports on {condition} were small.",
    "Guidance for {condition} is old.",
)
COHORT_METHODS = (
    "A cohort study compared {name} with {comparator}.",
    "In a register at {sites} hospitals, {name} was compared with {comparator}.",
)
TRIAL_METHODS = (
    "We randomised participants to {name} or {comparator}.",
    "At {sites} clinics, participants were assigned to {name} or {comparator}.",
)
SECOND_NAMES = ("{name} is also known as {second}.", "Another name of {name} is {second}.")


def write_study(
    rng: Random,
    id_: str,
    way: tuple[str, Name],
    plan: StudyPlan,
    subject: Subject,
    population: str,
    findings: tuple[Finding, ...],
    second_name: str,
) -> FoundStudy:
    """The abstract of a study. It mentions `second_name`, if there is one: the name that finds another study."""
    tool, name = way
    cohort = tool == LITERATURE
    values = {
        "name": subject.name,
        "comparator": subject.comparator,
        "condition": population.partition(" with ")[2],
        "sites": rng.randint(2, 9),
        "second": second_name,
    }
    background = [rng.choice(COHORT_BACKGROUNDS if cohort else TRIAL_BACKGROUNDS)]
    if second_name:
        background.append(rng.choice(SECOND_NAMES))
    sections = (
        Section("BACKGROUND", " ".join(sentence_case(text.format(**values)) for text in background)),
        Section("METHODS", sentence_case(rng.choice(COHORT_METHODS if cohort else TRIAL_METHODS).format(**values))),
        Section("RESULTS", " ".join(finding.sentence for finding in findings)),
    )
    return FoundStudy(id_, tool, name, population, plan.participants, findings, sections, bool(second_name))


def conclusion(facts: SynthesisFacts) -> str:
    """What a review of all studies concludes, which reveals the label and is hidden from every agent."""
    outcome = f"{facts.asked} {facts.endpoint} in {facts.population}"
    verb = {"yes": "show", "no": "do not show", "maybe": "leave open"}[
        decide(facts.asked, facts.population, facts.studies)
    ]
    return sentence_case(f"taken together, these studies {verb} that {facts.therapy} is followed by {outcome}.")
