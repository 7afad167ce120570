"""Findings: what one study says to the question, in a form that can be counted.

Where evidence lies in many studies (`society.graph.choose=combine`), a junior hands over one finding of each study that
it has read, and the refiner weighs the findings of all by their numbers. The first message of such a visit names the
form of its answer (`FORMS`), so a recorded visit tells by itself how its answer is read.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from agents.schemas import Answer, Phrase, Quote
from agents.tools.text.passages import MAX_ID
from chimera.core.types import YesNoMaybe
from chimera.core.weighing import PRECISE, Design, Vote, clauses, points, weigh, weight

FINDINGS, COMBINATION = "findings", "combination"
COMBINED = "combined"
"""The author of what all findings say together, and the policy name of handing on all."""
AGAIN = "again"
SEARCH_AGAIN: Sequence[Mapping[str, Any]] = ({"author": AGAIN}, {"author": COMBINED})
"""What is chosen between where juniors could search once more: that they do, or the answer of the findings so far."""
MOST_STUDIES = 64
MOST_WEIGHED = 36
"""Most findings that the refiner weighs: of each it writes up to 33 of the letters of its `comparison`."""
MOST_FINDINGS = 6
"""Most findings of one answer to several studies, as a single call reads them."""

Says = TypeVar("Says")
Name = Annotated[str, StringConstraints(max_length=160)]


class Part(BaseModel, Generic[Says]):
    """What a study says to one part of the question beside what is asked there, and whether they are the same.

    An answer copies both first, so that a small model compares what stands side by side.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    says: Says
    asked: Says
    same: bool


class StudyFinding(BaseModel):
    """What one study says. `study` is the id of its passage, `size` the number of its participants; `group` and
    `condition` are its population; `answer` is what it says by itself to a question about its population and outcome.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    study: Annotated[str, StringConstraints(min_length=1, max_length=MAX_ID)]
    quote: Quote
    retracted: bool
    design: Design
    size: Annotated[int, Field(ge=1, le=9_999_999)]
    group: Part[Phrase]
    condition: Part[Phrase]
    outcome: Part[Phrase]
    direction: Part[Literal["lower", "higher"]]
    significance: Literal["significant", "borderline", "not significant"]
    answer: YesNoMaybe


class Findings(Answer):
    """A junior's findings. `search` is another name of the treatment, or a word of it, to search for next; empty if it
    read of none."""

    findings: list[StudyFinding]
    search: Name

    @classmethod
    def joined(cls, answers: Sequence[Self]) -> Self:
        """The findings of several answers as one, with the first name to search for."""
        findings = [finding for answer in answers for finding in answer.findings]
        return cls(findings=findings, search=next((answer.search for answer in answers if answer.search), ""))

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


TOPICS: Mapping[str, str] = {"group": "population", "condition": "population", "outcome": "outcome"}
"""The parts of a finding that have to be the ones asked about, with what is said to differ where one is not."""


def left_out(finding: Mapping[str, Any]) -> str | None:
    """Why a finding does not count; None if it does."""
    if finding["retracted"]:
        return "retracted"
    return next((f"other {topic}" for part, topic in TOPICS.items() if not finding[part]["same"]), None)


def vote(finding: Mapping[str, Any]) -> Vote:
    """What a finding says to the question, with its weight."""
    answer = None if left_out(finding) else finding["answer"]
    return Vote(finding["study"], answer, weight(finding["design"], finding["size"]))


def counting(findings: Iterable[Mapping[str, Any]]) -> list[int]:
    """The numbers of the findings that count; the first has the number 1."""
    return [number for number, finding in enumerate(findings, start=1) if left_out(finding) is None]


def share_right(answer: Findings, votes: Sequence[Vote]) -> float:
    """The share of the studies of `votes` whose finding says and weighs what its vote says; a missing one does not."""
    votes_by_study = {finding.study: vote(finding.model_dump()) for finding in answer.findings}
    return fmean(_alike(votes_by_study.get(right.study), right) for right in votes)


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
    numbers, answer = counting(findings), weigh(map(vote, findings))
    return {
        "evidence": [findings[number - 1]["quote"] for number in numbers],
        "comparison": tally(findings),
        "claim": f"{len(numbers)} of {len(findings)} studies count, and together they say {answer}",
        "answer": answer,
    }


def gathered(hypotheses: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The findings of all juniors, one of each study: the first."""
    by_study: dict[str, Mapping[str, Any]] = {}
    for hypothesis in hypotheses:
        for finding in hypothesis["findings"]:
            by_study.setdefault(finding["study"], finding)
    return list(by_study.values())


def weighed(hypotheses: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The findings of all juniors that the refiner weighs: the first, as many as fit into its answer."""
    return gathered(hypotheses)[:MOST_WEIGHED]


def search_cues(findings: Sequence[Mapping[str, Any]], rounds: int, named: int) -> dict[str, float]:
    """What the choice whether juniors search once more rests on: counts, points, and their difference as a share.

    Args:
        rounds: Rounds of searches so far.
        named: Number of juniors that read of a name that none has searched for.
    """
    yes, no = points(map(vote, findings))
    return {
        "findings": len(findings),
        "counting": len(counting(findings)),
        "points yes": yes,
        "points no": no,
        "margin": abs(yes - no) / max(1, yes + no),
        "maybe": float(yes == no),
        "rounds": rounds,
        "named": named,
    }


def with_findings(earlier: Sequence[Mapping[str, Any]], answer: Mapping[str, Any]) -> dict[str, Any]:
    """A junior's hypothesis from its `answer` and what it handed over in an `earlier` round of searches, if it did."""
    findings = gathered([*earlier, answer])
    return {**concluded(findings), "findings": findings, "search": answer["search"]}


def handed_over(findings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Findings as the refiner reads them, a line each: the number from 1, and what it weighs or why it does not.

    The only numbers are those of the lines: among others, a small model often copies another line than it means to.
    """
    return [f"{number} {left_out(finding) or _weighable(finding)}" for number, finding in enumerate(findings, start=1)]


def _weighable(finding: Mapping[str, Any]) -> str:
    return f"{'large' if finding['size'] >= PRECISE else 'small'} {finding['design']} {finding['answer']}"


def tally(findings: Sequence[Mapping[str, Any]], read: Callable[[Mapping[str, Any]], Vote] = vote) -> str:
    """Findings one after another as the refiner reads and weighs them (`chimera.core.weighing.clauses`).

    Args:
        read: What a finding says and weighs, by the rule without it.
    """
    return "; ".join(clauses(handed_over(findings), [*map(read, findings)])) or "no study"


def combined(combination: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The refined hypothesis: a combination with the quotes of its studies."""
    quotes = [findings[number - 1]["quote"] for number in combination["studies"] if number <= len(findings)]
    return {"evidence": quotes, **combination}
