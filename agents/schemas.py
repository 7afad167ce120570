"""What each role must answer, as pydantic models; their JSON schemas constrain decoding, so strings are bounded.

Evidence is quoted verbatim before a claim is made: a quote can be checked, and small models learn to read from it.
"""

from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, create_model

from chimera.config.roles import JUNIORS
from chimera.core.types import Decision, Label, Severity, Verdict, YesNoMaybe

MAX_QUOTE = 400
"""Longest quote, in characters."""

Quote = Annotated[str, StringConstraints(min_length=1, max_length=MAX_QUOTE)]
Phrase = Annotated[str, StringConstraints(min_length=1, max_length=160)]
Comparison = Annotated[str, StringConstraints(min_length=1, max_length=480)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=600)]


class Answer(BaseModel):
    """Base of all role outputs: frozen, no unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @property
    def stance(self) -> Label | None:
        """What it says to the research question; None if it says nothing to it."""
        return None

    @property
    def quotes(self) -> tuple[str, ...]:
        """The sentences that it quotes as evidence."""
        return ()


class Hypothesis(Answer):
    """A junior's hypothesis, and after refinement the refiner's; `evidence` is empty if nothing has been read."""

    evidence: Annotated[list[Quote], Field(max_length=3)]
    comparison: Comparison
    claim: Phrase
    answer: YesNoMaybe

    @property
    def stance(self) -> Label:
        return self.answer

    @property
    def quotes(self) -> tuple[str, ...]:
        return tuple(self.evidence)


class Selection(Answer):
    """The supervisor's choice among the three juniors' hypotheses."""

    choice: Literal[JUNIORS]  # pyright: ignore[reportInvalidTypeForm] - the names stand in one place
    justification: Text


@cache
def selection_of(*authors: str) -> type[Selection]:
    """`Selection` among `authors`: one of them when a policy has chosen, or all that have proposed something."""
    only: Any = Literal[authors]
    return create_model("Selection", __base__=Selection, __doc__=Selection.__doc__, choice=(only, ...))


@cache
def with_options(schema: type[Answer], names: tuple[str, ...]) -> type[Answer]:
    """`schema` for a task with options: where it has yes, no or maybe, it has one of `names`."""
    fields = [name for name, field in schema.model_fields.items() if field.annotation == YesNoMaybe]
    if not fields or not names:
        return schema
    option: Any = Literal[names]
    of_options: Any = dict.fromkeys(fields, (option, ...))
    return create_model(schema.__name__, __base__=schema, __doc__=schema.__doc__, **of_options)


class ExperimentProtocol(Answer):
    """An experiment that would confirm the refined hypothesis; `expected` is the answer it is designed to show."""

    model_config = ConfigDict(title="Protocol")
    """Models and graders know the schema by this name; the bundled model was trained on it."""

    design: Phrase
    population: Phrase
    intervention: Phrase
    comparator: Phrase
    outcome: Phrase
    sample_size: Annotated[int, Field(ge=1, le=99_999)]
    analysis: Phrase
    safeguards: Phrase
    expected: YesNoMaybe

    @property
    def stance(self) -> Label:
        """The answer that it is designed to show."""
        return self.expected


class Review(Answer):
    """A review of the protocol; the peer reviewer and the safety officer both answer in this form."""

    issues: Annotated[list[Phrase], Field(max_length=6)]
    severity: Severity
    verdict: Verdict


class PeerReview(Review):
    """The peer reviewer's review: science."""


class SafetyReview(Review):
    """The safety officer's review: harm to participants."""


class FinalDecision(Answer):
    """The principal investigator's two results: the answer to the question, and whether the protocol may run.

    `answer` is what the evidence says; a review can forbid a protocol, but it does not change the evidence.
    `amendments` are added to the protocol, which is otherwise kept.
    """

    amendments: Annotated[list[Phrase], Field(max_length=6)]
    answer: YesNoMaybe
    decision: Decision
    rationale: Text

    @property
    def stance(self) -> Label:
        return self.answer
