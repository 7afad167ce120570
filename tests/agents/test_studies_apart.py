"""Where findings are combined, each study that a junior finds is read in a visit of its own."""

import asyncio

import pytest

from agents.findings import MOST_FINDINGS, MOST_WEIGHED, Combination, tally, weighed
from agents.tools.result import ToolResult
from agents.tools.text.excerpts import PARAGRAPH
from agents.tools.text.passages import MAX_ID, Passage
from agents.visit.prompting import read_payload
from chimera.core.errors import ModelError, RoleError

SEARCH, READ = "literature_search", object()
COMBINE = {"choose": "combine", "juniors": ["Geneticist"], "searches": 1, "refine": False}
PART = {"says": "falls", "asked": "falls", "same": True}


class Library:
    """Finds three studies by each word, of which neighbours share some; by 0 one in two pieces."""

    def specs(self, names):
        return [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in names]

    async def call(self, name, arguments, *, brief):
        first = int(arguments["query"])
        await asyncio.sleep(0.01 if first == 1 else 0)  # the first search ends last
        passages = [Passage(f"s{n}", "", f"Study s{n} says that falls were fewer.") for n in range(first, first + 3)]
        if not first:
            passages = [Passage("s" * MAX_ID, "", f"In group {group} falls were fewer.") for group in "ab"]
        return ToolResult(name, ok=True, passages=tuple(passages))


def finding(study):
    about = {"study": study, "quote": f"Study {study} says that falls were fewer.", "retracted": False}
    direction, parts = (
        {**PART, "says": "lower", "asked": "lower"},
        dict.fromkeys(("group", "condition", "outcome"), PART),
    )
    rest = {"design": "trial", "size": 100, "significance": "significant", "answer": "yes"}
    return {**about, **parts, **rest, "direction": direction}


def shown(message):
    payload = read_payload(message)
    return [passage["id"] for passage in (*payload.get("results", ()), *payload.get("sources", ()))]


def reader(society_kit, *script, **broken):
    """A model whose Geneticist makes the searches of `script`, and has a finding of all it is shown at each READ."""

    async def reads():
        messages = model.requests[-1].messages
        studies = list(dict.fromkeys(study for message in messages for study in shown(message)))[:MOST_FINDINGS]
        if failure := broken.pop((studies or [None])[0], None):
            raise failure
        first_round = "search" not in read_payload(messages[1])
        return {"findings": list(map(finding, studies)), "search": "drug" if first_round else ""}

    model = society_kit.Model(Geneticist=[reads if item is READ else item for item in script])
    return model


async def run(society_kit, model, node_retries=0, quotes="read", **graph):
    settings = {"quotes": quotes, "node_retries": node_retries, "graph": {**COMBINE, **graph}, "max_tool_calls": 13}
    return await society_kit.make(model, Library(), **settings).run(society_kit.brief, 1)


async def test_the_first_visit_is_shown_the_first_study_of_each_search_and_every_other_has_a_visit(society_kit):
    model = reader(society_kit, [(SEARCH, {"query": "1"}), (SEARCH, {"query": "2"})], READ, READ, READ)
    state = await run(society_kit, model)
    first, *others = model.of("Geneticist")[1:]
    assert [shown(message) for message in first.messages if message["role"] == "tool"] == [["s1"], ["s2"]]
    assert [shown(request.messages[-1]) for request in others] == [["s3"], ["s4"]]
    assert all(not request.tools for request in others)
    assert [finding["study"] for finding in state["initial_hypotheses"][0]["findings"]] == ["s1", "s2", "s3", "s4"]
    assert [message["role"] for message in state["messages"]["Geneticist"]].count("system") == 3


async def test_what_does_not_fit_into_one_answer_is_read_apart_and_the_refiner_weighs_what_fits(society_kit):
    searches = [(SEARCH, {"query": str(number)}) for number in range(1, 39, 3)]
    model = reader(society_kit, searches, *[READ] * 34)
    model.scripts["HypothesisRefiner"] = [{"comparison": "-", "studies": [36], "claim": "-", "answer": "yes"}]
    state = await run(society_kit, model, refine=True)
    (junior,) = state["initial_hypotheses"]
    assert {finding["study"] for finding in junior["findings"]} == {f"s{number}" for number in range(1, 40)}
    assert len(read_payload(model.of("HypothesisRefiner")[0].messages[1])["findings"]) == MOST_WEIGHED == 36
    assert "39 studies" in state["supervisor_justification"]
    assert f"first {MOST_WEIGHED}" in state["supervisor_justification"]


def test_what_is_handed_to_the_refiner_fits_into_its_answer():
    long = [{**finding(f"s{n}"), "design": "cohort", "size": 400, "answer": ("yes", "no")[n % 2]} for n in range(50)]
    text = tally(weighed([{"findings": long}]))
    assert Combination(comparison=text, studies=list(range(1, MOST_WEIGHED + 1)), claim="-", answer="maybe")


async def test_a_study_in_pieces_is_read_whole(society_kit):
    model = reader(society_kit, [(SEARCH, {"query": "0"})], READ)
    state = await run(society_kit, model, quotes="free")
    (passage,) = read_payload(model.of("Geneticist")[1].messages[-1])["results"]
    assert passage["text"].split(PARAGRAPH) == ["In group a falls were fewer.", "In group b falls were fewer."]
    assert [finding["study"] for finding in state["initial_hypotheses"][0]["findings"]] == [passage["id"]]


@pytest.mark.parametrize(("word", "read", "quotes"), [("2", ["s4"], "read"), ("1", [], "read"), ("1", [], "free")])
async def test_a_later_search_shows_only_what_was_not_read(society_kit, word, read, quotes):
    model = reader(society_kit, [(SEARCH, {"query": "1"})], READ, READ, READ, [(SEARCH, {"query": word})], READ)
    state = await run(society_kit, model, quotes=quotes, searches=2)
    requests = model.of("Geneticist")
    assert len(requests) == 6
    assert shown(answer := requests[-1].messages[-1]) == read
    assert ("read already" in answer["content"]) == (not read)
    studies = {finding["study"] for finding in state["initial_hypotheses"][-1]["findings"]}
    assert studies == {"s1", "s2", "s3", *read}


@pytest.mark.parametrize("retries", [0, 1])
async def test_a_study_whose_call_fails_is_the_role_s_error_and_is_tried_again_as_others_are(society_kit, retries):
    script = [[(SEARCH, {"query": "1"})], READ, READ, READ]
    model = reader(society_kit, *script, *script, s2=ModelError("answered 503", retriable=True))
    if retries:
        state = await run(society_kit, model, node_retries=retries)
        assert len(state["initial_hypotheses"][0]["findings"]) == 3
    else:
        with pytest.raises(RoleError) as caught:
            await run(society_kit, model)
        assert (str(caught.value), caught.value.role) == ("Geneticist: answered 503", "Geneticist")


async def test_what_one_junior_has_read_of_the_others_search_for_too(society_kit):
    model = reader(society_kit, [(SEARCH, {"query": "1"})], READ, READ, READ, [(SEARCH, {"query": "2"})], READ)
    model.scripts["Pharmacologist"] = [{"findings": [], "search": ""}] * 2
    state = await run(society_kit, model, searches=2, juniors=["Geneticist", "Pharmacologist"])
    assert state["searches"] == [{"Geneticist": "drug", "Pharmacologist": "drug"}, {}]
    assert read_payload(model.of("Pharmacologist")[1].messages[1])["search"] == "drug"
