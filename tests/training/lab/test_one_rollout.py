"""One rollout, two transports: a runner through gateway and store, and the main process straight to the servers.

The same task and seed must come to the same record and the same trace, apart from ids, times and the runner's name.
"""

import asyncio
import json
from contextlib import aclosing
from dataclasses import asdict
from types import SimpleNamespace

import pytest
from lab_kit import SECRET, config_for, open_lab, task

from agents.policies.choice import SelectionSpec, make_selector
from agents.tools.toolbox import build_toolbox
from chimera.config.roles import JUNIORS
from chimera.config.sections.models import SLOTS
from chimera.config.tree import load_config
from chimera.data.tasks import Dataset, load
from chimera.run.directory import Run
from chimera.serving.client import HttpModel
from chimera.serving.process import serve
from evaluation.conduct.direct import DirectRollouts
from evaluation.records.rollouts import RolloutInput
from evaluation.records.study import Stage
from evaluation.traces.calls import model_calls
from evaluation.traces.spans import EXCHANGE, OBJECT_JSON, OPERATION, RAW, read
from evaluation.traces.tree import tree
from training.learning.adapter import HierarchicalTraceAdapter
from training.learning.episodes import Episode

SENIORS = ("HypothesisRefiner", "ProtocolDesigner")
NAMES = ("good", "repaired", "unreadable", "unscored")


async def directly(config, run, servers, dataset, inputs, stage):
    """The rollouts of `inputs` in this process, by task."""
    model = HttpModel(servers.endpoints)
    toolbox = build_toolbox(config.tools, dataset.documents(), {})
    selector = make_selector(SelectionSpec(None, None, 0.0))
    try:
        async with aclosing(DirectRollouts(run, config, model, toolbox).rollouts(inputs, stage, selector)) as records:
            return {record.task_id: record async for record in records}
    finally:
        await model.aclose()


@pytest.fixture(scope="module")
def both(scripted_openai, tmp_path_factory):
    """The same four rollouts by a runner and directly: good, with a repair, failed, and without a judge's scores."""
    server = scripted_openai

    def script(request):
        name, role = server.goal(request).split()[1], server.role(request)
        if name == "repaired" and role == "HypothesisRefiner" and request["messages"][-1]["role"] == "tool":
            return 'no JSON yet, it\'s "{late}" ü'
        if name == "unreadable" and role == "Supervisor":
            return "no JSON at all"
        if name == "unscored" and role == "Judge":
            return "no scores"
        return None

    server.hooks[:] = [script]
    folder = tmp_path_factory.mktemp("runs")
    tasks = [task(name) for name in NAMES]
    inputs = [RolloutInput.of(one, "gather", 0, 3) for one in tasks]

    async def scenario():
        async with open_lab(server.url, folder, tasks, name="runner", runners=1) as lab:
            by_runner = {episode.record.task_id: episode async for episode in lab.rollouts(inputs)}
            stage = Stage("base", "base", "sequence", (), lab.policy_versions)
        config = config_for(server.url, folder)
        dataset = Dataset(tuple(tasks), (), (), "generated", "test")
        with (
            Run.create("direct", config) as run,
            serve(config.models, config.serving, {"TEST_KEY": SECRET}, log_file=run.path / "models.log") as servers,
        ):
            direct = await directly(config, run, servers, dataset, inputs, stage)
        return SimpleNamespace(
            episodes=by_runner,
            runner={name: episode.record for name, episode in by_runner.items()},
            direct=direct,
            runner_run=lab.run,
            direct_run=run,
            adapter=HierarchicalTraceAdapter(config.reward),
        )

    found = asyncio.run(scenario())
    server.hooks[:] = []
    found.server = server
    return found


def answer_names(spans):
    """A name for each response id that is the same in both traces: who asked, in which visit, and at which step."""
    return {
        response: f"{span.attributes['role']}/{span.attributes['visit']}/{step}"
        for span in spans
        if span.name == OPERATION
        for step, response in enumerate(span.attributes.get("agentlightning.operation.output.response_ids", ()))
    }


def plainly(value, names):
    """Plain data without times, with each response id replaced by its name, and calls in a fixed order."""
    if isinstance(value, dict):
        found = {key: plainly(item, names) for key, item in value.items() if key != "seconds"}
        if "calls" in found and isinstance(found["calls"], list):
            found["calls"] = sorted(found["calls"], key=json.dumps)
        return found
    if isinstance(value, list):
        return [plainly(item, names) for item in value]
    return names.get(value, value) if isinstance(value, str) else value


def in_order(spans, server):
    """The trace without ids and times, in an order that does not depend on which of parallel visits was first."""
    names = answer_names(spans)
    found = []
    for span in spans:
        attributes = dict(span.attributes)
        if span.name == EXCHANGE:
            prompt_ids, response_ids = server.tokens_of(attributes[f"{RAW}id"])
            assert json.loads(attributes.pop(f"{RAW}prompt_token_ids")) == prompt_ids
            assert str(response_ids) in attributes[f"{RAW}choices"]
            attributes[f"{RAW}choices"] = attributes[f"{RAW}choices"].replace(str(response_ids), "ids")
        if OBJECT_JSON in attributes:
            attributes[OBJECT_JSON] = json.loads(attributes[OBJECT_JSON])
        attributes.pop("exception.stacktrace", None)
        found.append((span.name, span.status["status_code"], plainly(attributes, names)))
    return sorted(found, key=json.dumps)


@pytest.mark.parametrize("name", NAMES)
def test_both_transports_write_the_same_record(both, name):
    apart = {"rollout_id", "trace", "worker", "seconds"}
    runner, direct = (plainly(json.loads(json.dumps(asdict(one[name]))), {}) for one in (both.runner, both.direct))
    assert {key: value for key, value in direct.items() if key not in apart} == {
        key: value for key, value in runner.items() if key not in apart
    }
    assert (runner["worker"], direct["worker"]) == ("Worker-0", None)
    assert runner["status"] == ("failed" if name == "unreadable" else "succeeded")
    assert [both.runner[name].seconds, both.direct[name].seconds] != [None, None]


@pytest.mark.parametrize("name", NAMES)
def test_both_transports_write_the_same_trace(both, name):
    runner, direct = (
        read(run.path / records[name].trace)
        for run, records in ((both.runner_run, both.runner), (both.direct_run, both.direct))
    )
    assert in_order(direct, both.server) == in_order(runner, both.server)
    assert [span.name for span in direct if span.name != EXCHANGE][-2:] == [
        "agentlightning.exception" if name == "unreadable" else "agentlightning.annotation",
        "agentlightning.object",
    ]


@pytest.mark.parametrize("name", ["good", "repaired", "unscored"])
def test_an_episode_of_either_holds_the_same(both, name):
    """The runner's is in memory; the other reads its trace from disk."""
    runner, direct = both.episodes[name], Episode(both.direct[name], None, both.direct_run.path, both.adapter)
    steps = [
        [(call.role, call.visit, call.attempt, call.step, call.immediate, call.outcome, call.handed) for call in found]
        for found in (direct.calls(SENIORS), runner.calls(SENIORS))
    ]
    assert steps[0] == steps[1]
    assert all(call.prompt_ids and call.response_ids for call in direct.calls(SENIORS))
    conversations = [sorted(one.conversations(JUNIORS), key=lambda one: one.role) for one in (direct, runner)]
    assert conversations[0] == conversations[1]
    assert direct.choice() == runner.choice()
    assert (direct.choice() is None) == (name == "unscored")


async def test_models_of_the_run_are_asked_for_token_ids_directly_too(scripted_openai, tmp_path):
    """The juniors are the bundled model in the run's own server."""
    scripted_openai.hooks[:] = []
    settings = {"kind": "endpoint", "base_url": scripted_openai.url, "api_key_env": "TEST_KEY"}
    models = [
        f"models.{key}.{name}={value}"
        for key in SLOTS
        if key != "junior"
        for name, value in {**settings, "model": f"scripted-{key}"}.items()
    ]
    config = load_config(None, [*models, "data.size=60", f"runs_dir={tmp_path}"])
    dataset = load(config.data)
    with (
        Run.create("run", config) as run,
        serve(config.models, config.serving, {"TEST_KEY": SECRET}, log_file=run.path / "models.log") as servers,
    ):
        stage = Stage("base", "base", "sequence", (), servers.versions())
        inputs = [RolloutInput.of(dataset.validation[0], "evaluation-base", 0, 0)]
        (record,) = (await directly(config, run, servers, dataset, inputs, stage)).values()
        calls = model_calls(read(run.path / record.trace), roles=JUNIORS)
        assert len(calls) >= 3
        for call in calls:
            assert len(call.prompt_ids) > 10
            assert call.response_ids
            assert [call.weights_version] == record.weights_versions["junior"]
            assert call.choice["finish_reason"] in ("stop", "tool_calls", "length")


@pytest.mark.parametrize("name", ["", "same"])
async def test_every_call_is_in_the_trace_of_a_server_whose_ids_are_empty_or_repeat(scripted_openai, tmp_path, name):
    scripted_openai.response_id = name
    asked = task("good")
    try:
        async with open_lab(scripted_openai.url, tmp_path, [asked], name="runner", runners=1) as lab:
            (episode,) = [one async for one in lab.rollouts([RolloutInput.of(asked, "gather", 0, 3)])]
    finally:
        scripted_openai.response_id = None
    spans = read(lab.run.path / episode.record.trace)
    made = tree(episode.record, spans)
    calls = [call for visit in made.visits for call in visit.calls]
    assert episode.record.untraced_calls == 0
    assert len(calls) == len(model_calls(spans)) == sum(span.name == EXCHANGE for span in spans)
    assert not [call for call in calls if call.exchange is None or (call.record and call.record.repair)]
