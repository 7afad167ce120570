"""A second provider's chat model in a recorded rollout, by configuration alone; what the user is told of it."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from lab_kit import config_for, open_lab, task
from provider_kit import serve

from evaluation.records.rollouts import RolloutInput
from evaluation.rollout.replay import Replay
from evaluation.traces.calls import model_calls
from evaluation.traces.spans import EXCHANGE, RAW, read

pytestmark = pytest.mark.whole

KEY = "sk-ant-a-users-own-key-4711"


def with_models(config, **slots):
    models = {
        **config.models,
        **{name: config.models[name].model_copy(update=update) for name, update in slots.items()},
    }
    return config.model_copy(update={"models": models})


@pytest.fixture(scope="module")
def recorded(scripted_openai, tmp_path_factory):
    """One rollout: juniors at Anthropic, the refiner at Ollama, all others at an OpenAI-compatible server.

    The server of the designer takes no seed.
    """
    scripted = scripted_openai
    scripted.hooks.clear()

    def refuse(request):
        if scripted.role(request) == "ProtocolDesigner" and "seed" in request:
            return 400, "Unrecognized request argument supplied: seed"
        return None

    def play(request):
        if request.get("tools") and request["messages"][-1]["role"] == "user":
            return [("literature_search", {"query": scripted.goal(request)})]
        return json.dumps(scripted.standard(request))

    scripted.hooks[:] = [refuse]
    folder = tmp_path_factory.mktemp("runs")

    async def scenario():
        with serve(play) as server:
            place = {"base_url": server.url, "api_key_env": None}
            config = with_models(
                config_for(scripted.url, folder, concurrency=1),
                junior={**place, "provider": "anthropic", "model": "claude-scripted"},
                refiner={**place, "provider": "ollama", "model": "qwen-scripted"},
            )
            async with open_lab(scripted.url, folder, [task("zinc")], config=config) as lab:
                inputs = [RolloutInput.of(task("zinc"), "gather", repeat, repeat) for repeat in (0, 1)]
                records = [episode.record async for episode in lab.rollouts(inputs)]
                traces = [read(lab.run.path / record.trace) for record in records]
            view = (folder / "run" / "view.txt").read_text()
        return SimpleNamespace(
            config=config, folder=folder / "run", records=records, traces=traces, server=server, view=view
        )

    found = asyncio.run(scenario())
    yield found
    scripted.hooks.clear()


def test_the_models_of_other_providers_play_their_roles_and_each_call_is_recorded(recorded):
    for record, trace in zip(recorded.records, recorded.traces, strict=True):
        assert (record.status, record.error) == ("succeeded", None)
        calls = {call.role: call for call in model_calls(trace)}
        assert calls["Geneticist"].model == "claude-scripted"
        assert calls["HypothesisRefiner"].model == "qwen-scripted"
        assert calls["Supervisor"].model == "scripted-supervisor"
        assert record.tool_calls["Geneticist"] == record.tool_calls["HypothesisRefiner"] == 1
        assert record.counts["model_calls"] == len([call for call in model_calls(trace) if call.role != "Evaluation"])
        assert record.tokens["junior"] == {"prompt": 66, "completion": 42}
    paths = [path for path, _, _ in recorded.server.requests]
    assert paths.count("/v1/messages") == 12
    assert paths.count("/api/chat") == 4


async def test_a_rollout_with_other_providers_is_replayed_from_its_trace(recorded):
    (record, trace) = recorded.records[0], recorded.traces[0]
    again = await Replay(recorded.config, recorded.folder).run(record, model_calls(trace), [], task("zinc"))
    assert again.outputs["initial_hypotheses"] == record.outputs["initial_hypotheses"]


def test_a_refused_field_is_told_once_and_the_record_holds_what_was_sent(recorded):
    said = "models.senior (scripted-senior at "
    assert recorded.view.replace("\n", " ").count(said) == 1
    for trace in recorded.traces:
        exchanges = {span.attributes[f"{RAW}model"]: span.attributes for span in trace if span.name == EXCHANGE}
        assert f"{RAW}seed" not in exchanges["scripted-senior"]
        assert f"{RAW}seed" in exchanges["scripted-board"]
