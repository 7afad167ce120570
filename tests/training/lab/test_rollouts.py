"""Rollouts of the real society in the main process, through Agent Lightning, against a scripted OpenAI server."""

import asyncio
import gzip
import json
import os
import signal
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import respx
from lab_kit import CONCLUSION, PATIENCE, SECRET, AllAtOnce, collect, config_for, open_lab, task
from message_kit import refused
from rich.console import Console

from chimera.config.roles import JUNIORS
from chimera.config.sections.tools import ToolsConfig
from chimera.config.tree import Config
from chimera.core.errors import ConfigError, RunError, UnreachableError
from chimera.core.rate_limits import TimeLimit
from chimera.data.tasks import Dataset
from evaluation.records.rollouts import RolloutRecord
from evaluation.traces.calls import model_calls
from evaluation.traces.spans import EXCHANGE, RAW, read
from evaluation.traces.tree import tree
from training.learning.states import draw_inputs
from training.phases import choose_names
from training.watch.metrics import Metrics
from training.watch.summary import summarize
from training.watch.wandb.hook import rewards

ROLE_MODELS = {
    "Geneticist": "junior",
    "Pharmacologist": "junior",
    "Neurologist": "junior",
    "Supervisor": "supervisor",
    "HypothesisRefiner": "refiner",
    "ProtocolDesigner": "senior",
    "PeerReviewer": "board",
    "SafetyOfficer": "board",
    "PrincipalInvestigator": "principal",
    "Evaluation": "judge",
}


@pytest.fixture
def server(scripted_openai):
    """A scripted server that says what it is told to in this test only."""
    before, scripted_openai.hooks[:] = scripted_openai.hooks[:], []
    yield scripted_openai
    scripted_openai.hooks[:] = before


def with_models(config, **models):
    given = config.model_dump()
    return Config.model_validate({**given, "models": {**given["models"], **models}})


async def stored(lab):
    """What Agent Lightning's store tells its readers: each rollout with its spans, by the task's id."""
    rollouts = (await lab.store.query_rollouts()).items
    return {one.input["id"]: (one, (await lab.store.query_spans(one.rollout_id)).items) for one in rollouts}


@pytest.fixture(scope="module")
def gathered(scripted_openai, tmp_path_factory):
    """One lab: good, repaired, failed and unscored rollouts."""
    server = scripted_openai

    def script(request):
        name = server.goal(request).split()[1]
        role = server.role(request)
        if name == "unreadable" and role == "Supervisor":
            return "no JSON at all"
        if name == "unscored" and role == "Judge":
            return "no scores"
        if name == "repairing" and role == "Supervisor" and len(request["messages"]) == 2:
            return "no JSON yet"
        return None

    server.hooks[:] = [script]
    good = [task(f"drug{number}", label) for number, label in enumerate(("yes", "no", "maybe"))]
    tasks = [*good, task("repairing"), task("unreadable"), task("unscored")]

    async def scenario():
        async with open_lab(server.url, tmp_path_factory.mktemp("runs"), tasks) as lab:
            records = await collect(lab, tasks)
            told = await stored(lab)
        kept = {"requests": list(server.requests), "tokens": dict(server.tokens)}
        return SimpleNamespace(records=records, run=lab.run, server=server, stored=told, **kept)

    found = asyncio.run(scenario())
    server.hooks.clear()
    return found


def test_a_good_rollout_is_recorded_completely(gathered):
    record = gathered.records["drug0"]
    assert (record.status, record.error) == ("succeeded", None)
    assert (record.answer, record.label, record.source, record.phase) == ("yes", "yes", "generated", "gather")
    versions = {key: f"scripted-{key}" for key in set(ROLE_MODELS.values())}
    assert record.policy_versions == {**versions, "selection": "supervisor's model"}
    assert record.weights_versions == {key: [f"weights-of-scripted-{key}"] for key in set(ROLE_MODELS.values())}
    assert record.outputs["final_rationale"] == "the evidence says so"
    assert "messages" not in record.outputs
    assert record.counts["model_calls"] == 14  # the society's; the judge's is not among them
    assert record.counts["tool_calls"] == 5
    assert (record.counts["prompt_tokens"], record.counts["completion_tokens"]) == (14 * 3, 14 * 2)


def test_records_are_on_disk_as_they_were_given(gathered):
    stored = {data["task_id"]: RolloutRecord.load(data) for data in gathered.run.rollouts("gather")}
    assert stored == gathered.records
    assert len(list(gathered.run.rollouts("gather"))) == len(stored)


async def test_a_recorded_rollout_whose_line_a_kill_has_cost_is_logged_when_it_is_read_again(server, tmp_path):
    tasks = [task("drug1"), task("drug2")]
    async with open_lab(server.url, tmp_path, tasks) as lab:
        await collect(lab, tasks)
        (lab.run.path / "metrics.jsonl").write_text("")
        lab.metrics = Metrics(lab.run)
        await collect(lab, tasks)
        logged = [line["rollout_id"] for line in lab.run.metrics() if line["phase"] == "rollout"]
        assert sorted(logged) == sorted(record["rollout_id"] for record in lab.run.rollouts("gather"))


def test_reward_parts_sum_to_the_reward(gathered):
    for record in gathered.records.values():
        if record.reward is not None:
            assert record.reward == pytest.approx(sum(record.parts.values()))
    aligned, not_aligned = gathered.records["drug0"], gathered.records["drug1"]
    assert aligned.reward - not_aligned.reward == pytest.approx(1.0)
    assert aligned.parts["alignment"] == 1.0
    assert aligned.parts["impact"] == pytest.approx(0.3 * 0.5)


def test_reward_and_parts_are_emitted_as_one_reward_span(gathered):
    import agentlightning as agl
    import agl_traces as traces

    record = gathered.records["drug0"]
    (span,) = [span for span in traces.read(gathered.run.path / record.trace) if agl.get_rewards_from_span(span)]
    emitted = {reward.name: reward.value for reward in agl.get_rewards_from_span(span)}
    assert agl.get_reward_value(span) == pytest.approx(record.reward)
    assert emitted == pytest.approx({"reward": record.reward, **record.parts})


def test_every_model_call_has_its_token_ids_once_and_its_role(gathered):
    import agl_traces as traces

    for record in gathered.records.values():
        if record.status == "failed":
            continue
        calls = traces.model_calls(traces.read(gathered.run.path / record.trace))
        assert len({call.response_id for call in calls}) == len(calls)
        for call in calls:
            assert (call.prompt_ids, call.response_ids) == gathered.server.tokens_of(call.response_id)
            assert call.model == f"scripted-{ROLE_MODELS[call.role]}"
            assert call.weights_version == f"weights-of-scripted-{ROLE_MODELS[call.role]}"
            prompt = gathered.server.role({"messages": call.messages})
            assert prompt == ("Judge" if call.role == "Evaluation" else call.role)
    good = traces.model_calls(traces.read(gathered.run.path / gathered.records["drug0"].trace))
    counts = Counter(call.role for call in good)
    twice = {"Geneticist", "Pharmacologist", "Neurologist", "HypothesisRefiner", "ProtocolDesigner"}
    assert counts == {role: 2 if role in twice else 1 for role in ROLE_MODELS}


def test_every_exchange_of_the_server_is_in_exactly_one_trace(gathered):
    import agl_traces as traces

    spans = [traces.read(path) for path in (gathered.run.path / "traces").rglob("*.gz")]
    found = [span.attributes["llm.hosted_vllm.id"] for trace in spans for span in trace if span.name == traces.EXCHANGE]
    assert sorted(found) == sorted(gathered.tokens)


def test_an_unreadable_role_fails_its_rollout_with_the_reason(gathered):
    record = gathered.records["unreadable"]
    assert record.status == "failed"
    assert record.error.startswith("Supervisor: ")
    assert (record.reward, record.answer, record.decision, record.parts) == (None, None, None, {})


def test_a_repaired_answer_is_counted_and_both_its_calls_are_traced(gathered):
    import agl_traces as traces

    record = gathered.records["repairing"]
    assert (record.status, record.counts["repairs"]) == ("succeeded", 1)
    calls = traces.model_calls(traces.read(gathered.run.path / record.trace))
    said = [call.choice["message"]["content"] for call in calls if call.role == "Supervisor"]
    assert [text == "no JSON yet" for text in said] == [True, False]


def test_a_failed_judge_leaves_the_reward_missing_not_the_rollout_failed(gathered):
    record = gathered.records["unscored"]
    assert (record.status, record.error, record.reward) == ("succeeded", None, None)
    assert record.missing == ["novelty", "feasibility", "impact", "clarity", "groundedness", "efficiency"]
    assert record.parts["alignment"] == 1.0
    assert (record.answer, record.decision, record.veto) == ("yes", "GO", None)
    known = {name: value for name, value in record.parts.items() if value is not None}
    assert rewards(gathered.stored["unscored"][1]) == (None, known)


def test_neither_conclusion_nor_key_is_anywhere_in_the_run(gathered):
    files = [path for path in gathered.run.path.rglob("*") if path.is_file()]
    assert len(files) > 10
    assert len(gathered.stored) == 6
    for path in files:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        for secret in (CONCLUSION, SECRET):
            assert secret.encode() not in data, path
    for secret in (CONCLUSION, SECRET):
        assert secret not in json.dumps(gathered.requests)
        assert secret not in repr(gathered.stored)


def test_the_view_shows_failures_once_a_kind_and_every_part(gathered):
    from training.watch.view_text import result_table

    output = Console(width=80, record=True, file=open(os.devnull, "w"))  # noqa: SIM115  closed with the console
    output.print(result_table("gather", list(gathered.records.values()), 60.0))
    text = output.export_text()
    assert len(text.splitlines()) <= 20
    words = " ".join(text.split())
    assert "gather: 6 rollouts in 60.0 s, 6 a minute" in words
    assert "5 succeeded, 1 failed: " in words
    assert "1 x Supervisor: " in words
    assert "no reward 1, because a part is missing" in words
    assert "impact 0.150" in words


def test_summary_counts_failures_and_leaves_missing_rewards_out(gathered):
    figures = summarize(list(gathered.records.values()))
    assert (figures["rollouts"], figures["failed"], figures["unscored"]) == (6, 1, 1)
    rewards = [record.reward for record in gathered.records.values() if record.reward is not None]
    assert figures["reward"] == pytest.approx(sum(rewards) / len(rewards))
    # One of six failed, and the two labels that are not yes were answered with GO.
    assert figures["alignment_rate"] == pytest.approx(3 / 6)
    assert figures["parts"]["impact"] == pytest.approx(0.15)


@pytest.mark.parametrize("by_role", [True, False])
async def test_a_late_rollout_ends_by_a_limit_as_a_failed_record(server, tmp_path, monkeypatch, by_role):
    other_limit = "evaluation.rollout.worker.TimeLimit" if by_role else "agents.graph.TimeLimit"
    monkeypatch.setattr(other_limit, lambda _seconds: TimeLimit(PATIENCE))
    server.hooks[:] = [server.never]
    async with open_lab(server.url, tmp_path, [task("late")], timeout_s=1.0) as lab:
        late = (await collect(lab, [task("late")]))["late"]
    assert late.status == "failed"
    assert ("longer than 0.6 s: raise" if by_role else "longer than 1 s (") in late.error
    assert "rollouts.timeout_s" in late.error
    assert [one["rollout_id"] for one in lab.run.rollouts("gather")] == [late.rollout_id]


async def test_the_death_of_the_model_server_ends_the_run_at_once_with_its_log(server, tmp_path):
    arrived = asyncio.Event()
    loop = asyncio.get_running_loop()

    def script(_request):
        loop.call_soon_threadsafe(arrived.set)
        return server.never()

    server.hooks[:] = [script]
    config = with_models(config_for(server.url, tmp_path, concurrency=1), judge={"kind": "rubric"})
    async with open_lab(server.url, tmp_path, [task("waiting")], config=config) as lab:
        collecting = asyncio.create_task(collect(lab, [task("waiting")]))
        await arrived.wait()
        os.kill(lab.servers.pid, signal.SIGKILL)
        with pytest.raises(RunError) as caught:
            await collecting
        assert list(lab.run.rollouts("gather")) == []
    message = str(caught.value)
    assert f"process {lab.servers.pid}) was killed by SIGKILL" in message
    assert str(lab.run.path / "logs" / "models.log") in message
    assert "Application startup complete" in message


async def test_an_endpoint_that_cannot_be_reached_ends_the_run_and_no_rollout_is_recorded(server, tmp_path):
    config = config_for(server.url, tmp_path, retries=0)
    gone = {**config.model_dump()["models"]["supervisor"], "base_url": "http://127.0.0.1:9/v1"}
    config = with_models(config, supervisor=gone)
    async with open_lab(server.url, tmp_path, [task("any")], config=config) as lab:
        with refused(UnreachableError, "'supervisor'", "http://127.0.0.1:9/v1"):
            await collect(lab, [task("any")])
        assert list(lab.run.rollouts("gather")) == []


def response_ids(spans):
    return {span.attributes[f"{RAW}id"] for span in spans if span.name == EXCHANGE}


async def test_of_many_at_a_time_each_has_its_own_spans_in_the_store_and_on_disk(server, tmp_path):
    tasks = [task(f"drug{number}") for number in range(8)]
    failing = {one.id for one in tasks[::4]}

    def script(request):
        failed = server.role(request) == "Supervisor" and server.goal(request).split()[1] in failing
        return "no JSON at all" if failed else None

    together = AllAtOnce(server, [one.id for one in tasks])
    server.hooks.append(script)
    async with open_lab(server.url, tmp_path, tasks, concurrency=len(tasks)) as lab:
        collecting = asyncio.create_task(collect(lab, tasks))
        await together.together.wait()
        together.go.set()
        records, told = await collecting, await stored(lab)
    assert set(told) == set(records) == {one.id for one in tasks}
    for name, (rollout, spans) in told.items():
        on_disk = read(lab.run.path / records[name].trace)
        assert rollout.input["rollout_id"] == records[name].rollout_id
        assert (rollout.mode, rollout.status) == ("train", "failed" if name in failing else "succeeded")
        assert {span.rollout_id for span in spans} == {rollout.rollout_id}
        assert [(one.name, one.attributes) for one in spans] == [(one.name, one.attributes) for one in on_disk]
        asked = [span.attributes[f"{RAW}messages"] for span in spans if span.name == EXCHANGE]
        assert asked
        assert all(f"Does {name} lower" in messages for messages in asked)
    ids = [response_ids(spans) for _, spans in told.values()]
    assert len(set.union(*ids)) == sum(map(len, ids))
    assert {name for name, record in records.items() if record.status == "failed"} == failing


async def test_two_phases_at_a_time_on_one_lab_mix_nothing(server, tmp_path):
    tasks = {phase: [task(f"{phase}{number}") for number in range(4)] for phase in ("gather", "sft")}
    both = [*tasks["gather"], *tasks["sft"]]
    together = AllAtOnce(server, [one.id for one in both])
    async with open_lab(server.url, tmp_path, both, concurrency=len(both)) as lab:
        collecting = [asyncio.create_task(collect(lab, given, phase)) for phase, given in tasks.items()]
        await together.together.wait()
        together.go.set()
        for found, (phase, given) in zip(await asyncio.gather(*collecting), tasks.items(), strict=True):
            assert set(found) == {one.id for one in given}
            assert {one.rollout_id: one for one in found.values()} == {
                line["rollout_id"]: RolloutRecord.load(line) for line in lab.run.rollouts(phase)
            }
            for name, record in found.items():
                assert (record.status, record.phase) == ("succeeded", phase)
                calls = model_calls(read(lab.run.path / record.trace))
                assert len(calls) == record.counts["model_calls"] + 1
                assert all(f"Does {name} lower" in call.messages[1]["content"] for call in calls)


async def test_a_model_of_the_run_is_asked_for_token_ids_and_no_other(server, tmp_path):
    """Servers of others may refuse the option."""
    server.requests.clear()
    config = with_models(config_for(server.url, tmp_path), junior={"kind": "embedded"})
    async with open_lab(server.url, tmp_path, [task("any")], config=config) as lab:
        record = (await collect(lab, [task("any")]))["any"]
    calls = model_calls(read(lab.run.path / record.trace), roles=JUNIORS)
    assert len(calls) >= 3
    for call in calls:
        assert len(call.prompt_ids) > 10
        assert call.response_ids
        assert [call.weights_version] == record.weights_versions["junior"]
    assert server.requests
    assert not [one for one in server.requests if "return_token_ids" in one]


@pytest.mark.parametrize("name", ["", "same"])
async def test_every_call_is_in_the_trace_of_a_server_whose_ids_are_empty_or_repeat(server, tmp_path, name):
    server.response_id = name
    try:
        async with open_lab(server.url, tmp_path, [task("good")], concurrency=1) as lab:
            record = (await collect(lab, [task("good")]))["good"]
    finally:
        server.response_id = None
    spans = read(lab.run.path / record.trace)
    calls = [call for visit in tree(record, spans).visits for call in visit.calls]
    assert len(calls) == len(model_calls(spans)) == sum(span.name == EXCHANGE for span in spans) == 15
    assert not [call for call in calls if call.exchange is None or (call.record and call.record.repair)]


def test_gather_draws_tasks_without_replacement_and_by_seed():
    dataset = Dataset(tuple(task(f"drug{number}") for number in range(20)), (), (), "generated", "test")
    chosen = draw_inputs("gather", 5, dataset, 0, 2)
    names = [given.task.id for given in chosen]
    assert len(set(names[:5])) == 5
    assert names[:5] == names[5:]
    assert len({given.seed for given in chosen}) == 10
    assert draw_inputs("gather", 5, dataset, 0, 2) == chosen
    assert draw_inputs("gather", 5, dataset, 1, 2) != chosen
    with refused(ConfigError, "gather.tasks=21", "20 training tasks"):
        draw_inputs("gather", 21, dataset, 0)


async def test_a_search_that_finds_a_tasks_conclusion_leaves_it_out(server, tmp_path):
    conclusion = "Elderly participants tolerated chamomile infusions remarkably well throughout."
    contents = {"mirror": f"Blog: {conclusion.upper()}", "other": "Elderly participants like tea."}
    found = [{"title": name, "url": f"https://{name}.example", "content": text} for name, text in contents.items()]
    asked = replace(task("tea"), long_answer=conclusion)
    config = config_for(server.url, tmp_path)
    config = config.model_copy(update={"tools": ToolsConfig(literature="tavily")})
    server.requests.clear()
    with respx.mock as router:
        router.route(host="127.0.0.1").pass_through()
        router.post("https://api.tavily.com/search").respond(json={"results": found})
        async with open_lab(server.url, tmp_path, [asked], config=config) as lab:
            record = (await collect(lab, [asked]))["tea"]
    assert (record.status, record.counts["tool_calls"]) == ("succeeded", 5)
    said = json.dumps(server.requests)
    assert contents["other"] in said
    assert contents["mirror"] not in said


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("gahter", ("'gahter'", "did you mean gather", "gather, sft, ppo, design, bandit")),
        ("gather,ppo2", ("'ppo2'", "did you mean ppo", "gather, sft, ppo, design, bandit")),
        ("", "gather"),
        ("gather,gather", "gather"),
    ],
)
def test_wrong_phases_are_refused_with_the_valid_ones(text, pieces):
    with refused(ConfigError, pieces):
        choose_names(text, Config())


def test_all_phases_run_by_default():
    assert choose_names(None, Config()) == ("gather", "sft", "ppo", "design", "bandit")
    assert choose_names(" gather ", Config()) == ("gather",)
