"""The toolbox and its local back ends: arguments, results, the literature index and excerpts."""

import asyncio
import json
import multiprocessing
import os
import sqlite3
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from message_kit import refused

from agents.tools.fulltext import Database
from agents.tools.literature import LiteratureIndex, describes_trial
from agents.tools.own import own_tool
from agents.tools.result import ToolResult
from agents.tools.text.excerpts import GAP, excerpt, split_sentences
from agents.tools.text.passages import MAX_QUERY, Passage, Query, ToolError, clean
from agents.tools.toolbox import Toolbox, build_toolbox
from chimera.config.roles import RolesConfig
from chimera.config.sections.tools import ToolsConfig
from chimera.core.errors import ConfigError
from chimera.core.types import Brief

PUBMEDQA = Path(__file__).parents[4] / "shared" / "pubmedqa" / "ori_pqal.json"
BRIEF = Brief("1", "Does zinc shorten colds?", ())


def tools_document(id_: str, title: str, text: str) -> SimpleNamespace:
    return SimpleNamespace(id=id_, title=title, text=text)


DOCUMENTS = (
    tools_document(
        "101",
        "Does zinc shorten colds?",
        "METHODS: Adults with a cold were randomised to zinc lozenges or placebo. "
        "RESULTS: Colds lasted 4.1 days with zinc and 6.8 days with placebo (p=0.002).",
    ),
    tools_document(
        "102",
        "Is shift work linked to obesity?",
        "METHODS: A cohort of nurses was followed. RESULTS: Night shifts went with higher body mass index (p=0.01).",
    ),
    tools_document(
        "103",
        "Do statins prevent dementia?",
        "METHODS: We randomly assigned patients to simvastatin or placebo. RESULTS: Dementia was as frequent (p=0.6).",
    ),
)


@pytest.fixture(scope="module")
def toolbox() -> Toolbox:
    return build_toolbox(ToolsConfig(results=2), DOCUMENTS, {})


async def ids(toolbox: Toolbox, tool: str, text: str) -> list[str]:
    parameter = toolbox.specs([tool])[0]["function"]["parameters"]["required"][0]
    result = await toolbox.call(tool, {parameter: text}, brief=BRIEF)
    assert result.ok, result.error
    return [passage.id for passage in result.passages]


# --- what models are offered


def test_every_tool_in_the_role_table_exists(toolbox):
    for names in RolesConfig().tool_names().values():
        assert [spec["function"]["name"] for spec in toolbox.specs(names)] == list(names)


def test_specs_are_openai_tools_whose_description_is_the_docstring(toolbox):
    (spec,) = toolbox.specs(["protein_lookup"])
    assert spec == {
        "type": "function",
        "function": {
            "name": "protein_lookup",
            "description": "Look up a protein by name, gene symbol or UniProt accession.",
            "parameters": {
                "type": "object",
                "properties": {"name": {"type": "string", "minLength": 1, "maxLength": MAX_QUERY}},
                "required": ["name"],
                "additionalProperties": False,
            },
        },
    }


def test_local_trials_say_that_they_are_no_registry(toolbox):
    assert "not a trial registry" in toolbox.specs(["clinical_trials"])[0]["function"]["description"]


def test_specs_keep_the_asked_order_and_refuse_unknown_names(toolbox):
    names = ["gene_ontology", "literature_search", "gene_ontology"]
    assert [spec["function"]["name"] for spec in toolbox.specs(names)] == ["gene_ontology", "literature_search"]
    assert json.dumps(toolbox.specs(names)) == json.dumps(toolbox.specs(names))
    with pytest.raises(KeyError, match="crystal_ball"):
        toolbox.specs(["crystal_ball"])


def test_a_tool_without_docstring_is_refused():
    async def silent(query: Query) -> list[Passage]:
        return []

    with pytest.raises(TypeError, match="silent has no docstring"):
        own_tool(silent, live=False)


# --- arguments


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (None, "not a JSON object"),
        ([], "not a JSON object"),
        ({}, "query: field required"),
        ({"query": 7}, "query: input should be a valid string"),
        ({"query": None}, "query: input should be a valid string"),
        ({"query": "  "}, "query: string should have at least 1 character"),
        ({"query": "x" * (MAX_QUERY + 1)}, f"query: string should have at most {MAX_QUERY} characters"),
        ({"query": "zinc", "limit": 3}, "limit: extra inputs are not permitted"),
    ],
)
async def test_unfit_arguments_say_what_is_expected(toolbox, arguments, fault):
    result = await toolbox.call("literature_search", arguments, brief=BRIEF)
    assert (result.valid, result.ok, result.passages) == (False, False, ())
    assert result.error is not None
    assert result.error.startswith('literature_search takes {"query": text of 1 to 400 characters}; ')
    assert result.error.endswith(fault)
    assert result.content() == {"error": result.error}


async def test_an_unknown_tool_is_an_error_that_names_the_tools(toolbox):
    result = await toolbox.call("web\x00" + "b" * 500, {"query": "zinc"}, brief=BRIEF)
    assert (result.valid, result.ok) == (False, False)
    assert result.error is not None
    assert "literature_search, clinical_trials, protein_lookup, gene_ontology" in result.error
    assert "\x00" not in result.error
    assert len(result.error) < 250


async def test_a_failing_back_end_is_a_valid_call_that_is_not_ok():
    async def literature_search(query: Query) -> list[Passage]:
        """Search."""
        raise ToolError(f"the library is closed\x1b[31m for {query}")

    toolbox = Toolbox([own_tool(literature_search, live=False)], results=1, max_chars=200)
    result = await toolbox.call("literature_search", {"query": "zinc"}, brief=BRIEF)
    assert (result.valid, result.ok) == (True, False)
    assert result.content() == {"error": "the library is closed [31m for zinc"}


async def test_a_bug_in_a_back_end_is_not_hidden():
    async def literature_search(query: Query) -> list[Passage]:
        """Search."""
        raise ZeroDivisionError

    toolbox = Toolbox([own_tool(literature_search, live=False)], results=1, max_chars=200)
    with pytest.raises(ZeroDivisionError):
        await toolbox.call("literature_search", {"query": "zinc"}, brief=BRIEF)


# --- results


async def test_literature_search_ranks_the_abstract_that_answers_first(toolbox):
    assert (await ids(toolbox, "literature_search", "zinc for the common cold"))[0] == "101"
    assert (await ids(toolbox, "literature_search", "obese nurses working nights"))[0] == "102"


async def test_clinical_trials_leaves_out_abstracts_of_other_studies(toolbox):
    assert await ids(toolbox, "literature_search", "nurses night shifts") == ["102"]
    assert await ids(toolbox, "clinical_trials", "nurses night shifts") == []
    assert set(await ids(toolbox, "clinical_trials", "placebo")) == {"101", "103"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Patients were randomized to A or B.", True),
        ("In this placebo-controlled study", True),
        ("Women were allocated to two arms.", True),
        ("A double-blind comparison", True),
        ("This clinical trial enrolled 20 people.", True),
        ("A retrospective cohort of random urine samples", False),
        ("A survey of trialists", False),
    ],
)
def test_what_counts_as_a_trial(text, expected):
    assert describes_trial(text) is expected


async def test_a_search_without_matches_is_ok_and_says_so(toolbox):
    result = await toolbox.call("literature_search", {"query": "quasars"}, brief=BRIEF)
    assert (result.valid, result.ok) == (True, True)
    assert result.content() == {"results": [], "note": "no match for 'quasars'"}


async def test_content_is_plain_data_without_title_or_address(toolbox):
    result = await toolbox.call("literature_search", {"query": "zinc"}, brief=BRIEF)
    assert result.content() == {"results": [{"id": "101", "text": DOCUMENTS[0].text}]}
    assert result.passages[0].title == DOCUMENTS[0].title


async def test_titles_are_not_indexed(toolbox):
    assert await ids(toolbox, "literature_search", "obesity linked") == []


async def test_results_and_max_chars_limit_what_comes_back():
    many = [tools_document(str(n), "t", f"RESULTS: {'Zinc helped them. ' * 30}") for n in range(9)]
    for results, max_chars in ((1, 100), (4, 250)):
        toolbox = build_toolbox(ToolsConfig(results=results, max_chars=max_chars), many, {})
        passages = (await toolbox.call("literature_search", {"query": "zinc"}, brief=BRIEF)).passages
        assert len(passages) == results
        assert all(max_chars - 40 < len(passage.text) <= max_chars for passage in passages)


async def test_concurrent_calls_answer_their_own_question(toolbox):
    questions = [
        ("literature_search", "zinc"),
        ("literature_search", "nurses"),
        ("clinical_trials", "simvastatin"),
    ] * 20
    answers = await asyncio.gather(*(ids(toolbox, tool, text) for tool, text in questions))
    assert [answer[0] for answer in answers] == ["101", "102", "103"] * 20


async def test_control_characters_do_not_reach_a_prompt():
    dirty = tools_document("7", "t", "RESULTS: Zinc\x00 hel\u202eped\x1b[2J.\nNext\ud800 line\ttab")
    toolbox = build_toolbox(ToolsConfig(), [dirty], {})
    result = await toolbox.call("literature_search", {"query": "zinc"}, brief=BRIEF)
    text = result.passages[0].text
    assert text == "RESULTS: Zinc  helped [2J. Next line tab"
    text.encode()


@pytest.mark.parametrize("name", ["literature", "trials"])
@pytest.mark.parametrize("secrets", [{}, {"TAVILY_API_KEY": "  "}])
def test_tavily_without_key_is_a_configuration_error(name, secrets):
    with refused(ConfigError, f"tools.{name}=tavily", "TAVILY_API_KEY", ".env"):
        build_toolbox(ToolsConfig.model_validate({name: "tavily"}), DOCUMENTS, secrets)


@pytest.mark.parametrize(("backend", "name"), [("tavily", "TAVILY_API_KEY"), ("pubmed", "NCBI_API_KEY")])
@pytest.mark.parametrize("key", ["“tvly-4711”", "tvly\n4711"])
def test_a_key_that_cannot_be_sent_is_a_configuration_error_that_does_not_show_it(backend, name, key):
    with refused(ConfigError, name, "typographic quote", "copy it again") as caught:
        build_toolbox(ToolsConfig.model_validate({"literature": backend}), DOCUMENTS, {name: key})
    assert "4711" not in str(caught.value)


@pytest.mark.parametrize(
    ("choice", "word"),
    [
        ({"literature": "pubmed"}, "PubMed"),
        ({"literature": "tavily"}, "web"),
        ({"trials": "clinicaltrials"}, "ClinicalTrials.gov"),
        ({"trials": "tavily"}, "registries"),
        ({"protein": "uniprot"}, "UniProt by"),
        ({"ontology": "quickgo"}, "QuickGO"),
    ],
)
def test_the_configuration_chooses_the_back_end(choice, word):
    toolbox = build_toolbox(ToolsConfig.model_validate(choice), DOCUMENTS, {"TAVILY_API_KEY": "k"})
    assert toolbox.names == ("literature_search", "clinical_trials", "protein_lookup", "gene_ontology")
    descriptions = [spec["function"]["description"] for spec in toolbox.specs(toolbox.names)]
    assert sum(word in description for description in descriptions) == 1


# --- the index


@given(query=st.text(max_size=200))
@settings(max_examples=150, deadline=None)
def test_any_query_text_is_safe(query):
    found = INDEX.search(query, 3)
    assert len(found) <= 3
    assert {passage.id for passage in found} <= {"101", "102", "103"}


INDEX = LiteratureIndex(DOCUMENTS)


@pytest.mark.parametrize(
    "query",
    [
        'zinc" OR "',
        "zinc NOT placebo",
        "NEAR(zinc cold)",
        "body:zinc",
        "zinc*",
        "-zinc",
        "^zinc",
        "zinc AND",
        "(zinc",
        "zinc\x00",
    ],
)
def test_operators_are_only_words(query):
    assert INDEX.search(query, 1)[0].id == "101"


@pytest.mark.parametrize("query", ["", "   ", '""', "?!;", "\ud800"])
def test_queries_without_words_find_nothing(query):
    assert INDEX.search(query, 5) == []


def test_only_stop_words_are_searched_as_they_are():
    assert [passage.id for passage in INDEX.search("was the of", 5)] != []


def test_words_match_in_other_forms_and_without_accents():
    index = LiteratureIndex([tools_document("1", "", "Überlebende patients were treated"), DOCUMENTS[1]])
    assert [passage.id for passage in index.search("uberlebende", 5)] == ["1"]
    assert [passage.id for passage in index.search("treating a patient", 5)] == ["1"]


UNSPACED = (
    tools_document("zh", "", "目的：观察锌的疗效。方法：将90例患者随机分为两组。结果：锌组复发率为12.5%，低于对照组。"),
    tools_document("ja", "", "成人の風邪患者に亜鉛を投与した。罹病期間は２日短縮した。プラセボ群では差がなかった。"),
    tools_document("th", "", "ผู้ป่วยที่ได้รับสังกะสีมีอาการน้อยลง"),
    tools_document("en", "", "METHODS: A cohort of nurses was followed with COVID感染 as outcome."),
)


@pytest.mark.parametrize(
    ("query", "id_"),
    [
        ("复发率", "zh"),
        ("锌", "zh"),
        ("锌能降低复发率吗？", "zh"),
        ("罹病期間", "ja"),
        ("プラセボ", "ja"),
        ("亜鉛は風邪に効くか", "ja"),
        ("สังกะสี", "th"),
        ("感染", "en"),
        ("covid nurses", "en"),
    ],
)
def test_words_without_spaces_between_them_are_found(query, id_):
    assert [passage.id for passage in LiteratureIndex(UNSPACED).search(query, 1)] == [id_]


def test_chinese_and_japanese_trials_are_trials():
    index = LiteratureIndex(UNSPACED)
    assert {passage.id for passage in index.search("复发率 罹病期間 covid", 4, trials_only=True)} == {"zh", "ja"}


def test_an_excerpt_of_a_chinese_abstract_keeps_the_sentence_about_the_question():
    text = UNSPACED[0].text
    assert excerpt(text, "锌的复发率", 30) == "结果：锌组复发率为12.5%，低于对照组。"
    assert [sentence.text for sentence in split_sentences(text)][1] == "方法：将90例患者随机分为两组。"


def test_equal_ranks_keep_the_order_of_the_documents():
    same = [tools_document(str(n), "", "zinc helps") for n in (5, 3, 9, 1)]
    assert [passage.id for passage in LiteratureIndex(same).search("zinc", 4)] == ["5", "3", "9", "1"]


def test_an_empty_index_finds_nothing():
    assert LiteratureIndex([]).search("zinc", 3) == []


def test_threads_share_one_index():
    answers: dict[int, list[str]] = {}

    def work(number: int) -> None:
        answers[number] = [INDEX.search("zinc", 1)[0].id for _ in range(20)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: ["101"] * 20 for number in range(6)}


def test_a_forked_process_searches_the_index_of_its_parent():
    INDEX.search("zinc", 1)
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=lambda: sender.send([passage.id for passage in INDEX.search("nurses", 3)]))
    child.start()
    assert receiver.poll(30)
    assert receiver.recv() == ["102"]
    child.join()
    assert [passage.id for passage in INDEX.search("zinc", 1)] == ["101"]


def test_a_forked_process_opens_its_own_connection():
    opened = []

    def opener() -> sqlite3.Connection:
        opened.append(os.getpid())
        return sqlite3.connect(":memory:")

    database = Database(opener)
    database.query("SELECT 1")
    database.query("SELECT 1")
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=lambda: sender.send((database.query("SELECT 2"), opened)))
    child.start()
    assert receiver.poll(30)
    assert receiver.recv() == ([(2,)], [os.getpid(), child.pid])
    child.join()
    assert opened == [os.getpid()]


def test_real_questions_find_their_own_abstract():
    if not PUBMEDQA.exists():
        pytest.skip("the PubMedQA file is not at hand (../shared/pubmedqa/ori_pqal.json)")
    records = json.loads(PUBMEDQA.read_text())
    documents = [
        tools_document(
            id_,
            record["QUESTION"],
            " ".join(f"{label}: {text}" for label, text in zip(record["LABELS"], record["CONTEXTS"], strict=True)),
        )
        for id_, record in records.items()
    ]
    index = LiteratureIndex(documents)
    found = {document.id: [passage.id for passage in index.search(document.title, 5)] for document in documents}
    first = sum(ranked[:1] == [id_] for id_, ranked in found.items()) / len(found)
    five = sum(id_ in ranked for id_, ranked in found.items()) / len(found)
    print(f"recall@1 {first:.1%}, recall@5 {five:.1%} on {len(found)} abstracts")
    assert first >= 0.93
    assert five >= 0.97
    assert all(clean(document.text) == document.text for document in documents)


# --- excerpts

ABSTRACT = (
    "BACKGROUND: Colds are common. Nobody likes them. METHODS: We asked 90 adults, e.g. Dr. Smith vs. others, to help. "
    "RESULTS: Zinc cut the duration by 2.7 days (p = .002; 95% CI 1.1 to 4.3). Taste was bad. Fever did not differ."
)


def test_a_short_text_is_returned_unchanged():
    assert excerpt(ABSTRACT, "zinc", len(ABSTRACT)) == ABSTRACT


def test_sentences_end_at_full_stops_only():
    assert [(sentence.label, sentence.text) for sentence in split_sentences(ABSTRACT)] == [
        ("BACKGROUND", "Colds are common."),
        ("BACKGROUND", "Nobody likes them."),
        ("METHODS", "We asked 90 adults, e.g. Dr. Smith vs. others, to help."),
        ("RESULTS", "Zinc cut the duration by 2.7 days (p = .002; 95% CI 1.1 to 4.3)."),
        ("RESULTS", "Taste was bad."),
        ("RESULTS", "Fever did not differ."),
    ]


def test_results_with_statistics_about_the_question_stay():
    assert excerpt(ABSTRACT, "Does zinc shorten the duration?", 100) == (
        "RESULTS: Zinc cut the duration by 2.7 days (p = .002; 95% CI 1.1 to 4.3). Taste was bad."
    )


def test_results_stay_before_other_sections_and_statistics_before_other_sentences():
    text = (
        "METHODS: We looked at them all day. RESULTS: We looked at them all day. It went up with p=0.03. It went away."
    )
    assert excerpt(text, "zinc", 48) == "RESULTS: It went up with p=0.03. It went away."
    assert excerpt(text, "zinc", 45) == "RESULTS: It went up with p=0.03."
    plain = "METHODS: They were all very well. RESULTS: They were all quite well."
    assert excerpt(plain, "zinc", 40) == "RESULTS: They were all quite well."


def test_a_gap_inside_a_section_is_marked():
    text = "RESULTS: Zinc worked with p=0.01. Nothing else was seen in this long sentence. Zinc was safe in 9 of 9."
    assert excerpt(text, "zinc", 80) == f"RESULTS: Zinc worked with p=0.01. {GAP} Zinc was safe in 9 of 9."


def test_labels_without_a_space_before_them_are_seen():
    labels = [sentence.label for sentence in split_sentences("GOAL: To learn.STUDY: We looked.RESULTS:  It was 5.")]
    assert labels == ["GOAL", "STUDY", "RESULTS"]


def test_a_sentence_longer_than_the_limit_is_cut_between_words():
    text = "RESULTS: " + "zinc helped patients " * 30
    cut = excerpt(text, "zinc", 100)
    assert len(cut) <= 100
    assert cut == ("zinc helped patients " * 30)[: len(cut)]
    assert cut.rsplit(" ", 1)[1] in ("zinc", "helped", "patients")


WORDS = st.text(alphabet="abcdefgh 0123456789.,;:()?!<>=%-é\u2009", min_size=1, max_size=60)
SECTIONS = st.lists(
    st.tuples(st.sampled_from(["METHODS", "RESULTS", "MAIN OUTCOME"]), st.lists(WORDS, min_size=1, max_size=6))
)


@given(sections=SECTIONS, query=st.text(max_size=50), max_chars=st.integers(min_value=100, max_value=400))
@settings(max_examples=200, deadline=None)
def test_excerpts_are_whole_verbatim_sentences_within_the_limit(sections, query, max_chars):
    text = " ".join(f"{label}: {'. '.join(body)}." for label, body in sections)
    short = excerpt(text, query, max_chars)
    assert len(short) <= max_chars
    whole = {sentence.text for sentence in split_sentences(text)}
    for sentence in split_sentences(short):
        for part in sentence.text.split(GAP):
            assert part.strip() in text
    if len(text) > max_chars and any(len(sentence) <= max_chars - 20 for sentence in whole):
        assert any(sentence in short for sentence in whole)


@given(st.text())
def test_clean_text_is_printable_and_stays_clean(text):
    once = clean(text)
    assert clean(once) == once
    assert all(character.isprintable() or character.isspace() for character in once)
    assert not set(once) & {"\n", "\t", "\r", "\x00", "\x1b", "\u2028", "\x85"}
    once.encode()


def test_a_result_with_an_error_shows_nothing_else():
    result = ToolResult("x", ok=False, passages=(Passage("1", "t", "text"),), error="closed")
    assert result.content() == {"error": "closed"}
