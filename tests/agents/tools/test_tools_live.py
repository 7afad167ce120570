"""The live back ends against hand-written exchanges: requests sent, answers read, and every way to fail."""

import asyncio
import json
from itertools import pairwise
from types import SimpleNamespace
from urllib.parse import parse_qs

import httpx
import pytest
import respx
from live_kit import (
    BRIEF,
    KEY,
    PUBMED_IDS,
    PUBMED_RECORDS,
    PUBMED_XML,
    QUICKGO,
    SERVICES,
    TAVILY,
    TRIALS,
    UNIPROT,
    Clock,
    live_http,
)

from agents.tools.live.go import QuickGO
from agents.tools.live.http import SearchCache
from agents.tools.live.proteins import UniProt
from agents.tools.live.pubmed import PubMed
from agents.tools.live.tavily import Tavily
from agents.tools.live.trials import ClinicalTrials
from agents.tools.own import own_tool
from agents.tools.text.markup import element_text, parse_xml, text_of
from agents.tools.text.passages import Passage
from agents.tools.toolbox import build_toolbox
from agents.visit.prompting import tool_message
from agents.visit.quoting import texts_read
from chimera.config.sections.tools import ToolsConfig
from chimera.core.quotes import missing_quotes

EUTILS = "https://eutils.ncbi.nlm.nih.gov/entrez/eutils"
REGISTRY = "https://clinicaltrials.gov"
ONTOLOGY = "https://www.ebi.ac.uk/QuickGO/services/ontology"


def as_tool(search):
    """The search of a live tool, as the toolbox and LangChain's agents run it."""
    return own_tool(search, live=True).base.search


def fields(request: httpx.Request) -> dict[str, str]:
    return {key: values[0] for key, values in parse_qs(request.content.decode()).items()}


async def test_tavily_sends_the_key_in_a_header_and_asks_for_no_generated_answer(live_answers):
    route = live_answers.post("/search").respond(json=TAVILY)
    found = await Tavily(live_http(), 2, KEY, "https://live.example").literature_search("zinc colds")
    request = route.calls.last.request
    assert request.headers["Authorization"] == f"Bearer {KEY}"
    assert request.headers["User-Agent"] == "chimera-lab"
    sent = json.loads(request.content)
    assert (sent["query"], sent["max_results"]) == ("zinc colds", 5)
    assert (sent["include_answer"], sent["include_raw_content"]) == (False, False)
    assert "include_domains" not in sent
    assert found == [
        Passage(
            "https://a.example/1",
            "Zinc for colds",
            "TITLE: Zinc for colds. Zinc helped (p < 0.05).",
            "https://a.example/1",
        )
    ]


async def test_tavily_searches_trials_in_registries_only(live_answers):
    route = live_answers.post("/search").respond(json=TAVILY)
    await Tavily(live_http(), 2, KEY, "https://live.example").clinical_trials("zinc")
    assert "clinicaltrials.gov" in json.loads(route.calls.last.request.content)["include_domains"]


async def test_pubmed_searches_then_fetches_in_the_order_of_relevance(live_answers):
    search = live_answers.post("/esearch.fcgi").respond(json=PUBMED_IDS)
    fetch = live_answers.post("/efetch.fcgi").respond(text=PUBMED_XML)
    found = await PubMed(live_http(), 2, KEY, "https://live.example").literature_search("Does zinc shorten colds?")
    asked = [fields(call.request) for call in search.calls]
    assert [request["term"] for request in asked] == ["zinc AND shorten AND colds", "zinc OR shorten OR colds"]
    assert {"db": "pubmed", "tool": "chimera-lab", "api_key": KEY, "sort": "relevance"}.items() <= asked[0].items()
    assert fields(fetch.calls.last.request)["id"] == "222,111"
    assert not search.calls.last.request.url.query
    assert [(passage.id, passage.text) for passage in found] == [
        ("222", "TITLE: Zinc trial METHODS: Ninety adults. CONCLUSIONS: Zinc shortens colds."),
        ("111", "TITLE: Zinc and rhinovirus. Plain text & H2O."),
    ]
    assert found[1].linked == ("777", "10.1/zinc")


async def test_pubmed_needs_no_key_and_no_second_search_when_the_first_gave_enough(live_answers):
    ids = {"esearchresult": {"idlist": ["111", "222", "333", "444", "555"]}}
    search = live_answers.post("/esearch.fcgi").respond(json=ids)
    live_answers.post("/efetch.fcgi").respond(text=PUBMED_XML)
    await PubMed(live_http(), 2, None, "https://live.example").literature_search("zinc colds")
    assert search.call_count == 1
    assert "api_key" not in fields(search.calls.last.request)


@pytest.mark.parametrize(("key", "gap"), [(None, 1 / 3), (KEY, 1 / 10)])
async def test_requests_to_pubmed_begin_apart(live_answers, monkeypatch, key, gap):
    monkeypatch.setattr("agents.tools.live.pubmed.time", SimpleNamespace(monotonic=lambda: 100.0))
    live_answers.post("/esearch.fcgi").respond(json={"esearchresult": {"idlist": []}})
    clock = Clock()
    pubmed = PubMed(live_http(clock), 2, key, "https://live.example")
    await asyncio.gather(*(pubmed.literature_search(f"zinc{number}") for number in range(6)))
    assert all(later - earlier > gap for earlier, later in pairwise(sorted(clock.slept)))
    assert len(clock.slept) == 6


async def test_pubmed_without_hits_fetches_nothing(live_answers):
    live_answers.post("/esearch.fcgi").respond(json={"esearchresult": {"idlist": []}})
    fetch = live_answers.post("/efetch.fcgi")
    assert await PubMed(live_http(), 2, None, "https://live.example").literature_search("zinc") == []
    assert not fetch.called


async def test_clinical_trials_describes_a_study_in_labelled_fields(live_answers):
    route = live_answers.get("/studies").respond(json=TRIALS)
    full, bare = await ClinicalTrials(live_http(), 2, "https://live.example").clinical_trials("zinc (colds) AREA[x]")
    terms = [call.request.url.params["query.term"] for call in route.calls]
    assert terms == ["zinc AND colds AND area AND x", "zinc OR colds OR area OR x"]
    assert full.text == (
        "TITLE: Zinc in Colds. STATUS: COMPLETED. DESIGN: INTERVENTIONAL, PHASE3, RANDOMIZED. PARTICIPANTS: 90. "
        "CONDITIONS: Common Cold. INTERVENTIONS: DRUG Zinc acetate. PRIMARY OUTCOMES: Days with symptoms. "
        "SUMMARY: Does zinc help? We will see."
    )
    assert full.url == "https://clinicaltrials.gov/study/NCT00000001"
    assert {"222", "Doe J. Zinc trial."} <= set(full.linked)
    assert (bare.id, bare.text) == ("NCT00000002", "")


@pytest.mark.parametrize("retracted", ["omit", "mark"])
@respx.mock
async def test_retracted_work_is_named_and_can_never_be_quoted(retracted):
    respx.post(f"{EUTILS}/esearch.fcgi").respond(json={"esearchresult": {"idlist": ["1", "2", "3", "4", "5"]}})
    respx.post(f"{EUTILS}/efetch.fcgi").respond(text=PUBMED_RECORDS)
    toolbox = build_toolbox(ToolsConfig(literature="pubmed", results=2, retracted=retracted), (), {})
    result = await toolbox.call("literature_search", {"query": "zinc"}, brief=BRIEF)
    assert {passage.id: passage.text for passage in result.passages} == {
        "4": "TITLE: El zinc Zinc in 10^6 cells.",
        "5": "TITLE: Zinc and the immune system Zinc is an element.",
    }
    assert all(
        part in str(result.note) for part in ("1 ", "retracted", "2 ", "expression of concern", "3 ", "withdrawn")
    )
    assert ("Zinc cured all colds." in str(result.note)) == (retracted == "mark")
    texts = texts_read([tool_message("call", result.content(), BRIEF.goal)])
    assert missing_quotes(["Zinc cured all colds.", "Zinc is an element."], texts) == ["Zinc cured all colds."]


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ("WITHDRAWN", ""),
        ("WITHDRAWN", "no funds"),
        ("TERMINATED", "Safety &amp; futility"),
        ("SUSPENDED", "audit"),
        ("TERMINATED", None),
        ("COMPLETED", None),
    ],
)
async def test_a_trial_that_was_withdrawn_or_stopped_for_a_reason_is_no_evidence(live_answers, status, why):
    module = {"overallStatus": status, **({"whyStopped": why} if why else {})}
    study = {"identificationModule": {"nctId": "NCT1", "briefTitle": "Zinc"}, "statusModule": module}
    live_answers.get("/studies").respond(json={"studies": [{"protocolSection": study}]})
    (passage,) = await ClinicalTrials(live_http(), 0, "https://live.example").clinical_trials("zinc")
    assert passage.caution == ("" if why is None else f"{status.lower()} trial{f': {why}' if why else ''}").replace(
        "&amp;", "&"
    )


async def test_uniprot_asks_for_human_names_then_any_then_words(live_answers):
    route = live_answers.get("/uniprotkb/search")
    route.side_effect = [httpx.Response(200, json={"results": []})] * 2 + [httpx.Response(200, json=UNIPROT)]
    (passage,) = await UniProt(live_http(), 2, "https://live.example").protein_lookup('the "TP53" gene')
    queries = [call.request.url.params["query"] for call in route.calls]
    assert queries == [
        '(gene_exact:"the TP53 gene" OR protein_name:"the TP53 gene") AND reviewed:true AND organism_id:9606',
        '(gene_exact:"the TP53 gene" OR protein_name:"the TP53 gene") AND reviewed:true',
        "(tp53 AND gene) AND reviewed:true AND organism_id:9606",
    ]
    assert passage.text == (
        "Cellular tumor antigen p53 (gene TP53; Homo sapiens; UniProt P04637). Function: Stops the cell cycle"
    )


async def test_uniprot_looks_an_accession_up_at_once(live_answers):
    route = live_answers.get("/uniprotkb/search").respond(json=UNIPROT)
    await UniProt(live_http(), 2, "https://live.example").protein_lookup("p04637")
    assert [call.request.url.params["query"] for call in route.calls] == ["accession:P04637"]


async def test_quickgo_searches_and_leaves_obsolete_terms_out(live_answers):
    route = live_answers.get("/search").respond(json=QUICKGO)
    (passage,) = await QuickGO(live_http(), 2, "https://live.example").gene_ontology("what is apoptosis?")
    assert dict(route.calls.last.request.url.params) == {"query": "apoptosis", "limit": "5", "page": "1"}
    assert passage.text == (
        "apoptotic process (GO:0006915, biological process). Definition: Orderly cell death. Synonyms: apoptosis."
    )


async def test_quickgo_looks_an_id_up_at_once(live_answers):
    route = live_answers.get("/terms/GO:0006915").respond(json=QUICKGO)
    await QuickGO(live_http(), 2, "https://live.example").gene_ontology("go:0006915")
    assert route.called


@pytest.mark.parametrize("service", SERVICES)
async def test_queries_without_words_ask_no_one(live_answers, service):
    live_answers.route().respond(json={"results": []})
    assert await SERVICES[service](live_http(), "https://live.example")("?!") == []
    assert live_answers.calls.call_count == (1 if service == "Tavily" else 0)


async def test_equal_searches_are_asked_once(live_answers):
    route = live_answers.get("/search").respond(json=QUICKGO)
    search = as_tool(QuickGO(live_http(), 1, "https://live.example").gene_ontology)
    first = await asyncio.gather(*(search("zinc") for _ in range(5)))
    assert [*first, await search("zinc")] == [first[0]] * 6
    assert (len(first[0]), route.call_count) == (1, 1)
    await search("copper")
    assert route.call_count == 2


async def test_the_cache_forgets_what_was_used_longest_ago():
    cache, asked = SearchCache(size=2), []

    async def ask(key):
        async def search():
            asked.append(key)
            return [Passage(key, "", "")]

        return (await cache.get(key, search))[0].id

    for key in "abacab":
        assert await ask(key) == key
    assert asked == ["a", "b", "c", "b"]


async def test_one_waiter_that_leaves_does_not_take_the_answer_from_the_other():
    cache, gate = SearchCache(), asyncio.Event()

    async def search():
        await gate.wait()
        return [Passage("1", "", "")]

    leaver, stayer = (asyncio.create_task(cache.get("k", search)) for _ in range(2))
    await asyncio.sleep(0)
    leaver.cancel()
    gate.set()
    assert [passage.id for passage in await stayer] == ["1"]
    with pytest.raises(asyncio.CancelledError):
        await leaver


def test_one_toolbox_serves_several_event_loops(live_answers):
    live_answers.get("/search").respond(json=QUICKGO)
    search = as_tool(QuickGO(live_http(), 1, "https://live.example").gene_ontology)
    assert [len(asyncio.run(search(term))) for term in ("apoptosis", "necrosis", "apoptosis")] == [1, 1, 1]


@pytest.mark.parametrize(
    ("config", "tool", "word", "url"),
    [
        ({"literature": "tavily"}, "literature_search", "web", "https://api.tavily.com/search"),
        ({"literature": "pubmed"}, "literature_search", "PubMed", f"{EUTILS}/esearch.fcgi"),
        ({"trials": "tavily"}, "clinical_trials", "registries", "https://api.tavily.com/search"),
        ({"trials": "clinicaltrials"}, "clinical_trials", "ClinicalTrials.gov", f"{REGISTRY}/api/v2/studies"),
        ({"protein": "uniprot"}, "protein_lookup", "UniProt by", "https://rest.uniprot.org/uniprotkb/search"),
        ({"ontology": "quickgo"}, "gene_ontology", "QuickGO", f"{ONTOLOGY}/go/search"),
    ],
)
@respx.mock
async def test_settings_reach_the_services_and_models_are_told_of_them(config, tool, word, url):
    route = respx.route(url__startswith=url).respond(503, headers={"Retry-After": "0"})
    settings = ToolsConfig.model_validate({**config, "retries": 1, "timeout_s": 30})
    toolbox = build_toolbox(settings, (), {"TAVILY_API_KEY": KEY})
    assert toolbox.names == ("literature_search", "clinical_trials", "protein_lookup", "gene_ontology")
    functions = [spec["function"] for spec in toolbox.specs(toolbox.names)]
    assert [function["name"] for function in functions if word in function["description"]] == [tool]
    parameter = toolbox.specs([tool])[0]["function"]["parameters"]["required"][0]
    result = await toolbox.call(tool, {parameter: "zinc"}, brief=BRIEF)
    assert (result.ok, result.valid) == (False, True)
    assert result.error is not None
    assert result.error.endswith("is failing (503) after 2 tries: try again later")
    assert route.call_count == 2


@respx.mock
async def test_the_configured_time_out_bounds_a_live_call():
    async def never(request):
        await asyncio.Event().wait()

    respx.route().mock(side_effect=never)
    toolbox = build_toolbox(ToolsConfig(ontology="quickgo", timeout_s=0.05), (), {})
    result = await toolbox.call("gene_ontology", {"term": "zinc"}, brief=BRIEF)
    assert result.error == "QuickGO did not answer within 0.05 s (tools.timeout_s)"


@respx.mock
async def test_live_passages_are_limited_like_local_ones():
    long = {
        "results": [
            {"title": f"T{n}", "url": f"https://a.example/{n}", "content": "It helped. " * 99} for n in range(9)
        ]
    }
    respx.post("https://api.tavily.com/search").respond(json=long)
    toolbox = build_toolbox(ToolsConfig(literature="tavily", results=3, max_chars=150), (), {"TAVILY_API_KEY": KEY})
    result = await toolbox.call("literature_search", {"query": "zinc"}, brief=BRIEF)
    assert [passage.url for passage in result.passages] == [f"https://a.example/{n}" for n in range(3)]
    assert all(100 < len(passage.text) <= 150 for passage in result.passages)


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<p>One</p><p>Two<br/>Three</p>", "One Two Three"),
        ("H<sub>2</sub>O <i>in</i> <a href='x'>vitro</a>", "H2O in vitro"),
        ("p < 0.05 and n > 3, p<0.01", "p < 0.05 and n > 3, p<0.01"),
        ("A &lt;b&gt; &amp; C&#8217;s", "A <b> & C’s"),
        ("x<script>var a = '<p>';</script>y<style>p{}</style>z", "x y z"),
        ("open <script>never closed", "open"),
        ("<!-- note -->seen<!DOCTYPE html>", "seen"),
        ("", ""),
    ],
)
def test_html_becomes_text(html, text):
    assert text_of(html) == text


def test_hostile_html_does_not_hang():
    for unit in ("<script>", "<!--", "<p ", "</", "&lt;", "<a href='"):
        assert len(text_of(unit * 60_000)) <= 60_000 * len(unit)


def test_xml_text_crosses_elements():
    assert element_text(parse_xml(b"<a>one <b>two</b>\n three</a>")) == "one two three"
    assert element_text(None) == ""


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("10<sup>6</sup> cells", "10^6 cells"),
        ("10<sup><i>-6</i></sup>/L", "10^-6/L"),
        ("5 cm<sup>2</sup>", "5 cm^2"),
        ("12<sub>10</sub>", "12_10"),
        ("H<sub>2</sub>O and CO<sub>2</sub>", "H2O and CO2"),
        ("CD4<sup>+</sup> cells", "CD4+ cells"),
        ("<sup>99m</sup>Tc, [<sup>18</sup>F]FDG and the 1<sup>st</sup>", "99mTc, [18F]FDG and the 1st"),
    ],
)
def test_raised_and_lowered_text_makes_no_other_number(markup, text):
    assert text_of(markup) == text
    assert element_text(parse_xml(f"<AbstractText>{markup}</AbstractText>".encode())) == text


def test_a_power_in_mathml_makes_no_other_number():
    power = "<a>of <msup xmlns='m'>\n<mn>10</mn>\n<mn>6</mn></msup> cells</a>"
    assert element_text(parse_xml(power.encode())) == "of 10^6 cells"
