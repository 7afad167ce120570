"""A kept question's state as a person may be told it: an answer to a real question counts only with real sources."""

from collections.abc import Mapping, Sequence
from typing import Any

from agents.tools.text.passages import Passage
from agents.visit.sources import given_sources
from chimera.config.sections.bundled import toy_parts
from evaluation.conduct.asked import NOTICE
from evaluation.conduct.grounds import Origins, Rule
from evaluation.conduct.kept import OWN_QUESTION, Kept


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
