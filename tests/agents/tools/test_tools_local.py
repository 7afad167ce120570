"""The toolbox and its local back ends: arguments and results."""

import asyncio

import pytest
from message_kit import refused

from agents.tools.literature import describes_trial
from agents.tools.own import own_tool
from agents.tools.result import ToolResult
from agents.tools.text.passages import MAX_QUERY, Passage, Query, ToolError
from agents.tools.toolbox import Toolbox, build_toolbox
from chimera.config.roles import RolesConfig
from chimera.config.sections.tools import ToolsConfig
from chimera.core.errors import ConfigError
from chimera.core.types import Brief

BRIEF = Brief("1", "Does zinc shorten colds?", ())


DOCUMENTS = (
    Passage(
        "101",
        "Does zinc shorten colds?",
        "METHODS: Adults with a cold were randomised to zinc lozenges or placebo. "
        "RESULTS: Colds lasted 4.1 days with zinc and 6.8 days with placebo (p=0.002).",
    ),
    Passage(
        "102",
        "Is shift work linked to obesity?",
        "METHODS: A cohort of nurses was followed. RESULTS: Night shifts went with higher body mass index (p=0.01).",
    ),
    Passage(
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


def test_specs_keep_the_asked_order_are_new_each_time_and_refuse_unknown_names(toolbox):
    for _ in range(2):
        first, second = toolbox.specs(["gene_ontology", "literature_search", "gene_ontology"])
        assert (first["function"]["name"], second["function"]["name"]) == ("gene_ontology", "literature_search")
        first["function"]["name"] = "changed"
    with pytest.raises(KeyError, match="crystal_ball"):
        toolbox.specs(["crystal_ball"])


def test_a_tool_without_docstring_is_refused():
    async def silent(query: Query) -> list[Passage]:
        return []

    with pytest.raises(TypeError, match="silent has no docstring"):
        own_tool(silent, live=False)


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


async def test_a_failing_back_end_is_a_valid_call_that_is_not_ok_and_a_bug_in_one_is_not_hidden():
    async def literature_search(query: Query) -> list[Passage]:
        """Search."""
        raise ToolError(f"the library is closed\x1b[31m for {query}") if query == "zinc" else ZeroDivisionError

    toolbox = Toolbox([own_tool(literature_search, live=False)], results=1, max_chars=200)
    result = await toolbox.call("literature_search", {"query": "zinc"}, brief=BRIEF)
    assert (result.valid, result.ok) == (True, False)
    assert result.content() == {"error": "the library is closed [31m for zinc"}
    with pytest.raises(ZeroDivisionError):
        await toolbox.call("literature_search", {"query": "iron"}, brief=BRIEF)


async def test_literature_search_ranks_the_abstract_that_answers_first(toolbox):
    assert (await ids(toolbox, "literature_search", "zinc for the common cold"))[0] == "101"
    assert (await ids(toolbox, "literature_search", "obese nurses working nights"))[0] == "102"


async def test_clinical_trials_leaves_out_abstracts_of_other_studies(toolbox):
    assert await ids(toolbox, "literature_search", "nurses night shifts") == ["102"]
    assert await ids(toolbox, "clinical_trials", "nurses night shifts") == []
    assert set(await ids(toolbox, "clinical_trials", "placebo")) == {"101", "103"}


async def test_separate_trials_are_left_out_of_literature_search():
    separate = build_toolbox(ToolsConfig(results=3, trials="separate"), DOCUMENTS, {})
    assert await ids(separate, "literature_search", "placebo nurses p") == ["102"]
    assert set(await ids(separate, "clinical_trials", "placebo nurses p")) == {"101", "103"}
    assert not any(separate.tool(name).live for name in separate.names)
    assert ToolsConfig(trials="separate").local


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


async def test_content_is_plain_data_without_title_or_address_and_titles_are_not_indexed(toolbox):
    result = await toolbox.call("literature_search", {"query": "zinc"}, brief=BRIEF)
    assert result.content() == {"results": [{"id": "101", "text": DOCUMENTS[0].text}]}
    assert result.passages[0].title == DOCUMENTS[0].title
    assert await ids(toolbox, "literature_search", "obesity linked") == []


async def test_results_and_max_chars_limit_what_comes_back():
    many = [Passage(str(n), "t", f"RESULTS: {'Zinc helped them. ' * 30}") for n in range(9)]
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
    dirty = Passage("7", "t", "RESULTS: Zinc\x00 hel\u202eped\x1b[2J.\nNext\ud800 line\ttab")
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


def test_a_result_with_an_error_shows_nothing_else():
    result = ToolResult("x", ok=False, passages=(Passage("1", "t", "text"),), error="closed")
    assert result.content() == {"error": "closed"}
