"""What the answer to a person's own question may rest on: the sources that the society has read, and the rule for them.

A person may be ill and act on the answer. So a decision counts only if its final hypothesis quotes a sentence of a real
source, word for word. Otherwise the answer is withheld, whatever the roles wrote.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agents.tools.fulltext import STOP_WORDS
from agents.tools.passages import Passage
from chimera.config.tree import ToolsConfig
from chimera.core.quotes import occurs
from chimera.core.types import Source

STEM = 5
"""Words count as the same when their first letters are."""
YOURS = "your abstract"
GIVEN = "given with your question"
"""Title of a person's own abstract in lists of sources."""
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
"""Back ends of tools that ask the web, as readers know them."""


@dataclass(frozen=True, slots=True)
class Read:
    """One passage that the society has read.

    Attributes:
        where: Where it is from, in words, such as "your abstract" or "PubMed 123".
        text: The passage.
        title: Title; empty when there is none.
        url: Address; None when there is none.
        real: Whether an answer to a real question may rest on it.
    """

    where: str
    text: str
    title: str = ""
    url: str | None = None
    real: bool = True


@dataclass(frozen=True, slots=True)
class Origins:
    """Tells where a passage is from.

    Attributes:
        tools: Which back end each tool has.
        data: Whose abstracts the local index holds.
        own: Id of the person's own abstract; None without one.
    """

    tools: ToolsConfig
    data: Source
    own: str | None = None

    def of(self, tool: str, passage: Passage) -> Read:
        """`passage` as `tool` gave it, with its origin."""
        if passage.id == self.own:
            return self.abstract(passage.id, passage.text)
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
        """An abstract of the local index, or one that stands in the prompts, with its origin."""
        if id == self.own:
            return Read(YOURS, text, GIVEN)
        if self.data == "generated":
            return Read(f"invented study {id}", text, title, real=False)
        return Read(f"PubMedQA {id}", text, title, f"https://pubmed.ncbi.nlm.nih.gov/{id}/")


def supporting(evidence: Iterable[str], read: Sequence[Read]) -> list[tuple[str, str]]:
    """The quotes that stand verbatim in a real source, each with where it is from."""
    found = ((quote, [one.where for one in read if one.real and occurs(quote, [one.text])]) for quote in evidence)
    return [(quote, ", ".join(dict.fromkeys(places))) for quote, places in found if places]


@dataclass(frozen=True, slots=True)
class Rule:
    """What a decision on a person's own question must satisfy.

    Attributes:
        goal: The question.
        offered: What could be read, in words, such as "what you gave".
        toy: The bundled model works on it. It picks true sentences without understanding them, so its answer never
            counts.
    """

    goal: str
    offered: str
    toy: bool = False

    def apply(self, update: Mapping[str, Any], evidence: Sequence[str], read: Sequence[Read]) -> dict[str, Any]:
        """The principal investigator's update of the state, with its decision only if a real source supports it.

        Args:
            update: What the node wrote: `final_decision` and what goes with it.
            evidence: Quotes of the final hypothesis.
            read: What the society has read.

        Returns:
            The update with `final_grounds`: the quotes that stand in a real source and where they are from, and
            `final_caution`, if there is one. If the decision does not count, it is UNDECIDED, the answer is None, the
            rationale says why, and `final_withheld` holds what the society decided and the reason in full.
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
        """What a reader should know if no quoted source has a word of the question; None if one has."""
        quoted = [one.text for one in read if one.real and any(occurs(quote, [one.text]) for quote in evidence)]
        if _stems(self.goal) & _stems(" ".join(quoted)):
            return None
        return "no quoted source has a word in common with your question: it may be about something else"


def _stems(text: str) -> set[str]:
    """Content words without their endings."""
    return {word[:STEM] for word in re.findall(r"\w+", text.lower()) if word not in STOP_WORDS}
