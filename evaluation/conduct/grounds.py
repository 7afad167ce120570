"""Grounds for the answer to a person's own question: the sources that the society has read, and the rule for them.

A person may be ill and act on the answer. So a decision counts only if its final hypothesis quotes a sentence of a real
source, word for word. Otherwise the answer is withheld, whatever the roles wrote.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agents.tools.text.fulltext import STOP_WORDS
from agents.tools.text.passages import Passage
from chimera.config.sections.tools import ToolsConfig
from chimera.core.quotes import occurs
from chimera.core.types import Source
from chimera.core.unspaced import pairs

STEM = 5
"""Two words count as the same if their first `STEM` letters are equal."""
YOURS = "your abstract"
GIVEN = "given with your question"
"""Title of the person's own abstract in lists of sources."""
SETTING_OF_TOOL = {
    "literature_search": "literature",
    "clinical_trials": "trials",
    "protein_lookup": "protein",
    "gene_ontology": "ontology",
}
"""The setting under `tools` that names each tool's back end."""
LIVE = {
    "pubmed": "PubMed",
    "clinicaltrials": "ClinicalTrials.gov",
    "tavily": "web page",
    "uniprot": "UniProt",
    "quickgo": "QuickGO",
}
"""Names for readers of the tool back ends that search the web."""


@dataclass(frozen=True, slots=True)
class Read:
    """One passage that the society has read.

    Attributes:
        where: Its origin in words, such as "your abstract" or "PubMed 123".
        title: Title; empty when there is none.
        url: Address; None when there is none.
        real: True if an answer to a real question may rest on it.
    """

    where: str
    text: str
    title: str = ""
    url: str | None = None
    real: bool = True


def source_lines(sources: Iterable[Read]) -> tuple[tuple[str, str], ...]:
    """One line for each source that was read: its origin, then its title and address."""
    lines: dict[str, str] = {}
    for source in sources:
        lines.setdefault(source.where, " · ".join(filter(None, (source.title, source.url))))
    return tuple(lines.items()) or (("none", "the society found no passage"),)


@dataclass(frozen=True, slots=True)
class Origins:
    """Finds the origin of a passage.

    Attributes:
        tools: Which back end each tool has.
        data: The data set whose abstracts the local index holds.
        own: Id of the person's own abstract; None without one.
    """

    tools: ToolsConfig
    data: Source
    own: str | None = None

    def of(self, tool: str, passage: Passage) -> Read:
        """A passage that `tool` returned, with its origin."""
        if passage.id == self.own:
            return self.abstract(passage.id, passage.text)
        if tool not in SETTING_OF_TOOL:
            return Read(f"your tool {tool}", passage.text, passage.title, passage.url)
        setting = SETTING_OF_TOOL[tool]
        live = LIVE.get(getattr(self.tools, setting))
        if live is not None:
            where = live if passage.id == passage.url else f"{live} {passage.id}"
            return Read(where, passage.text, passage.title, passage.url)
        if setting in ("protein", "ontology"):
            where = "Chimera's own notes on" if self.tools.database is None else "your database,"
            real = self.tools.database is not None
            return Read(f"{where} {passage.id}", passage.text, passage.title, passage.url, real)
        return self.abstract(passage.id, passage.text, passage.title)

    def abstract(self, id: str, text: str, title: str = "") -> Read:
        """An abstract of the local index or of the prompts, with its origin."""
        if id == self.own:
            return Read(YOURS, text, GIVEN)
        if self.data == "generated":
            return Read(f"invented study {id}", text, title, real=False)
        if self.data == "own":
            return Read(f"your data {id}", text, title)
        return Read(f"PubMedQA {id}", text, title, f"https://pubmed.ncbi.nlm.nih.gov/{id}/")


def supporting(evidence: Iterable[str], read: Sequence[Read]) -> list[tuple[str, str]]:
    """The quotes that occur verbatim in a real source, each with its origins."""
    matches = (
        (quote, [source.where for source in read if source.real and occurs(quote, [source.text])]) for quote in evidence
    )
    return [(quote, ", ".join(dict.fromkeys(places))) for quote, places in matches if places]


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule that a decision on a person's own question must satisfy.

    Attributes:
        offered: The available sources in words, such as "what you gave".
        toy: True if the bundled model answers. It picks true sentences without understanding them, so its answer never
            counts.
    """

    goal: str
    offered: str
    toy: bool = False

    def apply(self, update: Mapping[str, Any], evidence: Sequence[str], read: Sequence[Read]) -> dict[str, Any]:
        """Withhold the decision in the principal investigator's update unless a real source supports it.

        Args:
            update: The fields that the node wrote: `final_decision` and the fields that belong to it.
            evidence: Quotes of the final hypothesis.

        Returns:
            The update with `final_grounds` (the quotes that occur in a real source, with their origins) and
            `final_caution` (or None). If the decision does not count, it is UNDECIDED, the answer is None, the
            rationale says why, and `final_withheld` holds the society's decision and the full reason.
        """
        grounds = supporting(evidence, read)
        if self.toy:
            rationale = "the bundled model cannot read real studies"
            why = "it knows invented studies only: that it quotes a true sentence does not mean that it understood it"
        elif not grounds:
            rationale = f"no sentence of {self.offered} supports an answer"
            why = "no quote of the final hypothesis stands word for word in a source"
        else:
            return {**update, "final_grounds": grounds, "final_caution": self.caution(evidence, read)}
        society = {"decision": update["final_decision"], "answer": update["final_answer"], "why": why}
        withheld = {"final_decision": "UNDECIDED", "final_answer": None, "final_rationale": rationale}
        return {**update, **withheld, "final_grounds": grounds, "final_caution": None, "final_withheld": society}

    def caution(self, evidence: Sequence[str], read: Sequence[Read]) -> str | None:
        """A caution if no quoted source shares a word with the question, else None."""
        quoted = [
            source.text for source in read if source.real and any(occurs(quote, [source.text]) for quote in evidence)
        ]
        if _stems(self.goal) & _stems(" ".join(quoted)):
            return None
        return "no quoted source has a word in common with your question: it may be about something else"


def _stems(text: str) -> set[str]:
    """Content words without their endings."""
    return {word[:STEM] for word in re.findall(r"\w+", pairs(text.lower())) if word not in STOP_WORDS}
