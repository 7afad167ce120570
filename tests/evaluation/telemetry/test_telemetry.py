"""Recorded rollouts as they arrive at a real OTLP/HTTP receiver on loopback, and what is not sent."""

import gzip
import json
import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest
from message_kit import refused
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from record_kit import answered
from web_kit import answering

from chimera.config.sections.telemetry import TelemetryConfig
from chimera.core.errors import ConfigError
from chimera.core.secrets import redact, register_secret
from chimera.run.directory import Run
from evaluation.records.rollouts import RolloutRecord
from evaluation.rollout.crew import keep
from evaluation.telemetry import sender as sender_module
from evaluation.telemetry.sender import Sender, headers_of, telemetry, traces_address
from evaluation.traces import spans
from training.configuration import load_config

PRIVATE = "what the model has read and nobody else"
SECRET = "a password of somebody 4711"
KEY = "sk-of-the-collector-0123456789"
USAGE = {"prompt_tokens": 59, "completion_tokens": 20}


def call(number, **fields):
    known = {"role": "Geneticist", "model": "junior", "visit": 1, "attempt": 1, "step": number, "seconds": 0.25}
    return {**known, **fields}


CALLS = [
    call(1, kind="ModelCall", response_id="a1", weights_version="nano@0", finish_reason="tool_calls", **USAGE),
    call(1, kind="ToolUse", tool="literature_search", arguments=PRIVATE, valid=True, ok=True, results=[PRIVATE]),
    call(1, kind="ToolUse", tool="protein_lookup", arguments="{", valid=False, ok=False, results=[]),
    call(2, kind="ModelCall", response_id="a2", weights_version="nano@0", finish_reason="stop", **USAGE),
]


def record(number=1, **fields):
    usual = {
        "reward": 2.5,
        "parts": {"alignment": 1.0, "novelty": None},
        "policy_versions": {"junior": "junior@sft"},
        "outputs": {"research_goal": PRIVATE, "final_rationale": PRIVATE},
        "counts": {"prompt_tokens": 118, "completion_tokens": 40},
        "seconds": 2.0,
        "trace": f"traces/gather/ro-{number}.jsonl.gz",
    }
    return RolloutRecord.load(answered(f"ro-{number}", "task-7", **(usual | fields)).dump())


def trace(number=1, *, reported=True):
    def at(place, start, end):
        return spans.Position(f"ro-{number}", "direct", place, 1000.0 + start, 1000.0 + end)

    def exchange(place, name, start, end):
        request = {"model": "junior", "messages": [{"role": "user", "content": PRIVATE}]}
        message = {"role": "assistant", "content": PRIVATE}
        response = {"id": name, "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": USAGE}
        return spans.exchange_span(at(place, start, end), request, response)

    visit = {"role": "Geneticist", "model": "junior", "visit": 1, "attempt": 1}
    found = [
        exchange(1, "a1", 0.1, 0.4),
        exchange(2, "a2", 1.0, 1.5),
        spans.operation_span(at(3, 0.0, 1.6), "Geneticist", visit, ["a1", "a2"]),
    ]
    outcome = spans.outcome_span(at(4, 2.0, 2.0), {"calls": CALLS})
    return [*found, outcome] if reported else found


class Receiver:
    """A collector: keeps the spans of every request that it takes, and its headers."""

    def __init__(self, status=200, location=None, patience=None):
        self.status, self.location, self.patience = status, location, patience
        self.spans, self.headers, self.resources, self.requests = [], [], [], 0

    def answer(self, path, headers, body):
        self.requests += 1
        if self.patience is not None:
            self.patience.wait()
        self.headers.append(dict(headers))
        if self.status == 200:
            assert path == "/v1/traces"
            assert headers["Content-Type"] == "application/x-protobuf"
            for one in ExportTraceServiceRequest.FromString(gzip.decompress(body)).resource_spans:
                self.resources.append({item.key: item.value.string_value for item in one.resource.attributes})
                self.spans += [span for scope in one.scope_spans for span in scope.spans]
        # A connection that stays open would keep a thread, and threads are counted below.
        return self.status, {"connection": "close"} | ({"location": self.location} if self.location else {}), b""


@contextmanager
def receiving(**how):
    receiver = Receiver(**how)
    with answering(receiver.answer) as receiver.address:
        yield receiver


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """On a busy machine a time limit would leave something out."""
    monkeypatch.setattr(sender_module, "CLOSE_SECONDS", 600.0)
    monkeypatch.setattr(sender_module, "SECONDS", 600.0)


@pytest.fixture
def run(tmp_path):
    with Run.create("watched", load_config(None, [f"runs_dir={tmp_path}"])) as made:
        yield made


def sent(run, receiver, *rollouts, **settings):
    """Record rollouts of `run` while the receiver is its collector; returns what the user is told."""
    told = []
    config = TelemetryConfig(otlp_endpoint=receiver.address, **settings)
    with telemetry(run, config, {"COLLECTOR": f"Authorization=Bearer {KEY},x-team=lab"}, told.append):
        for one, of_it in rollouts:
            keep(run, one, of_it)
    return told


def plain(value):
    kind = value.WhichOneof("value")
    return [plain(one) for one in value.array_value.values] if kind == "array_value" else getattr(value, kind)


def facts(span):
    return {item.key: plain(item.value) for item in span.attributes}


def test_a_rollout_arrives_as_agents_chats_and_tools_with_roles_models_tokens_and_times(run):
    with receiving() as receiver:
        told = sent(run, receiver, (record(), trace()))
    society, visit, *calls = receiver.spans
    assert told == [f"telemetry: 1 rollouts were sent to {receiver.address}/v1/traces"]
    assert receiver.resources == [{"service.name": "chimera", "service.instance.id": "watched"}]
    assert [span.name for span in receiver.spans] == [
        "invoke_agent chimera",
        "invoke_agent Geneticist",
        "chat junior",
        "execute_tool literature_search",
        "execute_tool protein_lookup",
        "chat junior",
    ]
    assert {span.trace_id for span in receiver.spans} == {society.trace_id}
    assert (society.parent_span_id, visit.parent_span_id) == (b"", society.span_id)
    assert {span.parent_span_id for span in calls} == {visit.span_id}
    assert len({span.span_id for span in receiver.spans}) == len(receiver.spans)
    about = facts(society)
    assert about["gen_ai.operation.name"] == "invoke_agent"
    assert (about["chimera.run"], about["chimera.task"], about["chimera.decision"]) == ("watched", "task-7", "GO")
    assert (about["chimera.reward"], about["chimera.reward.alignment"]) == (2.5, 1.0)
    assert "chimera.reward.novelty" not in about
    assert about["gen_ai.usage.input_tokens"] == 118
    assert about["chimera.policy.junior"] == "junior@sft"
    chat = facts(calls[0])
    assert chat["gen_ai.operation.name"] == "chat"
    assert (chat["gen_ai.agent.name"], chat["gen_ai.request.model"]) == ("Geneticist", "junior")
    assert (chat["gen_ai.usage.input_tokens"], chat["gen_ai.usage.output_tokens"]) == (59, 20)
    assert (chat["gen_ai.response.finish_reasons"], chat["gen_ai.response.model"]) == (["tool_calls"], "nano@0")
    tool, broken = facts(calls[1]), facts(calls[2])
    assert (tool["gen_ai.operation.name"], tool["gen_ai.tool.name"]) == ("execute_tool", "literature_search")
    assert tool["gen_ai.agent.name"] == "Geneticist"
    assert broken["error.type"] == "invalid_arguments"
    seconds = [
        ((span.start_time_unix_nano / 1e9) - 1000, (span.end_time_unix_nano / 1e9) - 1000) for span in receiver.spans
    ]
    assert seconds[0] == pytest.approx((0.0, 2.0), abs=1e-3)
    assert seconds[2] == pytest.approx((0.1, 0.4), abs=1e-3)
    assert seconds[3] == pytest.approx((0.4, 0.65), abs=1e-3)
    assert seconds[4] == pytest.approx((0.65, 0.9), abs=1e-3)
    assert seconds[5] == pytest.approx((1.0, 1.5), abs=1e-3)


def test_content_is_sent_only_where_it_is_asked_for(run):
    with receiving() as receiver:
        sent(run, receiver, (record(), trace()))
        assert PRIVATE not in str(receiver.spans)
        receiver.spans.clear()
        sent(run, receiver, (record(2), trace(2)), content=True)
    society, _, chat, search, *_ = map(facts, receiver.spans)
    assert json.loads(chat["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": PRIVATE}]}
    ]
    assert json.loads(chat["gen_ai.output.messages"])[0]["parts"][0]["content"] == PRIVATE
    assert search["gen_ai.tool.call.arguments"] == PRIVATE
    assert PRIVATE in society["gen_ai.input.messages"]


def test_what_is_sent_is_what_is_recorded_so_secrets_stay_here(run):
    register_secret("a key", SECRET)
    with receiving() as receiver:
        told = record(3, outputs={"research_goal": f"it is {SECRET}"}, task_id=f"task {SECRET}")
        of_it = [replace(one, attributes={**one.attributes, "model": SECRET}) for one in trace(3)]
        sent(run, receiver, (told, of_it), content=True)
    assert "a key" in str(receiver.spans)
    assert SECRET not in str(receiver.spans)


def test_headers_come_from_the_variable_and_reach_the_collector_only(run):
    with receiving() as receiver:
        sent(run, receiver, (record(), trace()), headers_env="COLLECTOR")
        headers = {name.lower(): value for name, value in receiver.headers[0].items()}
        assert (headers["authorization"], headers["x-team"]) == (f"Bearer {KEY}", "lab")
        sent(run, receiver, (record(2), trace(2)))
        assert "Authorization" not in receiver.headers[1]
    assert KEY not in "".join(file.read_text(errors="replace") for file in run.path.rglob("*.json*") if file.is_file())
    config = TelemetryConfig(otlp_endpoint="http://x:1", headers_env="ODD")
    assert headers_of(config, {"ODD": "X-Key=Basic%20cG9u=,,b=2,"}) == {"x-key": "Basic cG9u=", "b": "2"}
    assert redact("Basic%20cG9u= Basic cG9u=") == "[a header of ODD] [a header of ODD]"
    for text, *pieces in ((",", "telemetry.headers_env=ODD", "leave the key out"), ("a=1,no", "ODD", "NAME=VALUE")):
        with refused(ConfigError, *pieces):
            headers_of(config, {"ODD": text})


def test_the_key_of_another_collector_in_the_environment_is_not_sent(run, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"x-store-key={KEY}")
    with receiving() as receiver:
        sent(run, receiver, (record(), trace()))
    assert receiver.requests == 1
    assert KEY not in str(receiver.headers)


def test_a_redirect_is_refused(run):
    with receiving() as elsewhere, receiving(status=307, location=f"{elsewhere.address}/v1/traces") as receiver:
        (told,) = sent(run, receiver, (record(), trace()), headers_env="COLLECTOR")
        assert elsewhere.requests == 0
    assert "0 rollouts were sent" in told
    assert "1 were not taken (TooManyRedirects" in told


def test_a_collector_that_refuses_or_is_not_there_is_told_once_and_stops_nothing(run):
    with receiving(status=400) as receiver:
        (told,) = sent(run, receiver, (record(), trace()), (record(2), trace(2)))
    assert "0 rollouts were sent" in told
    assert "2 were not taken" in told
    (told,) = sent(run, receiver, (record(3), trace(3)))
    assert "1 were not taken (ConnectionError" in told
    assert len(list(run.rollouts("gather"))) == 3


def test_a_slow_collector_never_makes_the_run_wait(run, monkeypatch):
    """The collector takes the first request and does not answer before the run has recorded all."""
    monkeypatch.setattr(sender_module, "WAITING", 4)
    answer = threading.Event()
    with receiving(patience=answer) as receiver:
        sender = Sender(TelemetryConfig(otlp_endpoint=receiver.address), {}, "watched")
        sender.send(record(0), trace(0))
        pause = threading.Event()
        while not receiver.requests:
            pause.wait(0.01)
        for number in range(1, 11):
            sender.send(record(number), trace(number))
        answer.set()
        told = sender.close()
    assert told.startswith("telemetry: 5 rollouts were sent to ")
    assert "6 were left out, because the collector was slower than the run" in told


def test_the_calls_of_a_runner_that_was_killed_are_sent_without_its_outcome(run):
    failed = record(4, status="failed", error="the runner died", reward=None, answer=None, decision=None, parts={})
    with receiving() as receiver:
        sent(run, receiver, (failed, trace(4, reported=False)))
    names = [span.name for span in receiver.spans]
    assert names == ["invoke_agent chimera", "invoke_agent Geneticist", "chat junior", "chat junior"]
    assert facts(receiver.spans[0])["error.type"] == "rollout_failed"
    assert receiver.spans[0].status.code == 2


def test_without_an_endpoint_nothing_is_started(run):
    before = threading.active_count()
    with telemetry(run, TelemetryConfig(), {}, pytest.fail):
        keep(run, record(), trace())
        assert threading.active_count() == before


@pytest.mark.parametrize(
    ("endpoint", "address"),
    [
        ("http://127.0.0.1:6006", "http://127.0.0.1:6006/v1/traces"),
        ("https://x.example/api/public/otel/", "https://x.example/api/public/otel/v1/traces"),
        ("http://127.0.0.1:4318/v1/traces", "http://127.0.0.1:4318/v1/traces"),
    ],
)
def test_the_collector_s_base_address_gets_the_path_of_otlp(endpoint, address):
    assert traces_address(TelemetryConfig(otlp_endpoint=endpoint).otlp_endpoint) == address


@pytest.mark.parametrize("endpoint", ["127.0.0.1:4318", "http://user:secret@host", "http://host?key=1", "ftp://host"])
def test_an_address_that_is_none_or_has_a_secret_is_refused(endpoint):
    with refused(ConfigError, "telemetry.otlp_endpoint", "http://127.0.0.1:4318"):
        load_config(overrides=[f"telemetry.otlp_endpoint={endpoint}"])
