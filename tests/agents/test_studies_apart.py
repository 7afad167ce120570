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
        if failure := broken.get(studies[0]):
            raise failure
        first_round = "search" not in read_payload(messages[1])
        return {"findings": list(map(finding, studies)), "search": "drug" if first_round else ""}

    model = society_kit.Model(Geneticist=[reads if item is READ else item for item in script])
    return model


async def run(society_kit, model, **graph):
    society = society_kit.make(model, Library(), quotes="read", node_retries=0, graph={**COMBINE, **graph})
    return await society.run(society_kit.brief, 1)


async def test_the_first_visit_is_shown_the_first_study_of_each_search_and_every_other_has_a_visit(society_kit):
    model = reader(society_kit, [(SEARCH, {"query": "1"}), (SEARCH, {"query": "2"})], READ, READ, READ)
    state = await run(society_kit, model)
    first, *others = model.of("Geneticist")[1:]
    assert [shown(message) for message in first.messages if message["role"] == "tool"] == [["s1"], ["s2"]]
    assert [shown(request.messages[-1]) for request in others] == [["s3"], ["s4"]]
    assert all(not request.tools for request in others)
    assert [finding["study"] for finding in state["initial_hypotheses"][0]["findings"]] == ["s1", "s2", "s3", "s4"]
    assert [message["role"] for message in state["messages"]["Geneticist"]].count("system") == 3


@pytest.mark.parametrize(("word", "read"), [("2", ["s4"]), ("1", ["s1"])])
async def test_a_later_search_shows_what_was_not_read_if_it_finds_any(society_kit, word, read):
    model = reader(society_kit, [(SEARCH, {"query": "1"})], READ, READ, READ, [(SEARCH, {"query": word})], READ)
    state = await run(society_kit, model, searches=2)
    requests = model.of("Geneticist")
    assert len(requests) == 6
    assert shown(requests[-1].messages[-1]) == read
    studies = {finding["study"] for finding in state["initial_hypotheses"][-1]["findings"]}
    assert studies == {"s1", "s2", "s3", *read}


async def test_a_study_that_cannot_be_read_ends_the_rollout_with_the_role_s_error(society_kit):
    failures = {"s2": ModelError("the server answered 503")}
    model = reader(society_kit, [(SEARCH, {"query": "1"})], READ, READ, READ, **failures)
    with pytest.raises(RoleError) as caught:
        await run(society_kit, model)
    assert str(caught.value) == "Geneticist: the server answered 503"
