"""What an answer to a person's own question may rest on."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.tools.text.passages import Passage
from agents.tools.toolbox import build_toolbox
from chimera.config.sections.tools import ToolsConfig
from chimera.core.types import Brief
from chimera.data.tasks import Document
from evaluation.conduct.grounds import Origins, Read, Rule, supporting
from evaluation.conduct.own_abstract import OwnAbstract

SENTENCE = "Admission was less frequent with the high dose (3.4% versus 4.6%, p=0.013)."
YOURS = Read("your abstract", f"Some were old. {SENTENCE} Arms were sore.")
INVENTED = Read("invented study generated-0-1", "Balance was better with training (p=0.01).", real=False)
RULE = Rule("Does a high dose lower admissions?", "what you gave")
DECIDED = {
    "final_answer": "yes",
    "final_decision": "GO",
    "final_veto": None,
    "final_rationale": "it works",
    "final_protocol": {"amendments": []},
    "sender": "PrincipalInvestigator",
}


def test_a_decision_that_quotes_a_real_source_stands_and_shows_the_quote():
    update = RULE.apply(DECIDED, ["No such words here.", SENTENCE], [INVENTED, YOURS])
    assert update == {**DECIDED, "final_grounds": [(SENTENCE, "your abstract")], "final_caution": None}


@pytest.mark.parametrize(
    "evidence",
    [[], ["Admission was less frequent with the high dose (3.4% versus 4.6%, p=0.01"], [INVENTED.text], ["sore"]],
)
def test_a_decision_without_a_real_quote_is_withheld(evidence):
    update = RULE.apply(DECIDED, evidence, [INVENTED, YOURS])
    assert update["final_decision"] == "UNDECIDED"
    assert update["final_answer"] is None
    assert update["final_rationale"] == "no sentence of what you gave supports an answer"
    society = update["final_withheld"]
    assert (society["decision"], society["answer"]) == ("GO", "yes")
    assert society["why"] == "no quote of the final hypothesis stands word for word in a source"
    assert {name: update[name] for name in ("final_veto", "final_protocol", "sender")} == {
        name: DECIDED[name] for name in ("final_veto", "final_protocol", "sender")
    }


def test_the_toys_decision_never_counts_although_its_quote_is_true():
    update = replace(RULE, toy=True).apply(DECIDED, [SENTENCE], [YOURS])
    assert (update["final_decision"], update["final_answer"]) == ("UNDECIDED", None)
    assert update["final_rationale"] == "the bundled model cannot read real studies"
    assert update["final_withheld"]["decision"] == "GO"


def test_a_quote_of_a_source_about_something_else_comes_with_a_caution():
    other = replace(RULE, goal="Does measles vaccination cause autism in toddlers?")
    assert "no quoted source has a word in common" in other.apply(DECIDED, [SENTENCE], [YOURS])["final_caution"]
    related = replace(RULE, goal="Are fewer people admitted?")
    assert related.apply(DECIDED, [SENTENCE], [YOURS])["final_caution"] is not None, "admit- is not admis-"
    assert replace(RULE, goal="Is admission rarer?").apply(DECIDED, [SENTENCE], [YOURS])["final_caution"] is None


texts = st.text(alphabet="ab .,0", max_size=30)


@given(
    evidence=st.lists(texts, max_size=4),
    read=st.lists(st.builds(Read, where=st.sampled_from("xyz"), text=texts, real=st.booleans()), max_size=4),
)
def test_only_real_sources_support_and_invented_ones_never_do(evidence, read):
    found = supporting(evidence, read)
    assert found == supporting(evidence, [one for one in read if one.real])
    assert not supporting(evidence, [one for one in read if not one.real])
    assert {where for _, places in found for where in places.split(", ")} <= {one.where for one in read if one.real}


@pytest.mark.parametrize(
    ("tools", "data", "tool", "id", "expected"),
    [
        ({}, "generated", "literature_search", "question", ("your abstract", True, None)),
        ({}, "generated", "clinical_trials", "generated-0-1", ("invented study generated-0-1", False, None)),
        ({}, "pubmedqa", "literature_search", "17", ("PubMedQA 17", True, "https://pubmed.ncbi.nlm.nih.gov/17/")),
        ({"literature": "pubmed"}, "generated", "literature_search", "17", ("PubMed 17", True, "http://x")),
        ({"literature": "tavily"}, "generated", "literature_search", "http://x", ("web page", True, "http://x")),
        ({"literature": "pubmed"}, "generated", "literature_search", "question", ("your abstract", True, None)),
        ({"trials": "clinicaltrials"}, "generated", "clinical_trials", "N", ("ClinicalTrials.gov N", True, "http://x")),
        ({"protein": "uniprot"}, "generated", "protein_lookup", "P1", ("UniProt P1", True, "http://x")),
        ({}, "pubmedqa", "protein_lookup", "P1", ("Chimera's own notes on P1", False, "http://x")),
        ({"database": "my.db"}, "pubmedqa", "gene_ontology", "GO:1", ("your database, GO:1", True, "http://x")),
    ],
)
def test_every_passage_says_where_it_is_from_and_whether_it_is_real(tools, data, tool, id, expected):
    origins = Origins(ToolsConfig(**tools), data, "question")
    read = origins.of(tool, Passage(id, "A title", "A text.", "http://x"))
    assert (read.where, read.real, read.url) == expected
    assert read.title == ("given with your question" if read.where == "your abstract" else "A title")


async def test_a_persons_abstract_is_found_by_any_literature_search_and_first():
    documents = [
        Document("1", "a", "The rate was lower."),
        Document("question", "your abstract", "RESULTS: Pain fell."),
    ]
    toolbox = OwnAbstract(build_toolbox(ToolsConfig(), documents, {}), documents[1], 1200)
    brief = Brief("question", "Does it?", ())

    async def found(tool, **arguments):
        return [passage.id for passage in (await toolbox.call(tool, arguments, brief=brief)).passages]

    assert await found("literature_search", query="quite other words") == ["question"]
    assert await found("literature_search", query="rate lower") == ["question", "1"]
    assert await found("literature_search", query="pain") == ["question"]
    assert await found("clinical_trials", query="pain") == []
    assert not (await toolbox.call("literature_search", {"wrong": "pain"}, brief=brief)).valid
    assert [spec["function"]["name"] for spec in toolbox.specs(["gene_ontology"])] == ["gene_ontology"]
