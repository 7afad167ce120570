"""Rollouts through the real store, gateway and runner processes, against a scripted OpenAI server on loopback."""

import asyncio
import gzip
import json
import os
import pickle
import re
import signal
from collections import Counter
from types import SimpleNamespace

import httpx
import pytest
import respx
from lab_kit import CONCLUSION, SECRET, collect, config_for, open_lab, task
from rich.console import Console

from chimera.config.sections.rollouts import GatewayConfig
from chimera.config.tree import Config
from chimera.core.errors import ConfigError, RunError
from chimera.core.types import ResearchTask, Section
from chimera.data.tasks import Dataset
from chimera.run.policies import Policy
from evaluation.records.rollouts import RolloutInput, RolloutRecord
from evaluation.traces.calls import model_calls
from evaluation.traces.spans import read
from training.lab.runners.runner import Doors, RunnerSpec
from training.learning.plans import choose_names
from training.learning.rounds import draw_inputs
from training.summary import summarize

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


async def until(condition):
    while not condition():  # noqa: ASYNC110  what is awaited happens in other processes
        await asyncio.sleep(0.02)


def attempts_seen(server, name):
    return sum(server.role(request) == "Geneticist" and f"Does {name} " in server.goal(request)
               and request["messages"][-1]["role"] == "user" for request in server.requests)  # fmt: skip


@pytest.fixture(scope="module")
def gathered(scripted_openai, tmp_path_factory):
    """One lab: good, failing and unscored rollouts, killed runners, and a gateway that is killed in mid-rollout."""
    server = scripted_openai
    asked = {}
    times = Counter()

    def script(request):
        name = server.goal(request).split()[1]
        role = server.role(request)
        if name == "unreadable" and role == "Supervisor":
            return "no JSON at all"
        if name == "unscored" and role == "Judge":
            return "no scores"
        if name == "repairing" and role == "Supervisor" and len(request["messages"]) == 2:
            return "no JSON yet"
        times[name] += role == "Supervisor"
        if role == "Supervisor" and (name == "killed" or (name in ("revived", "late") and times[name] == 1)):
            asked[name] = True
            return server.never()
        return None

    server.hooks[:] = [script]
    good = [task(f"drug{number}", label) for number, label in enumerate(("yes", "no", "maybe"))]
    tasks = [*good, task("repairing"), task("unreadable"), task("unscored")]
    ending = ["killed", "revived", "late"]
    folder = tmp_path_factory.mktemp("runs")

    async def scenario():
        async with open_lab(server.url, folder, [*tasks, *map(task, ending)], max_attempts=2) as lab:
            records = await collect(lab, tasks)
            before = dict(lab.pool.pids())
            records |= await kill_runner(lab, "killed", attempts=2)
            after = dict(lab.pool.pids())
            records |= await kill_runner(lab, "revived", attempts=1)
            gateway = lab.gateway.pid
            collecting = asyncio.create_task(collect(lab, [task("late")]))
            await until(lambda: asked.pop("late", False))
            await junior_exchanges_are_stored(lab)
            os.kill(gateway, signal.SIGKILL)
            records |= await collecting
            keys = [SECRET, lab.gateway.key]
        view = (lab.run.path / "view.txt").read_text()
        return SimpleNamespace(
            records=records,
            run=lab.run,
            before=before,
            after=after,
            keys=keys,
            server=server,
            folder=folder,
            gateway=gateway,
            view=view,
        )

    async def junior_exchanges_are_stored(lab):
        """What the gateway has answered but not yet sent to the store would be lost with it."""
        (running,) = (await lab.store.query_rollouts(status_in=["preparing", "running"])).items
        found = 0
        while found < 6:
            await asyncio.sleep(0.02)
            spans = (await lab.store.query_spans(running.rollout_id)).items
            found = sum(span.name == "raw_gen_ai_request" for span in spans)

    async def kill_runner(lab, name, *, attempts):
        collecting = asyncio.create_task(collect(lab, [task(name)]))
        for attempt in range(1, attempts + 1):
            await until(lambda: asked.pop(name, False))
            running = (await lab.store.query_rollouts(status_in=["preparing", "running"])).items
            latest = await lab.store.get_latest_attempt(running[0].rollout_id)
            assert latest.sequence_id == attempt
            os.kill(lab.pool.pids()[latest.worker_id], signal.SIGKILL)
        return await collecting

    return asyncio.run(scenario())


def test_a_good_rollout_is_recorded_completely(gathered):
    record = gathered.records["drug0"]
    assert (record.status, record.error, record.attempt) == ("succeeded", None, 1)
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

    from training.learning import traces

    record = gathered.records["drug0"]
    (span,) = [span for span in traces.read(gathered.run.path / record.trace) if agl.get_rewards_from_span(span)]
    emitted = {reward.name: reward.value for reward in agl.get_rewards_from_span(span)}
    assert agl.get_reward_value(span) == pytest.approx(record.reward)
    assert emitted == pytest.approx({"reward": record.reward, **record.parts})


def test_every_model_call_has_its_token_ids_once_and_its_role(gathered):
    from training.learning import traces

    for record in gathered.records.values():
        if record.status == "failed":
            continue
        calls = traces.model_calls(traces.read(gathered.run.path / record.trace))
        assert record.untraced_calls == 0
        assert len({call.response_id for call in calls}) == len(calls)
        for call in calls:
            assert (call.prompt_ids, call.response_ids) == gathered.server.tokens_of(call.response_id)
            assert call.model == f"scripted-{ROLE_MODELS[call.role]}"
            assert call.weights_version == f"weights-of-scripted-{ROLE_MODELS[call.role]}"
            prompt = gathered.server.role({"messages": call.messages})
            assert prompt == ("Judge" if call.role == "Evaluation" else call.role)
    counts = Counter(call.role for call in calls)
    twice = {"Geneticist", "Pharmacologist", "Neurologist", "HypothesisRefiner", "ProtocolDesigner"}
    assert counts == {role: 2 if role in twice else 1 for role in ROLE_MODELS}


def test_every_exchange_of_the_server_is_in_exactly_one_trace(gathered):
    from training.learning import traces

    spans = [traces.read(path) for path in (gathered.run.path / "traces").rglob("*.gz")]
    found = [span.attributes["llm.hosted_vllm.id"] for trace in spans for span in trace if span.name == traces.EXCHANGE]
    assert sorted(name.rpartition("-")[0] for name in found) == sorted(gathered.server.tokens)


def test_an_unreadable_role_fails_its_rollout_with_the_reason(gathered):
    record = gathered.records["unreadable"]
    assert record.status == "failed"
    assert record.error.startswith("Supervisor: ")
    assert (record.reward, record.answer, record.decision, record.parts) == (None, None, None, {})
    assert record.attempt == 1
    assert attempts_seen(gathered.server, "unreadable") == 1


def test_a_rollout_whose_runner_was_killed_gets_another_attempt(gathered):
    record = gathered.records["revived"]
    assert (record.status, record.attempt, record.error) == ("succeeded", 2, None)


def test_a_repaired_answer_is_counted_and_both_its_calls_are_traced(gathered):
    from training.learning import traces

    record = gathered.records["repairing"]
    assert (record.status, record.counts["repairs"]) == ("succeeded", 1)
    calls = traces.model_calls(traces.read(gathered.run.path / record.trace))
    assert [call.choice["message"]["content"] == "no JSON yet" for call in calls if call.role == "Supervisor"] == [
        True,
        False,
    ]


def test_a_failed_judge_leaves_the_reward_missing_not_the_rollout_failed(gathered):
    record = gathered.records["unscored"]
    assert (record.status, record.error, record.reward) == ("succeeded", None, None)
    assert record.missing == ["novelty", "feasibility", "impact", "clarity", "groundedness", "efficiency"]
    assert record.parts["alignment"] == 1.0
    assert (record.answer, record.decision, record.veto) == ("yes", "GO", None)


def test_a_killed_runner_fails_only_its_rollout_and_is_replaced(gathered):
    record = gathered.records["killed"]
    assert (record.status, record.attempt) == ("failed", 2)
    assert "was killed by SIGKILL" in record.error
    assert len(gathered.after) == len(gathered.before) == 2
    assert record.worker not in gathered.after


def test_a_gateway_killed_in_mid_rollout_comes_back_and_the_rollout_goes_on(gathered):
    record = gathered.records["late"]
    assert (record.status, record.attempt) == ("succeeded", 1)
    warned = re.search(r"^warning: gateway \(process (\d+)\) (.*)$", gathered.view, re.MULTILINE)
    assert int(warned[1]) == gathered.gateway
    assert warned[2].startswith("was killed by SIGKILL; restart 1 of 3 (see ")


@pytest.mark.whole
async def test_agent_lightning_s_own_gateway_records_the_same(scripted_openai, tmp_path):
    """`gateway.engine=litellm`; an error ends with the log's last lines, so its banner must not be there."""
    scripted_openai.hooks[:] = []
    config = config_for(scripted_openai.url, tmp_path, runners=1).model_copy(
        update={"gateway": GatewayConfig(engine="litellm")}
    )
    async with open_lab(scripted_openai.url, tmp_path, [task("any")], config=config) as lab:
        record = (await collect(lab, [task("any")]))["any"]
        assert (record.status, record.untraced_calls) == ("succeeded", 0)
        calls = model_calls(read(lab.run.path / record.trace))
        assert {call.role for call in calls} == set(ROLE_MODELS)
        assert all(call.messages and call.choice["message"] for call in calls)
        candidate = Policy.made("weights", "senior", "try")
        with pytest.raises(RunError, match=r"senior@try cannot be made with .*: set gateway\.engine=thin"):
            await anext(lab.rollouts([], instead=[candidate]))
        async with httpx.AsyncClient(base_url=lab.gateway.url) as client:
            for path in ("/docs", "/openapi.json", "/health/liveliness", "/metrics", "/ui"):
                assert (await client.get(path)).status_code == 401
        text = (lab.run.path / "logs" / "gateway.log").read_text()
    assert "LiteLLM" in text
    assert not re.search("Thank you|Feedback|issues/new|█", text)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError("no process left"), r"could not be started again \(see .*gateway\.log\): OSError: no process left"),
        (RunError("gateway was not ready after 60 s"), "^gateway was not ready after 60 s$"),
    ],
)
async def test_a_gateway_that_cannot_be_started_again_fails_the_run(error, message, scripted_openai, tmp_path):
    async def fail():
        raise error

    scripted_openai.hooks[:] = [scripted_openai.never]
    async with open_lab(scripted_openai.url, tmp_path, [task("any")], runners=1) as lab:
        lab.gateway.start = fail
        os.kill(lab.gateway.pid, signal.SIGKILL)
        with pytest.raises(RunError, match=message):
            await collect(lab, [task("any")])


async def test_a_gateway_that_keeps_dying_fails_the_run(scripted_openai, tmp_path, monkeypatch):
    monkeypatch.setattr("training.lab.gateway.process.MAX_RESTARTS", 0)
    async with open_lab(scripted_openai.url, tmp_path, [task("any")], runners=1) as lab:
        os.kill(lab.gateway.pid, signal.SIGKILL)
        with pytest.raises(RunError, match=r"was killed by SIGKILL, after 0 restarts \(see .*gateway\.log\)"):
            await collect(lab, [task("any")])


def test_neither_conclusion_nor_key_is_anywhere_in_the_run(gathered):
    files = [path for path in gathered.run.path.rglob("*") if path.is_file()]
    assert len(files) > 10
    for path in files:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        for secret in (CONCLUSION, *gathered.keys):
            assert secret.encode() not in data, path
    assert SECRET not in json.dumps(gathered.server.requests)
    assert CONCLUSION not in json.dumps(gathered.server.requests)


def test_the_view_shows_failures_once_a_kind_and_every_part(gathered):
    from training.watch.view_text import result_table

    output = Console(width=80, record=True, file=open(os.devnull, "w"))  # noqa: SIM115  closed with the console
    output.print(result_table("gather", list(gathered.records.values()), 60.0))
    text = output.export_text()
    assert len(text.splitlines()) <= 20
    words = " ".join(text.split())
    assert "gather: 9 rollouts in 60.0 s, 9 a minute" in words
    assert "7 succeeded, 2 failed: " in words
    assert "1 x runner # (process #) was killed by SIGKILL" in words
    assert "no reward 1, because a part is missing" in words
    assert "impact 0.150" in words


def test_summary_counts_failures_and_leaves_missing_rewards_out(gathered):
    figures = summarize(list(gathered.records.values()))
    assert (figures["rollouts"], figures["failed"], figures["unscored"]) == (9, 2, 1)
    rewards = [record.reward for record in gathered.records.values() if record.reward is not None]
    assert figures["reward"] == pytest.approx(sum(rewards) / len(rewards))
    # Two of nine failed, and the two labels that are not yes were answered with GO.
    assert figures["alignment_rate"] == pytest.approx(5 / 9)
    assert figures["parts"]["impact"] == pytest.approx(0.15)


async def test_a_late_rollout_is_ended_by_its_runner(scripted_openai, tmp_path, monkeypatch):
    monkeypatch.setattr("training.lab.lab.GRACE_SECONDS", 3600.0)
    scripted_openai.hooks[:] = [scripted_openai.never]
    async with open_lab(scripted_openai.url, tmp_path, [task("late")], timeout_s=1.0, runners=1) as lab:
        late = (await collect(lab, [task("late")]))["late"]
    assert late.status == "failed"
    assert "longer than 1 s (rollouts.timeout_s)" in late.error
    assert not [line for line in (lab.run.path / "view.txt").read_text().splitlines() if "killed" in line]


async def test_a_hanging_rollout_fails_and_its_runner_is_replaced(scripted_openai, tmp_path):
    """The runner is stopped once it is at work; only then does the rollout's time run out, by the store's record."""
    arrived = asyncio.Event()
    loop = asyncio.get_running_loop()

    def script(_request):
        loop.call_soon_threadsafe(arrived.set)
        return scripted_openai.never()

    scripted_openai.hooks[:] = [script]
    async with open_lab(scripted_openai.url, tmp_path, [task("hanging")], runners=1) as lab:
        (pid,) = lab.pool.pids().values()
        collecting = asyncio.create_task(collect(lab, [task("hanging")]))
        await arrived.wait()
        os.kill(pid, signal.SIGSTOP)
        (rollout,) = (await lab.store.query_rollouts(status_in=["preparing", "running"])).items
        out_of_time = rollout.config.model_copy(update={"timeout_seconds": 0.0})
        await lab.store.update_rollout(rollout.rollout_id, config=out_of_time)
        hanging = (await collecting)["hanging"]
        assert hanging.status == "failed"
        assert "gave no result in time" in hanging.error
        scripted_openai.hooks[:] = []
        await until(lambda: pid not in lab.pool.pids().values())
        scripted_openai.hooks[:] = [lambda request: (400, "stop here")]
        refused = (await collect(lab, [task("refused")]))["refused"]
        assert re.fullmatch(r"\w+: model 'junior' answered 400: stop here", refused.error)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_run_whose_runners_all_die_ends_with_their_reason(scripted_openai, tmp_path):
    broken = tmp_path / "no-database.sqlite"
    broken.write_text("not a database, but long enough to be read as one: " + "x" * 200)
    config = config_for(scripted_openai.url, tmp_path, runners=2)
    config = Config.model_validate({**config.model_dump(), "tools": {"database": str(broken)}})
    with pytest.raises(RunError, match=r"all runners died.*no-database\.sqlite"):
        async with open_lab(scripted_openai.url, tmp_path, [task("any")], config=config) as lab:
            await collect(lab, [task("any")])
    warnings = (tmp_path / "run" / "view.txt").read_text().splitlines()
    (shrinking,) = [line for line in warnings if "not replaced" in line]
    assert shrinking.startswith("warning: 4 runners died")
    assert shrinking.endswith("; 1 of 2 are left")
    assert len([line for line in warnings if line.startswith("warning: runner ")]) == 5


async def test_the_death_of_the_model_server_ends_the_run_at_once_with_its_log(scripted_openai, tmp_path):
    arrived = asyncio.Event()
    loop = asyncio.get_running_loop()

    def script(_request):
        loop.call_soon_threadsafe(arrived.set)
        return scripted_openai.never()

    scripted_openai.hooks[:] = [script]
    given = config_for(scripted_openai.url, tmp_path, runners=1).model_dump()
    config = Config.model_validate({**given, "models": {**given["models"], "judge": {"kind": "rubric"}}})
    async with open_lab(scripted_openai.url, tmp_path, [task("waiting")], config=config) as lab:
        collecting = asyncio.create_task(collect(lab, [task("waiting")]))
        await arrived.wait()
        os.kill(lab.servers.pid, signal.SIGKILL)
        with pytest.raises(RunError) as caught:
            await collecting
    message = str(caught.value)
    assert f"process {lab.servers.pid}) was killed by SIGKILL" in message
    assert str(lab.run.path / "logs" / "models.log") in message
    assert "Application startup complete" in message
    (rollout,) = (await lab.store.query_rollouts()).items
    assert rollout.status == "cancelled"


def test_gather_draws_tasks_without_replacement_and_by_seed():
    dataset = Dataset(tuple(task(f"drug{number}") for number in range(20)), (), (), "generated", "test")
    chosen = draw_inputs("gather", 5, dataset, 0, 2)
    names = [given.task.id for given in chosen]
    assert len(set(names[:5])) == 5
    assert names[:5] == names[5:]
    assert len({given.seed for given in chosen}) == 10
    assert draw_inputs("gather", 5, dataset, 0, 2) == chosen
    assert draw_inputs("gather", 5, dataset, 1, 2) != chosen
    with pytest.raises(ConfigError, match=r"gather\.tasks=21, but there are 20"):
        draw_inputs("gather", 21, dataset, 0)


def test_what_runners_are_given_holds_no_conclusion():
    given = RolloutInput.of(task("drug"), "gather", 1, 7)
    assert CONCLUSION not in json.dumps(given.dump())
    loaded = RolloutInput.load(json.loads(json.dumps(given.dump())))
    assert loaded.task.brief() == given.task.brief()
    assert (loaded.task.label, loaded.seed, loaded.repeat) == ("yes", given.seed, 1)


@respx.mock
async def test_a_runner_blocks_the_conclusion_without_holding_it():
    conclusion = "Elderly participants tolerated chamomile infusions remarkably well throughout."
    secret = ResearchTask("t1", "Is tea safe?", (Section("AIMS", "Tea."),), "yes", "pubmedqa", conclusion)
    config = Config.model_validate({"tools": {"literature": "tavily"}})
    dataset = Dataset((secret,), (), (), "pubmedqa", "test")
    sent = pickle.dumps(RunnerSpec.of(Doors("", "", "", ""), config, dataset, {"TAVILY_API_KEY": "k", "M": SECRET}))
    assert SECRET.encode() not in sent
    assert not [word for word in conclusion.split() if len(word) > 4 and word.encode() in sent]
    contents = {"mirror": f"Blog: {conclusion.upper()}", "other": "Elderly participants like tea."}
    found = [{"title": name, "url": f"https://{name}.example", "content": text} for name, text in contents.items()]
    respx.post("https://api.tavily.com/search").respond(json={"results": found})
    result = await pickle.loads(sent).toolbox().call("literature_search", {"query": "tea"}, brief=secret.brief())
    assert [passage.title for passage in result.passages] == ["other"]


@pytest.mark.parametrize("text", ["gahter", "gather,ppo2", "", "gather,gather"])
def test_wrong_phases_are_refused_with_the_valid_ones(text):
    with pytest.raises(ConfigError, match="gather"):
        choose_names(text, Config())


def test_all_phases_run_by_default():
    assert choose_names(None, Config()) == ("gather", "sft", "ppo", "design", "bandit")
    assert choose_names(" gather ", Config()) == ("gather",)
