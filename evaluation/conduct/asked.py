"""The result of one question as plain data, for programs, and its kept state as a person may be told it."""

from collections.abc import Mapping, Sequence
from typing import Any

from agents.tools.text.passages import Passage
from agents.visit.sources import given_sources
from chimera.config.sections.bundled import toy_parts
from evaluation.conduct.grounds import Origins, Rule
from evaluation.conduct.kept import OWN_QUESTION, Kept
from evaluation.conduct.live_society import Step

NOTICE = "Not medical advice: language models wrote this, and they err. Ask a doctor before you act on it."
FIELDS = {"answer": "final_answer", "decision": "final_decision", "rationale": "final_rationale", "veto": "final_veto"}
MORE = {"caution": "final_caution", "withheld": "final_withheld", "confirmation": "confirmation"}


class AskOutcome:
    """Collects the steps of one question."""

    def __init__(self, question: str, *, real: bool, toys: list[str], earlier: Mapping[str, Any]) -> None:
        self._question, self._real = question, real
        self.toys = toys
        self._state: dict[str, Any] = dict(earlier)
        self.last: Step | None = None

    def add(self, step: Step) -> None:
        self._state |= step.update
        self.last = step

    @property
    def withheld(self) -> bool:
        """True if no source supports the society's decision, so that there is no answer."""
        return self._state.get("final_withheld") is not None

    @property
    def waits(self) -> bool:
        """True if a person has to confirm the decision."""
        return self.last is not None and self.last.waits_for is not None

    def result(self, question_name: str | None) -> dict[str, Any]:
        """The result; `question_name` is the name under which the work is kept, if it is."""
        state = self._state
        sources = {
            source.where: {"where": source.where, "title": source.title, "url": source.url, "real": source.real}
            for source in (self.last.read if self.last else ())
        }
        return {
            "question": self._question,
            **{name: state.get(field) for name, field in {**FIELDS, **MORE}.items()},
            "waits_for_a_person": self.waits,
            "kept_as": question_name,
            "evidence": [{"quote": quote, "where": where} for quote, where in state.get("final_grounds", ())],
            "sources": list(sources.values()),
            "toy_models": self.toys,
            "notice": NOTICE if self._real else None,
        }


def answer_state(
    kept_question: Kept, values: Mapping[str, Any], sources: Sequence[tuple[str, Passage]]
) -> Mapping[str, Any]:
    """The state with the decision withheld where `python -m chimera ask` withholds it (`grounds.Rule`)."""
    if kept_question.brief.id != OWN_QUESTION or "final_decision" not in values:
        return values
    config = kept_question.config
    data = "pubmedqa" if config.data.path == "hub" or config.data.path.endswith(".json") else "own"
    origins = Origins(config.tools, "generated" if config.data.path == "generated" else data, kept_question.brief.id)
    read = [origins.abstract(source["id"], source["text"]) for source in given_sources(kept_question.brief) or ()]
    read += [origins.of(tool, passage) for tool, passage in sources]
    evidence = values.get("refined_hypothesis", {"evidence": ()})["evidence"]
    rule = Rule(kept_question.brief.goal, "what was read", toy=bool(toy_parts(config.used())))
    return rule.apply(values, evidence, read)


def notice(kept_question: Kept) -> str | None:
    """What has to stand beside an answer to a real question; None for tasks of the data."""
    return NOTICE if kept_question.brief.id == OWN_QUESTION else None
