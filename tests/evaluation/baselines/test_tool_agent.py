"""One agent with all tools as a baseline of the society."""

import pytest

from agents.tools.toolbox import build_toolbox
from chimera.config.roles import LITERATURE, OWN_TOOLS, TRIALS, RolesConfig
from chimera.config.sections.tools import ToolsConfig
from chimera.core.errors import ModelError, UnreachableError
from chimera.data.generated.review import NAMES, generate
from chimera.data.tasks import Dataset
from evaluation.baselines.tool_agent import all_tools, tool_agent
from recipes.nano.review import SOLO, findings_of, found_by, query
from training.configuration import load_config

ITEM, *OTHERS = generate(12, seed=21, levels=(1,))
CONFIG = load_config(None, ["evaluation.agent_tool_calls=4", "society.graph.choose=combine"])
TOOLS = ToolsConfig(results=1, trials="separate")


@pytest.fixture
def toolbox():
    tasks = tuple(item.task for item in (ITEM, *OTHERS))
    return build_toolbox(TOOLS, Dataset(tasks, (), (), "generated", "test").documents(), {})


async def ask(society_kit, toolbox, *script):
    model = society_kit.Model(**{SOLO: list(script)})
    found = await tool_agent(model, toolbox, CONFIG, ITEM.task, name="agent@base", repeat=0, seed=5, sample=2)
    return found, model.of(SOLO)


async def test_it_finds_every_study_with_tools_that_no_junior_has_together_and_answers(society_kit, toolbox):
    ways = [(tool, name) for name in NAMES for tool in (LITERATURE, TRIALS)]
    searches = [[(way[0], {"query": query(ITEM.facts, way)})] for way in ways]
    studies = [study for way in ways for study in found_by(ITEM, way)]
    found, requests = await ask(society_kit, toolbox, *searches, findings_of(ITEM.facts, studies).model_dump())
    assert (found.answer, found.error, found.calls, found.sample) == (ITEM.task.label, None, len(searches) + 1, 2)
    assert found.prompt_tokens > 0
    assert found.completion_tokens > 0
    offered = [tool["function"]["name"] for tool in requests[0].tools]
    assert offered == list(all_tools(RolesConfig())) == list(OWN_TOOLS)
    assert [tools for tools in RolesConfig().tool_names().values() if set(tools) == set(OWN_TOOLS)] == []
    read_by_it = " ".join(str(message["content"]) for message in requests[-1].messages)
    assert all(study.finding.sentence in read_by_it for study in ITEM.facts.studies)
    assert requests[-1].tools == []


async def test_its_failures_are_answers_that_are_missing_but_a_lost_server_ends_the_evaluation(society_kit, toolbox):
    found, _ = await ask(society_kit, toolbox, "no JSON", "still none")
    assert found.answer is None
    assert "could not be read" in (found.error or "")
    found, _ = await ask(society_kit, toolbox, [(TRIALS, {"query": "x"})], ModelError("overloaded"))
    assert (found.answer, found.error, found.calls) == (None, "overloaded", 2)
    with pytest.raises(UnreachableError):
        await ask(society_kit, toolbox, UnreachableError("gone"))
