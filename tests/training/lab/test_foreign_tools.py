"""Tools of others in recorded rollouts, by configuration alone: a LangChain tool, and one of an MCP server."""

import asyncio
import json

import pytest
from lab_kit import config_for, open_lab, task
from mcp_kit import write_program

from agents.tools.text.passages import content_id
from chimera.config.sections.tools import McpServer, ToolsConfig
from evaluation.records.rollouts import RolloutInput
from evaluation.rollout.replay import Replay
from evaluation.traces.calls import model_calls
from evaluation.traces.spans import read

pytestmark = pytest.mark.whole

EXAMPLE = "examples.my_tool:risk_difference"
GIVEN = {"treated": 18, "control": 27, "participants": 400}
DOSE = {"drug": "zinc", "milligrams": 12.5, "days": 4}
FOUND = "The rates differ by -9.0 percentage points (95 % interval -17.1 to -0.9)."


def with_tools(config, **tools):
    roles = {role: getattr(config.roles, role).model_copy(update={"tools": names}) for role, names in tools.items()}
    return config.model_copy(update={"roles": config.roles.model_copy(update=roles)})


@pytest.fixture(scope="module")
def recorded(scripted_openai, tmp_path_factory):
    """A rollout whose Geneticist calls the tool, first with an argument missing, and quotes what it returned.

    Its Pharmacologist calls that of an MCP server.
    """
    server = scripted_openai

    def script(request):
        if server.role(request) == "Pharmacologist" and request["messages"][-1]["role"] == "user":
            return [("dose", DOSE)]
        if server.role(request) != "Geneticist":
            return None
        answers = [message for message in request["messages"] if message["role"] == "tool"]
        if len(answers) < 2:
            arguments = GIVEN if answers else {"treated": 18}
            return [("risk_difference", arguments)]
        return {**server.standard(request), "evidence": [FOUND]}

    server.hooks[:] = [script]
    folder = tmp_path_factory.mktemp("runs")
    config = with_tools(
        config_for(server.url, folder, concurrency=1),
        Geneticist=("literature_search", EXAMPLE),
        Pharmacologist=("mcp:lab/dose",),
    )
    lab_server = McpServer(command=write_program(tmp_path_factory.mktemp("mcp")))
    config = config.model_copy(update={"tools": ToolsConfig(mcp={"lab": lab_server}, timeout_s=600)})

    async def scenario():
        async with open_lab(server.url, folder, [task("zinc")], config=config) as lab:
            inputs = [RolloutInput.of(task("zinc"), "gather", 0, 0)]
            (record,) = [episode.record async for episode in lab.rollouts(inputs)]
            return record, read(lab.run.path / record.trace)

    record, trace = asyncio.run(scenario())
    return config, record, trace, folder / "run"


def test_a_role_uses_a_langchain_tool_with_three_arguments_in_a_recorded_rollout(recorded):
    _, record, trace, _ = recorded
    assert (record.status, record.error) == ("succeeded", None)
    assert record.tool_calls["Geneticist"] == 2
    calls = [call for call in model_calls(trace) if call.role == "Geneticist"]
    assert [tool["function"]["name"] for tool in calls[0].tools or ()] == ["literature_search", "risk_difference"]
    bad, good = [json.loads(message["content"]) for message in calls[-1].messages if message["role"] == "tool"]
    assert bad["error"].startswith('risk_difference takes {"treated": number, "control": number, "participants": whole')
    assert bad["error"].endswith("; control: field required; participants: field required")
    assert good["results"] == [{"id": content_id("risk_difference", FOUND), "text": FOUND}]


def test_a_role_uses_an_mcp_servers_tool_in_a_recorded_rollout(recorded):
    _, record, trace, _ = recorded
    assert record.tool_calls["Pharmacologist"] == 1
    calls = [call for call in model_calls(trace) if call.role == "Pharmacologist"]
    assert [tool["function"]["name"] for tool in calls[0].tools or ()] == ["dose"]
    (answer,) = [json.loads(message["content"]) for message in calls[-1].messages if message["role"] == "tool"]
    text = "Patients took 50 mg of zinc altogether, over 4 days."
    assert answer["results"] == [{"id": content_id("dose", text), "text": text}]
    (hypothesis,) = [one for one in record.outputs["initial_hypotheses"] if one["author"] == "Pharmacologist"]
    assert hypothesis["evidence"] == ["Patients took 50 mg of zinc altogether, over"]


def test_what_a_foreign_tool_returned_was_read_and_can_be_quoted(recorded):
    _, record, _, _ = recorded
    (hypothesis,) = [one for one in record.outputs["initial_hypotheses"] if one["author"] == "Geneticist"]
    assert hypothesis["evidence"] == [FOUND]
    assert {"id": content_id("risk_difference", FOUND), "text": FOUND} in record.outputs["selection"]["sources"]


async def test_its_record_is_replayed_without_the_tool(recorded):
    config, record, trace, folder = recorded
    replay = Replay(with_tools(config, Geneticist=("literature_search", "gone:risk_difference")), folder)
    again = await replay.run(record, model_calls(trace), [], task("zinc"))
    assert again.outputs["final_decision"] == record.outputs["final_decision"]
