"""The article behind a question never comes back from a live search, in whatever disguise."""

import json

import pytest
import respx
from hypothesis import given
from hypothesis import strategies as st

from agents.tools.leaks import is_source, same_title
from agents.tools.text.passages import Passage
from agents.tools.toolbox import build_toolbox
from chimera.config.sections.tools import ToolsConfig
from chimera.core.quotes import fingerprint
from chimera.core.types import Brief, Section

PMID = "21550158"
GOAL = "Does zinc shorten the common cold in healthy adults?"
SENTENCE = "Ninety healthy adults with a cold that had begun less than one day before were randomised."
ANSWER = "Zinc clearly shortens colds."
BRIEF = Brief(
    PMID, GOAL, (Section("METHODS", f"{SENTENCE} They took lozenges."), Section("RESULTS", "Colds were short."))
)
OTHER = Passage(
    "10000001",
    "Zinc lozenges and taste",
    "TITLE: Zinc lozenges and taste RESULTS: They taste bad.",
    "https://o.example/9",
)

DISGUISES = {
    "same id": Passage(PMID, "Another title", "text"),
    "same title": Passage("x", GOAL, "text"),
    "other case": Passage("x", GOAL.upper(), "text"),
    "other punctuation": Passage("x", "Does zinc shorten the common cold -- in healthy adults.", "text"),
    "mark-up": Passage("x", "Does <i>zinc</i> shorten the common cold in healthy adults&#63;", "text"),
    "accents": Passage("x", "Does zínc shorten the common cold in healthy adults?", "text"),
    "title with site": Passage("x", f"{GOAL} - PMC - NIH", "text"),
    "title with subtitle": Passage("x", f"{GOAL} A randomised trial", "text"),
    "title cut off": Passage("x", "Does zinc shorten the common cold in ...", "text"),
    "one word differs": Passage("x", "Does zinc shorten the common cold in the healthy adults?", "text"),
    "address": Passage("x", "Another title", "text", f"https://pubmed.ncbi.nlm.nih.gov/{PMID}/?from=x"),
    "address of a dump": Passage("x", "data", "text", f"https://hub.example/pubmedqa.json#pmid={PMID}"),
    "number in the text": Passage("x", "Another title", f"Europe PMC (PMID: {PMID}) {ANSWER}"),
    "linked number": Passage("NCT00000001", "A trial of zinc", "text", None, (PMID,)),
    "linked citation": Passage("NCT00000001", "A trial", "t", None, (f"Doe J, Roe R. {GOAL} J Colds. 2011;3:4-5.",)),
    "question in the text": Passage("x", "Index of articles", f"1. {GOAL.lower()} 2. Others."),
    "sentence in the text": Passage("x", "Repository item", f"Abstract. {SENTENCE.upper()} And so on. {ANSWER}"),
}


@pytest.mark.parametrize("name", DISGUISES)
def test_a_disguised_source_is_recognised(name):
    assert is_source(DISGUISES[name], BRIEF)


@pytest.mark.parametrize(
    "passage",
    [
        OTHER,
        Passage("x", "Does vitamin C prevent pneumonia in children?", "text"),
        Passage("x", "Zinc", "zinc in the common cold"),
        Passage("215501580", "Longer number", f"sample {PMID}0 and 1{PMID}", f"https://o.example/{PMID}0"),
        Passage("x", "Common cold", "Healthy adults with a cold were randomised."),
        Passage("", "", ""),
    ],
)
def test_other_works_are_left_alone(passage):
    assert not is_source(passage, BRIEF)


CHINESE = Brief(
    "t1",
    "阿司匹林能否降低糖尿病患者的心血管风险？",
    (Section("结果", "阿司匹林组事件发生率为百分之六，低于安慰剂组的百分之九。差异有统计学意义（P<0.05）。"),),
)


@pytest.mark.parametrize(
    ("text", "is_"),
    [
        ("研究问题：阿司匹林能否降低糖尿病患者的心血管风险？本文给出答案。", True),
        ("摘要：阿司匹林组事件发生率为百分之六，低于安慰剂组的百分之九，因此有效", True),
        ("结论显示阿司匹林可显著降低糖尿病患者心血管事件的风险。", True),
        ("二甲双胍可显著降低糖尿病患者的体重。两组差异有统计学意义（P<0.05）。", False),
    ],
)
def test_an_article_is_recognised_where_no_spaces_stand_between_words(text, is_):
    conclusion = fingerprint("阿司匹林可显著降低糖尿病患者心血管事件的风险，但出血增加。", "t1")
    assert is_source(Passage("x", "page", text), CHINESE, conclusion) == is_
    assert is_source(Passage("x", text, ""), CHINESE) == ("研究问题" in text)


def test_short_or_worded_ids_match_as_identifiers_only():
    for id_ in ("42", "generated-0-1", "question"):
        brief = Brief(id_, GOAL, ())
        assert is_source(Passage(id_, "t", "x"), brief)
        assert not is_source(Passage("x", "t", f"in {id_} cases the question"), brief)
    assert is_source(Passage("x", "t", "x", "https://o.example/42/"), Brief("42", GOAL, ()))
    assert not is_source(Passage("x", "t", "x", "https://o.example/question/"), Brief("question", GOAL, ()))


def test_an_empty_brief_blocks_nothing():
    assert not is_source(OTHER, Brief("", "", ()))


def test_one_changed_word_of_a_short_title_is_another_article():
    assert not same_title("Does zinc prevent stroke in women?", "Does zinc prevent stroke in men?")


@given(title=st.text(max_size=80), goal=st.text(min_size=1, max_size=80))
def test_equal_titles_are_the_same_and_any_text_is_safe(title, goal):
    assert same_title(goal, goal) or not any(character.isalnum() for character in goal)
    same_title(title, goal)


def tavily(*passages, results=5, **options):
    """A toolbox whose web search finds these passages, and the route by which it is asked."""
    found = [
        {"title": passage.title, "url": passage.url or f"https://mirror.example/{number}", "content": passage.text}
        for number, passage in enumerate(passages)
    ]
    route = respx.post("https://api.tavily.com/search").respond(json={"results": found})
    settings = ToolsConfig(literature="tavily", results=results)
    return build_toolbox(settings, (), {"TAVILY_API_KEY": "k"}, **options), route


async def search(toolbox, query="zinc", *, brief=BRIEF):
    return await toolbox.call("literature_search", {"query": query}, brief=brief)


TAVILY_PLANTS = [plant for plant in DISGUISES.values() if plant.id == "x"]


@respx.mock
async def test_tavily_never_returns_the_planted_article():
    for at in (0, 5, len(TAVILY_PLANTS)):
        plants = [*TAVILY_PLANTS[:at], OTHER, *TAVILY_PLANTS[at:]]
        toolbox, _ = tavily(*plants, results=2)
        result = await search(toolbox, GOAL)
        assert [passage.url for passage in result.passages] == [OTHER.url]
        assert ANSWER not in str(result.content())


@respx.mock
@pytest.mark.parametrize(("block", "note"), [(True, "no match for 'zinc colds'"), (False, None)])
async def test_when_blocking_leaves_nothing_the_result_is_no_match_and_without_a_key_nothing_is_blocked(block, note):
    toolbox, _ = tavily(*TAVILY_PLANTS, block_source=block)
    result = await search(toolbox, "zinc colds")
    assert (result.ok, bool(result.passages), result.note) == (True, not block, note)


def pubmed_article(pmid, title, conclusion):
    return (
        f"<PubmedArticle><MedlineCitation><PMID>{pmid}</PMID><Article><ArticleTitle>{title}</ArticleTitle><Abstract>"
        '<AbstractText Label="RESULTS">Zinc was given.</AbstractText>'
        f'<AbstractText Label="CONCLUSION">{conclusion}</AbstractText>'
        "</Abstract></Article></MedlineCitation></PubmedArticle>"
    )


PUBMED_PLANTS = [
    (PMID, "Retitled", ANSWER),
    ("30000001", GOAL, ANSWER),
    ("30000002", GOAL.upper().rstrip("?") + ".", ANSWER),
    ("30000003", f"Erratum: {GOAL}", ANSWER),
    ("30000004", "Author manuscript", f"{ANSWER} See PMID {PMID}."),
    ("30000005", "Reprint", f"{SENTENCE} {ANSWER}"),
]


@respx.mock
async def test_pubmed_never_returns_the_planted_article_or_its_conclusion():
    articles = [*PUBMED_PLANTS[:3], ("30000009", "Zinc and taste", "Zinc tastes bad."), *PUBMED_PLANTS[3:]]
    base = "https://eutils.ncbi.nlm.nih.gov/entrez/eutils"
    found = {"esearchresult": {"idlist": [pmid for pmid, *_ in articles]}}
    respx.post(f"{base}/esearch.fcgi").respond(json=found)
    xml = "".join(pubmed_article(*article) for article in articles)
    respx.post(f"{base}/efetch.fcgi").respond(text=f"<PubmedArticleSet>{xml}</PubmedArticleSet>")
    result = await search(build_toolbox(ToolsConfig(literature="pubmed", results=5), (), {}), GOAL)
    assert [passage.id for passage in result.passages] == ["30000009"]
    assert "CONCLUSION: Zinc tastes bad." in result.passages[0].text
    assert ANSWER not in str(result.content())


CONCLUSION = "Zinc lozenges shorten a common cold by two days, though they leave a naïve bad taste in one of three."
CONCLUSIONS = {PMID: fingerprint(CONCLUSION, PMID), "other": fingerprint("Salt is good for every one of us.", "other")}
QUOTES = {
    "as it is": f"A blog. {CONCLUSION} More text.",
    "other case": CONCLUSION.upper(),
    "other punctuation": "zinc lozenges -- shorten a common cold (by two days): though they leave",
    "mark-up": "Zinc <b>lozenges</b> shorten a common&nbsp;cold by two days<br/>, ...",
    "invisible characters": "Zinc lo\u00adzenges short\u200ben a common cold by two days.",
    "eight words": "We read that they leave a naive bad taste in one.",
    "cut off": "... cold by two days, though they leave a na\u00efve",
}


@respx.mock
@pytest.mark.parametrize("quote", QUOTES)
async def test_a_planted_conclusion_is_blocked_without_title_number_or_abstract(quote):
    others = [
        Passage("", "Zinc lozenges", "Zinc lozenges shorten a common cold by three weeks.", "https://o.example/1"),
        Passage("", "Salt", "Salt is good for every one of us.", "https://o.example/2"),
    ]
    plants = [Passage("", "A blog", QUOTES[quote]), others[0], Passage("", QUOTES[quote], "Zinc."), others[1]]
    toolbox, _ = tavily(*plants, conclusions=CONCLUSIONS)
    result = await search(toolbox)
    assert [passage.url for passage in result.passages] == ["https://o.example/1", "https://o.example/2"]


@respx.mock
async def test_the_block_depends_on_the_question_not_on_the_cache():
    toolbox, route = tavily(DISGUISES["same title"], OTHER)
    another = Brief("1", "Is zinc toxic?", ())
    counts = [len((await search(toolbox, brief=brief)).passages) for brief in (another, BRIEF, another)]
    assert (counts, route.call_count) == ([2, 1, 2], 1)


@respx.mock
async def test_trials_that_the_article_reports_are_blocked():
    def study(nct, title, **reference):
        protocol = {
            "identificationModule": {"nctId": nct, "briefTitle": title},
            "descriptionModule": {"briefSummary": "Zinc for colds"},
            "referencesModule": {"references": [reference]},
        }
        return {"protocolSection": protocol}

    studies = [
        study("NCT00000001", "Zinc one", pmid=PMID, type="RESULT"),
        study("NCT00000002", "Zinc two", citation=f"Doe J. {GOAL} J Colds 2011."),
        study("NCT00000003", GOAL, pmid="1"),
        study("NCT00000004", "Zinc four", pmid="30000001"),
    ]
    respx.get("https://clinicaltrials.gov/api/v2/studies").respond(json={"studies": studies})
    toolbox = build_toolbox(ToolsConfig(trials="clinicaltrials", results=5), (), {})
    result = await toolbox.call("clinical_trials", {"query": "zinc"}, brief=BRIEF)
    assert [passage.id for passage in result.passages] == ["NCT00000004"]


@respx.mock
async def test_replacements_are_fetched_for_what_the_block_takes_out():
    toolbox, route = tavily(DISGUISES["same title"], *(Passage("", f"T{n}", "Zinc.") for n in range(4)), results=2)
    result = await search(toolbox)
    assert [passage.title for passage in result.passages] == ["T0", "T1"]
    assert json.loads(route.calls.last.request.content)["max_results"] == 5


async def test_the_local_index_may_return_the_tasks_own_abstract():
    result = await search(build_toolbox(ToolsConfig(), [Passage(PMID, GOAL, f"METHODS: {SENTENCE}")], {}), GOAL)
    assert [passage.id for passage in result.passages] == [PMID]
