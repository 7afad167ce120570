"""Findings: what one study says to the question, in a form that can be counted.

Where evidence lies in many studies (`society.graph.choose=combine`), a junior hands over one finding of each study that
it has read, and the refiner weighs the findings of all by their numbers. The first message of such a visit names the
form of its answer (`FORMS`), so a recorded visit tells by itself how its answer is read.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from agents.schemas import Answer, Phrase, Quote
from chimera.config.roles import JUNIORS
from chimera.config.sections.graph import GraphConfig
from chimera.core.types import YesNoMaybe
from chimera.core.weighing import Design, Vote, points, weigh, weight

FINDINGS, COMBINATION = "findings", "combination"
REFINER = "HypothesisRefiner"
COMBINED = "combined"
"""The author of what all findings say together, and the policy name of handing on all."""
MOST_FINDINGS = 8
"""Most findings of one answer: more passages than these get none."""
MOST_STUDIES = 64

Name = Annotated[str, StringConstraints(max_length=160)]
Counts = Literal["yes", "other population", "other outcome", "retracted"]


class StudyFinding(BaseModel):
    """What one study says. `study` is the id of its passage, `size` the number of its participants.

    `counts` says whether it answers the question, `answer` what it says by itself.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    study: Phrase
    quote: Quote
    design: Design
    size: Annotated[int, Field(ge=1, le=9_999_999)]
    population: Phrase
    outcome: Phrase
    counts: Counts
    direction: Literal["lower", "higher"]
    significance: Literal["significant", "borderline", "not significant"]
    answer: YesNoMaybe


class Findings(Answer):
    """A junior's findings. `search` is another name of the treatment, to search for next; empty if it read of none."""

    asked: Phrase
    findings: Annotated[list[StudyFinding], Field(max_length=MOST_FINDINGS)]
    search: Name

    @property
    def stance(self) -> YesNoMaybe:
        """What its findings say together, by the rule of `chimera.core.weighing`."""
        return weigh(vote(finding.model_dump()) for finding in self.findings)

    @property
    def quotes(self) -> tuple[str, ...]:
        return tuple(finding.quote for finding in self.findings)

    def with_quotes(self, quotes: Mapping[str, str]) -> Self:
        """With other quotes: those that `quotes` names."""
        findings = [
            finding.model_copy(update={"quote": quotes.get(finding.quote, finding.quote)}) for finding in self.findings
        ]
        return self.model_copy(update={"findings": findings})


class Combination(Answer):
    """The refiner's answer from all findings: `comparison` weighs them one after another, `studies` are the numbers of
    those that count."""

    comparison: Annotated[str, StringConstraints(min_length=1, max_length=1200)]
    studies: Annotated[list[Annotated[int, Field(ge=1, le=MOST_STUDIES)]], Field(max_length=MOST_STUDIES)]
    claim: Phrase
    answer: YesNoMaybe

    @property
    def stance(self) -> YesNoMaybe:
        return self.answer


FORMS: Mapping[str, type[Answer]] = {FINDINGS: Findings, COMBINATION: Combination}
"""The schemas of the answers by the form that a visit's first message names."""


def form_of(graph: GraphConfig, role: str) -> str | None:
    """The form of a role's answers in a society; None for its own schema."""
    if graph.choose != "combine":
        return None
    return FINDINGS if role in JUNIORS else COMBINATION if role == REFINER else None


def vote(finding: Mapping[str, Any]) -> Vote:
    """What a finding says to the question, with its weight."""
    answer = finding["answer"] if finding["counts"] == "yes" else None
    return Vote(finding["study"], answer, weight(finding["design"], finding["size"]))


def share_right(answer: Findings, votes: Sequence[Vote]) -> float:
    """The share of the studies whose finding says and weighs what `votes` say."""
    votes_by_study = {finding.study: vote(finding.model_dump()) for finding in answer.findings}
    return sum(_alike(votes_by_study.get(right.study), right) for right in votes) / len(votes)


def _alike(vote: Vote | None, right: Vote) -> bool:
    """True if two votes say the same; what a study that does not count would weigh is beside the point."""
    return vote is not None and vote.answer == right.answer and (right.answer is None or vote.weight == right.weight)


def as_hypothesis(answer: Answer, findings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """An answer as the hypothesis that it stands for; the numbers of a combination are those of `findings`."""
    content = answer.model_dump()
    if isinstance(answer, Findings):
        return with_findings([], content)
    return combined(content, findings) if isinstance(answer, Combination) else content


def concluded(findings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The fields of a hypothesis that follow from `findings` by the rule."""
    counting = [finding for finding in findings if finding["counts"] == "yes"]
    answer = weigh(map(vote, findings))
    return {
        "evidence": [finding["quote"] for finding in counting],
        "comparison": tally(handed_over(findings)),
        "claim": f"{len(counting)} of {len(findings)} studies count, and together they say {answer}",
        "answer": answer,
    }


def gathered(hypotheses: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The findings of all juniors, one of each study: the first."""
    by_study: dict[str, Mapping[str, Any]] = {}
    for hypothesis in hypotheses:
        for finding in hypothesis["findings"]:
            by_study.setdefault(finding["study"], finding)
    return list(by_study.values())


def with_findings(earlier: Sequence[Mapping[str, Any]], answer: Mapping[str, Any]) -> dict[str, Any]:
    """A junior's hypothesis from its `answer` and what it handed over in an `earlier` round of searches, if it did."""
    findings = gathered([*earlier, answer])
    return {**concluded(findings), "findings": findings, "search": answer["search"]}


def handed_over(findings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Findings as the refiner reads them: numbered from 1, without what it needs no more."""
    names = ("design", "size", "counts", "answer")
    return [
        {"number": number, **{name: finding[name] for name in names}}
        for number, finding in enumerate(findings, start=1)
    ]


def tally(numbered: Sequence[Mapping[str, Any]]) -> str:
    """The findings that count, one after another: number, weight and answer, and the points for yes and no so far."""
    votes: list[Vote] = []
    clauses: list[str] = []
    for finding in numbered:
        if finding["counts"] != "yes":
            continue
        votes.append(vote({**finding, "study": ""}))
        yes, no = points(votes)
        study = f"{finding['number']} {finding['design']} {finding['size']}"
        clauses.append(f"{study} {votes[-1].weight} {finding['answer']} {yes}:{no}")
    return "; ".join(clauses) or "no study counts"


def combined(combination: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The refined hypothesis: a combination with the quotes of its studies."""
    quotes = [findings[number - 1]["quote"] for number in combination["studies"] if number <= len(findings)]
    return {"evidence": quotes, **combination}
