"""The sentences of generated tasks: questions, backgrounds, methods and findings, from short regular templates."""

from random import Random
from statistics import NormalDist
from typing import Literal

from chimera.data.generated.vocabulary import Kind, StudyEndpoint, Subject

Direction = Literal["lower", "higher"]
Significance = Literal["significant", "borderline", "not significant"]
Marker = Literal["none", "neutral", "overriding", "superseded"]
"""How a finding is introduced: not at all, as one of two equal ones, as the analysis that counts, or as superseded."""

SUPERSEDED_OVERRIDING: tuple[tuple[str, str], ...] = (
    ("In the interim analysis, ", "In the final analysis, "),
    ("Before adjustment, ", "After adjustment, "),
    ("In the secondary analysis, ", "In the primary analysis, "),
)
NEUTRAL: tuple[tuple[str, str], ...] = (
    ("At 6 weeks, ", "At 12 weeks, "),
    ("At 3 months, ", "At 9 months, "),
    ("In the first cohort, ", "In the second cohort, "),
    ("At the northern centres, ", "At the southern centres, "),
)

VERBS: dict[Direction, tuple[str, ...]] = {
    "lower": ("lower", "reduce", "decrease"),
    "higher": ("raise", "increase", "elevate"),
}
QUESTIONS: tuple[str, ...] = (
    "Does {name} {verb} {endpoint} in {population}?",
    "In {population}, does {name} {verb} {endpoint}?",
    "Is {name} associated with {direction} {endpoint} in {population}?",
    "Is {endpoint} {direction} with {name} in {population}?",
)
BACKGROUNDS: tuple[str, ...] = (
    "The role of {name} in {condition} is debated.",
    "Little is known about {name} in people with {condition}.",
    "Care for {condition} could gain from work on {name}.",
    "Earlier reports on {name} in {condition} were small.",
    "Guidance for {condition} does not yet mention {name}.",
    "Opinions on {name} differ among those who treat {condition}.",
)
METHODS: dict[Kind, tuple[str, ...]] = {
    "drug": (
        "In a blinded trial, {n} {population} received {name} or {comparator}.",
        "We randomised {n} {population} to {name} or {comparator}.",
        "At {sites} hospitals, {n} {population} were assigned to {name} or {comparator}.",
    ),
    "behaviour": (
        "In an open trial, {n} {population} were offered {name} or {comparator}.",
        "We randomised {n} {population} to {name} or {comparator}.",
        "At {sites} clinics, {n} {population} took part in {name} or had {comparator}.",
    ),
    "gene": (
        "In a cohort study, {n} {population} were typed for {name}; carriers were compared with {comparator}.",
        "We genotyped {n} {population} and compared carriers of {name} with {comparator}.",
        "At {sites} centres, {n} {population} with and without {name} were followed.",
    ),
}
REMARKS: tuple[str, ...] = (
    "Follow-up was complete for {percent}% of participants.",
    "Mean age was {age} years.",
    "Staff who measured outcomes did not know the groups.",
    "All analyses were planned in advance.",
    "Missing values were imputed.",
    "There were {few} withdrawals.",
    "No deaths occurred.",
    "Mild side effects were noted in {few}% of participants.",
    "Data were collected at home visits.",
)
BASELINE_REMARK = "Groups were similar at baseline (p=0.{hundredths})."

WORDED: tuple[str, ...] = (
    "{endpoint} was {direction} in {group} than in {control} ({number} vs {control_value}, {statistic}).",
    "{group} had {direction} {endpoint} than {control} ({number} vs {control_value}, {statistic}).",
    "compared with {control}, {group} had {direction} {endpoint} ({number} vs {control_value}, {statistic}).",
)
UNWORDED: tuple[str, ...] = (
    "{endpoint} was {value} in {group} and {control_value} in {control} ({statistic}).",
    "{endpoint} was {control_value} in {control} and {value} in {group} ({statistic}).",
)
UNWORDED_SHARE: dict[int, float] = {1: 0.0, 2: 0.0, 3: 0.3, 4: 0.5}
INTERVAL_SHARE: dict[int, float] = {1: 0.0, 2: 0.0, 3: 0.0, 4: 0.3}

NORMAL = NormalDist()


def sentence_case(text: str) -> str:
    """`text` with its first letter in upper case and the rest unchanged."""
    return text[0].upper() + text[1:]


def write_question(rng: Random, subject: Subject, endpoint: str, population: str, target: Direction, level: int) -> str:
    """The question; levels 1 and 2 use one verb for each direction, harder ones use several."""
    verb = VERBS[target][0] if level < 3 else rng.choice(VERBS[target])
    template = rng.choice(QUESTIONS)
    text = template.format(name=subject.name, verb=verb, direction=target, endpoint=endpoint, population=population)
    return sentence_case(text)


def write_background(rng: Random, subject: Subject, condition: str) -> str:
    """One sentence that names the subject and the condition without answering the question."""
    return sentence_case(rng.choice(BACKGROUNDS).format(name=subject.name, condition=condition))


def write_methods(rng: Random, subject: Subject, population: str, participants: int) -> str:
    """The design with its sample size, and one remark."""
    design = rng.choice(METHODS[subject.kind]).format(
        n=participants, population=population, name=subject.name, comparator=subject.comparator, sites=rng.randint(2, 9)
    )
    return f"{design} {write_remark(rng, 1)}"


def write_remark(rng: Random, level: int) -> str:
    """A sentence that has no effect on the label; from level 3 on it may hold a p-value."""
    if level >= 3 and rng.random() < 0.3:
        return BASELINE_REMARK.format(hundredths=rng.randint(12, 95))
    return rng.choice(REMARKS).format(percent=rng.randint(71, 98), age=rng.randint(24, 78), few=rng.randint(2, 9))


def draw_p(rng: Random, significance: Significance) -> float:
    """A p-value of this significance, with two or three decimals or below 0.001, not near the limits 0.05 and 0.10."""
    if significance == "significant" and rng.random() < 0.25:
        return round(rng.uniform(0.0001, 0.0009), 4)
    low, high = {"significant": (0.001, 0.045), "borderline": (0.055, 0.095), "not significant": (0.12, 0.95)}[
        significance
    ]
    if rng.random() < 0.5:
        return rng.randint(round(low * 1000), round(high * 1000)) / 1000
    return rng.randint(max(1, round(low * 100 + 0.49)), int(high * 100)) / 100


def draw_values(rng: Random, endpoint: StudyEndpoint, direction: Direction, p: float, arm: int) -> tuple[float, float]:
    """Values of the studied and the control group that give this p-value with `arm` participants in each group.

    The difference is z(p) standard errors, rounded to the printed precision and at least one printed unit.
    """
    control = round(endpoint.typical * rng.uniform(0.88, 1.12), endpoint.decimals)
    spread = endpoint.spread or (control * (100 - control)) ** 0.5
    z = NORMAL.inv_cdf(1 - p / 2)
    unit = 10.0**-endpoint.decimals
    difference = max(unit, z * spread * (2 / arm) ** 0.5)
    value = control - difference if direction == "lower" else control + difference
    if endpoint.unit == "%":
        value = min(98.0, max(1.0, value))
    return round(max(value, unit), endpoint.decimals), control


def print_statistic(rng: Random, endpoint: StudyEndpoint, p: float, difference: float, level: int) -> str:
    """The p-value, or at level 4 sometimes the difference with its 95 % confidence interval.

    Always p for a borderline result, which an interval cannot show, and for intervals with a limit that rounds to 0.
    """
    if not 0.05 <= p < 0.1 and rng.random() < INTERVAL_SHARE[level]:
        half_width = 1.96 * abs(difference) / NORMAL.inv_cdf(1 - p / 2)
        digits = 1 if endpoint.decimals == 0 else 2
        limits = [f"{limit:.{digits}f}" for limit in (difference - half_width, difference + half_width)]
        if all(float(limit) for limit in limits):
            return f"95% CI {limits[0]} to {limits[1]}"
    if p < 0.001:
        return "p<0.001"
    return f"p={p:.3f}" if round(p * 100, 6) % 1 else f"p={p:.2f}"


def write_finding(
    rng: Random,
    subject: Subject,
    endpoint: StudyEndpoint,
    direction: Direction,
    p: float,
    lead: str,
    arm: int,
    level: int,
    worded: bool,
) -> tuple[str, str]:
    """One finding as a sentence, introduced by `lead`, and its statistic. `worded`: it says 'lower' or 'higher'."""
    value, control_value = draw_values(rng, endpoint, direction, p, arm)
    statistic = print_statistic(rng, endpoint, p, value - control_value, level)
    number, control_number = (f"{amount:.{endpoint.decimals}f}" for amount in (value, control_value))
    percent, unit = ("%", "%") if endpoint.unit == "%" else ("", f" {endpoint.unit}")
    unworded = rng.random() < UNWORDED_SHARE[level] and not worded
    template = rng.choice(UNWORDED[: level - 2] if unworded else WORDED)
    text = template.format(
        endpoint=endpoint.name,
        direction=direction,
        group=subject.group,
        control=subject.control_group,
        number=number + percent,
        value=number + unit,
        control_value=control_number + unit,
        statistic=statistic,
    )
    return sentence_case(lead + text), statistic
