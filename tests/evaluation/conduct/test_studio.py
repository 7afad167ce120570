"""The society that LangGraph Studio opens."""

import json
from pathlib import Path

import pytest
from message_kit import refused

from chimera.core.errors import ConfigError
from evaluation.conduct.studio import studio_graph
from training.configuration import load_config

pytestmark = pytest.mark.whole

ROOT = Path(__file__).parents[3]


async def test_it_answers_tasks_by_id_and_by_question_and_no_others(tmp_path):
    graph = studio_graph(load_config(overrides=["data.size=40", "data.levels=[1]"]))
    state = await graph.ainvoke({"research_goal": "generated-0-5"})
    assert state["final_decision"] in ("GO", "NO-GO", "UNDECIDED")
    again = await graph.ainvoke({"research_goal": state["research_goal"]}, interrupt_after=["Geneticist"])
    assert again["initial_hypotheses"]
    with refused(ConfigError, "chimera ask"):
        await graph.ainvoke({"research_goal": "Does aspirin prevent stroke?"})


def test_its_configuration_names_what_exists():
    named = json.loads((ROOT / "langgraph.json").read_text())["graphs"]["society"]
    path, _, name = named.partition(":")
    assert f"async def {name}()" in (ROOT / path).read_text()
