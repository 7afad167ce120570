"""Where findings are combined, each study that a junior finds is read in a visit of its own."""

import asyncio

import pytest

from agents.tools.result import ToolResult
from agents.tools.text.passages import Passage
from agents.visit.prompting import read_payload
from chimera.core.errors import ModelError, RoleError

SEARCH, READ = "literature_search", object()
COMBINE = {"choose": "combine", "juniors": ["Geneticist"], "searches": 1, "refine": False}
PART = {"says": "falls", "asked": "falls", "same": True}


class Library:
    """Finds three studies by each word, of which neighbours share some."""

    def specs(self, names):
        return [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in names]

    async def call(self, name, arguments, *, brief):
        first = int(arguments["query"])
        await asyncio.sleep(0.01 if first == 1 else 0)  # the first search ends last
        passages = [Passage(f"s{n}", "", f"Study s{n} says that falls were fewer.") for n in range(first, first + 3)]
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
        studies = list(dict.fromkeys(study for message in messages for study in shown(message)))
        if failure := broken.pop((studies or [None])[0], None):
            raise failure
        first_round = "search" not in read_payload(messages[1])
        return {"findings": list(map(finding, studies)), "search": "drug" if first_round else ""}

    model = society_kit.Model(Geneticist=[reads if item is READ else item for item in script])
    return model


async def run(society_kit, model, node_retries=0, **graph):
    settings = {"quotes": "read", "node_retries": node_retries, "graph": {**COMBINE, **graph}}
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


@pytest.mark.parametrize(("word", "read"), [("2", ["s4"]), ("1", [])])
async def test_a_later_search_shows_only_what_was_not_read(society_kit, word, read):
    model = reader(society_kit, [(SEARCH, {"query": "1"})], READ, READ, READ, [(SEARCH, {"query": word})], READ)
    state = await run(society_kit, model, searches=2)
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
