"""Generated tasks, the offline default: questions and abstracts in PubMedQA's form whose answer follows from numbers.

The published rule (`decide`), with d the direction asked:

1. Only findings about the endpoint that the question names count.
2. Read alone, a finding answers *yes* when it is significant (p < 0.05, or a 95 % interval without zero) and lies in
   direction d; *no* when it is significant in the other direction; *no* when it is not significant (p >= 0.10, or an
   interval with zero); *maybe* when it is borderline (0.05 <= p < 0.10).
3. When one finding is the analysis that counts (final, adjusted, primary), it decides and the analysis that it
   supersedes (interim, unadjusted, secondary) does not matter.
4. Otherwise all findings count: they answer together when they agree, and *maybe* when they disagree.

Labels have PubMedQA's mix (55 / 34 / 11 %). Endpoints that are not asked about get findings from the same
distribution, mostly with another answer than the label, so findings about the wrong endpoint mislead.

Levels: 1 one finding on each of two endpoints; 2 adds several analyses of one endpoint; 3 adds a third endpoint, more
verbs in questions, remarks with p-values, and findings that give values without saying 'lower' or 'higher'; 4 adds
synonyms of endpoints in questions, confidence intervals, and control groups named first.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from random import Random
from typing import Literal, TypeVar

from chimera.core.types import LABELS, Label, ResearchTask, Section, YesNoMaybe
from chimera.data.generated.text import (
    NEUTRAL,
    SUPERSEDED_OVERRIDING,
    Direction,
    Marker,
    Significance,
    draw_p,
    sentence_case,
    write_background,
    write_finding,
    write_methods,
    write_question,
    write_remark,
)
from chimera.data.generated.vocabulary import (
    CONDITIONS,
    ENDPOINTS,
    GROUPS,
    KINDS,
    Kind,
    StudyEndpoint,
    Subject,
    draw_subject,
)

Drawn = TypeVar("Drawn")
FindingRole = Literal["decisive", "superseded", "other endpoint"]
Rule = Literal["single", "agreement", "override", "disagreement"]
"""What determines the label: one finding, several that agree, one that overrides the other, several that disagree."""

LABEL_MIX: dict[Label, float] = {"yes": 0.552, "no": 0.338, "maybe": 0.110}

OTHER_ANSWER: dict[Label, tuple[float, float, float]] = {
    "yes": (0.162, 0.300, 0.090),
    "no": (0.300, 0.030, 0.008),
    "maybe": (0.090, 0.008, 0.012),
}
"""Joint weights of the label (row) and of the answer that another endpoint would give (yes, no, maybe).

Symmetric with margins `LABEL_MIX`: a reader of two different answers who does not know which endpoint was asked about
guesses right half the time.
"""

STRUCTURES: dict[int, dict[bool, dict[Rule, float]]] = {
    1: {True: {"single": 1.0}, False: {"single": 1.0}},
    2: {
        True: {"single": 0.45, "agreement": 0.10, "override": 0.45},
        False: {"single": 0.40, "override": 0.25, "disagreement": 0.35},
    },
    3: {
        True: {"single": 0.25, "agreement": 0.10, "override": 0.65},
        False: {"single": 0.20, "override": 0.35, "disagreement": 0.45},
    },
    4: {
        True: {"single": 0.20, "agreement": 0.10, "override": 0.70},
        False: {"single": 0.20, "override": 0.35, "disagreement": 0.45},
    },
}
"""By level, the weights of the rules by which findings on one endpoint give a clear answer (True: yes or no) or maybe
(False)."""

CATEGORIES: dict[Label, tuple[tuple[bool, Significance, float], ...]] = {
    "yes": ((True, "significant", 1.0),),
    "no": ((False, "significant", 0.60), (True, "not significant", 0.35), (False, "not significant", 0.05)),
    "maybe": ((True, "borderline", 0.75), (False, "borderline", 0.25)),
}
"""By answer, the findings that give it when read alone: (in the asked direction?, significance, weight)."""

ARM_SIZES = (40, 50, 60, 80, 100, 120, 150, 180, 200, 240, 300, 400)
MOST_FINDINGS = 4


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding as drawn: the contents of its sentence, and its role in the answer."""

    sentence: str
    endpoint: str
    direction: Direction
    p_value: float
    statistic: str
    significance: Significance
    marker: Marker
    role: FindingRole

    def answer(self, target: Direction) -> YesNoMaybe:
        """The answer of this finding, read alone (clause 2 of the rule)."""
        return read_alone(self.p_value, in_direction=self.direction == target)


@dataclass(frozen=True, slots=True)
class Facts:
    """What the generator drew for one task; `findings` are in the order of the RESULTS text."""

    asked: Direction
    endpoint: str
    asked_endpoint: str
    findings: tuple[Finding, ...]
    rule: Rule
    kind: Kind
    therapy: str
    comparator: str
    group: str
    control_group: str
    population: str
    participants: int
    level: int

    @property
    def decisive(self) -> tuple[Finding, ...]:
        """The findings that determine the label, in the order of the text."""
        return tuple(finding for finding in self.findings if finding.role == "decisive")


@dataclass(frozen=True, slots=True)
class GeneratedTask:
    """A task with the facts that it was written from."""

    task: ResearchTask
    facts: Facts


def classify(p_value: float) -> Significance:
    if p_value < 0.05:
        return "significant"
    return "borderline" if p_value < 0.10 else "not significant"


def read_alone(p_value: float, *, in_direction: bool) -> YesNoMaybe:
    """Clause 2 of the rule: the answer of one finding."""
    significance = classify(p_value)
    if significance == "borderline":
        return "maybe"
    return "yes" if significance == "significant" and in_direction else "no"


def decide(target: Direction, findings: Iterable[Finding], endpoint: str) -> Label:
    """The published rule: the label of a question about `endpoint` in direction `target`, given all findings.

    Raises:
        ValueError: when no finding is about the endpoint.
    """
    relevant = [finding for finding in findings if finding.endpoint == endpoint]
    overriding = [finding for finding in relevant if finding.marker == "overriding"]
    answers: set[Label] = {finding.answer(target) for finding in overriding or relevant}
    if not answers:
        raise ValueError(f"no finding is about {endpoint}")
    return answers.pop() if len(answers) == 1 else "maybe"


def generate(size: int, *, seed: int, levels: Sequence[int] = (1, 2, 3, 4)) -> list[GeneratedTask]:
    """The first `size` generated tasks of a seed; levels take turns, so item i depends on seed, i and levels only.

    Raises:
        ValueError: when `levels` is empty or holds anything but 1, 2, 3 and 4.
    """
    return list(islice(endless(generate_one, seed, levels), size))


def endless(make: Callable[[int, int, int], Drawn], seed: int, levels: Sequence[int]) -> Iterator[Drawn]:
    """What `make` gives for the seed, each index and its level, without end."""
    if not levels or not set(levels) <= set(STRUCTURES):
        raise ValueError(f"levels must be some of 1, 2, 3, 4, not {list(levels)}")
    for index in count():
        yield make(seed, index, levels[index % len(levels)])


def generate_one(seed: int, index: int, level: int) -> GeneratedTask:
    rng = Random(f"{seed}/{index}/{level}")
    subject = draw_subject(rng, rng.choice(KINDS))
    condition = rng.choice(CONDITIONS)
    population = f"{rng.choice(GROUPS)} with {condition}"
    endpoints = rng.sample(ENDPOINTS, 3)
    target: Direction = rng.choice(("lower", "higher"))
    arm = rng.choice(ARM_SIZES)
    label = rng.choices(LABELS, [LABEL_MIX[label] for label in LABELS])[0]
    findings, rule = draw_findings(rng, subject, endpoints, target, label, arm, level)

    asked_endpoint = endpoints[0].synonym if level == 4 and rng.random() < 0.5 else endpoints[0].name
    facts = Facts(
        asked=target,
        endpoint=endpoints[0].name,
        asked_endpoint=asked_endpoint,
        findings=findings,
        rule=rule,
        kind=subject.kind,
        therapy=subject.name,
        comparator=subject.comparator,
        group=subject.group,
        control_group=subject.control_group,
        population=population,
        participants=2 * arm,
        level=level,
    )
    results = [finding.sentence for finding in findings]
    if len(results) < MOST_FINDINGS:
        results.insert(rng.randint(0, len(results)), write_remark(rng, level))
    task = ResearchTask(
        id=f"generated-{seed}-{index}",
        goal=write_question(rng, subject, asked_endpoint, population, target, level),
        context=(
            Section("BACKGROUND", write_background(rng, subject, condition)),
            Section("METHODS", write_methods(rng, subject, population, 2 * arm)),
            Section("RESULTS", " ".join(results)),
        ),
        label=decide(target, findings, facts.endpoint),
        source="generated",
        long_answer=conclusion(facts),
        level=level,
    )
    return GeneratedTask(task, facts)


@dataclass(frozen=True, slots=True)
class FindingPlan:
    """A finding before its numbers and its sentence are drawn: its endpoint, its answer, how it is introduced.

    `worded`: its sentence says 'lower' or 'higher' at every level.
    """

    endpoint: StudyEndpoint
    answer: Label
    marker: Marker
    lead: str
    role: FindingRole
    worded: bool = False


def draw_findings(
    rng: Random,
    subject: Subject,
    endpoints: Sequence[StudyEndpoint],
    target: Direction,
    label: Label,
    arm: int,
    level: int,
) -> tuple[tuple[Finding, ...], Rule]:
    """All findings in the order of the text, and the rule that applies; `endpoints[0]` is the one asked about."""
    plans, rule = plan_endpoint(rng, endpoints[0], label, level, decisive=True)
    other_answer = rng.choices(LABELS, OTHER_ANSWER[label])[0]
    plans += plan_endpoint(rng, endpoints[1], other_answer, level, decisive=False)[0]
    if level >= 3 and len(plans) < MOST_FINDINGS:
        third = rng.choices(LABELS, [LABEL_MIX[label] for label in LABELS])[0]
        plans.append(FindingPlan(endpoints[2], third, "none", "", "other endpoint"))
    rng.shuffle(plans)
    return tuple(draw_finding(rng, subject, plan, target, arm, level) for plan in plans), rule


def plan_endpoint(
    rng: Random, endpoint: StudyEndpoint, answer: Label, level: int, *, decisive: bool
) -> tuple[list[FindingPlan], Rule]:
    """The findings about one endpoint that together give `answer`."""
    weights = STRUCTURES[level][answer != "maybe"]
    rule = rng.choices(list(weights), list(weights.values()))[0]
    role: FindingRole = "decisive" if decisive else "other endpoint"
    if rule == "single":
        overriding = level >= 2 and rng.random() < 0.3
        lead = rng.choice(SUPERSEDED_OVERRIDING)[1] if overriding else ""
        return [FindingPlan(endpoint, answer, "overriding" if overriding else "none", lead, role)], rule
    if rule == "override":
        leads = rng.choice(SUPERSEDED_OVERRIDING)
        replaced = rng.choices(
            LABELS, [w * (other != answer) for other, w in zip(LABELS, OTHER_ANSWER[answer], strict=True)]
        )[0]
        superseded = FindingPlan(endpoint, replaced, "superseded", leads[0], "superseded" if decisive else role)
        return [superseded, FindingPlan(endpoint, answer, "overriding", leads[1], role)], rule
    answers: list[Label] = [answer, answer] if rule == "agreement" else ["yes", "no"]
    rng.shuffle(answers)
    leads = rng.choice(NEUTRAL)
    return [FindingPlan(endpoint, each, "neutral", lead, role) for each, lead in zip(answers, leads, strict=True)], rule


def draw_finding(rng: Random, subject: Subject, plan: FindingPlan, target: Direction, arm: int, level: int) -> Finding:
    """Draw direction, p-value and group values for a plan and write its sentence."""
    categories = CATEGORIES[plan.answer]
    in_direction, significance, _ = rng.choices(categories, [weight for _, _, weight in categories])[0]
    opposite: Direction = "higher" if target == "lower" else "lower"
    direction = target if in_direction else opposite
    p_value = draw_p(rng, significance)
    sentence, statistic = write_finding(
        rng, subject, plan.endpoint, direction, p_value, plan.lead, arm, level, worded=plan.worded
    )
    return Finding(
        sentence, plan.endpoint.name, direction, p_value, statistic, classify(p_value), plan.marker, plan.role
    )


def conclusion(facts: Facts) -> str:
    """The abstract's conclusion, which reveals the label and is hidden from every agent."""
    outcome = f"{facts.asked} {facts.endpoint} in {facts.population}"
    label = decide(facts.asked, facts.findings, facts.endpoint)
    text = {
        "yes": f"{facts.therapy} was followed by {outcome}.",
        "no": f"{facts.therapy} was not followed by {outcome}.",
        "maybe": f"it remains uncertain whether {facts.therapy} is followed by {outcome}.",
    }[label]
    return sentence_case(text)
