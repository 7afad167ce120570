"""Traces without Agent Lightning: what is written is read again, by us and by training's adapter alike."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.core.errors import RunError
from chimera.core.secrets import register_secret
from evaluation.traces.calls import last_outcome, model_calls, untraced
from evaluation.traces.spans import (  # fmt: skip
    EXCHANGE,
    OPERATION,
    RAW,
    Position,
    exchange_span,
    operation_span,
    outcome_span,
    read,
    write,
)

texts = st.text()
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


def at(number, attempt_id="at-1", start=None):
    begin = float(number) if start is None else start
    return Position("ro-1", attempt_id, number, begin, begin + 0.5)


def exchange(response_id, content="{}", **more):
    request = {"model": "senior", "messages": [{"role": "user", "content": content}], "temperature": 1.0, "seed": None}
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop",
              "token_ids": [5, 6], "logprobs": None}  # fmt: skip
    return request, {"id": response_id, "choices": [choice], "prompt_token_ids": [1, 2], **more}


def visit(number, role, response_ids, attempt_id="at-1", **more):
    attributes = {"role": role, "model": "senior", "visit": 1, "attempt": 1, **more}
    return operation_span(at(number, attempt_id), role, attributes, response_ids)


@given(content=texts, reported=st.dictionaries(texts, values, max_size=3), tools=st.lists(values, max_size=2))
def test_a_made_exchange_is_read_as_it_was_whatever_is_in_it(tmp_path_factory, content, reported, tools):
    request, response = exchange("r-1", content, weights_version="senior@ppo-3")
    made = [
        exchange_span(at(1), {**request, "tools": tools}, response),
        visit(2, "HypothesisRefiner", ["r-1"]),
        outcome_span(at(3), reported),
    ]
    path = tmp_path_factory.mktemp("trace") / "a.jsonl.gz"
    write(made, path)
    spans = read(path)
    (call,) = model_calls(spans)
    assert call.messages == [{"role": "user", "content": content}]
    assert call.choice == response["choices"][0]
    assert (call.prompt_ids, call.response_ids) == ([1, 2], [5, 6])
    assert (call.role, call.model, call.weights_version) == ("HypothesisRefiner", "senior", "senior@ppo-3")
    assert call.tools == tools
    assert last_outcome(spans) == ("at-1", reported)
    assert [(span.start_time, span.end_time) for span in spans] == [(1.0, 1.5), (2.0, 2.5), (3.0, 3.5)]
    assert [span.name for span in spans] == [EXCHANGE, OPERATION, "agentlightning.object"]


def test_spans_have_ids_of_their_own_and_the_same_again():
    made = [visit(number, "Judge", []) for number in (1, 2)]
    assert made[0].span_id != made[1].span_id
    assert made[0].trace_id == made[1].trace_id
    assert made == [visit(number, "Judge", []) for number in (1, 2)]


def test_what_is_missing_is_said_and_calls_nobody_can_tell_apart_are_left_out():
    spans = [
        exchange_span(at(1), *exchange("r-1")),
        exchange_span(at(2), *exchange("r-1")),
        visit(3, "HypothesisRefiner", ["r-1", "r-1"]),
        visit(4, "ProtocolDesigner", ["r-9"]),
    ]
    assert model_calls(spans) == []
    assert untraced(spans) == {"r-9"}
    assert last_outcome(spans) is None


def test_the_last_attempt_counts():
    spans = [
        outcome_span(at(2, "at-1"), {"error": "first"}),
        exchange_span(at(3, "at-2"), *exchange("r-2")),
        visit(4, "HypothesisRefiner", ["r-2"], "at-2"),
        outcome_span(at(5, "at-2"), {"error": None}),
    ]
    assert last_outcome(spans) == ("at-2", {"error": None})
    assert model_calls(spans, attempt_id="at-1") == []
    assert [call.response_id for call in model_calls(spans, attempt_id="at-2")] == ["r-2"]


def test_secrets_are_not_written(tmp_path):
    register_secret("TEST_SPANS_KEY", "sk-very-secret-value")
    made = exchange_span(at(1), *exchange("r-1", "my key is sk-very-secret-value"))
    path = tmp_path / "a.jsonl.gz"
    write([made, operation_span(at(2), "Judge", {"role": "Judge"}, [])], path)
    text = gzip.decompress(path.read_bytes()).decode()
    assert "sk-very" not in text
    assert len(text.splitlines()) == 2


def test_a_broken_file_is_an_error_that_names_it(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    with pytest.raises(RunError, match=r"a\.jsonl\.gz"):
        read(path)
    path.write_bytes(gzip.compress(b'{"name": "x"}\n'))
    with pytest.raises(RunError, match="no span"):
        read(path)
    path.write_bytes(gzip.compress(b"{}\n" * 50)[:-9])
    with pytest.raises(RunError, match=r"a\.jsonl\.gz"):
        read(path)


def test_training_reads_made_spans_as_its_own(tmp_path):
    import agl_traces as traces

    from chimera.config.sections.rollouts import RewardConfig
    from training.learning.adapter import HierarchicalTraceAdapter

    answer = {"evidence": ["It's so."], "comparison": "c", "claim": "d", "answer": "yes"}
    record = {
        "kind": "ModelCall", "role": "HypothesisRefiner", "model": "senior", "visit": 1, "step": 1,
        "response_id": "r-1", "weights_version": "v", "finish_reason": "stop", "prompt_tokens": 2,
        "completion_tokens": 2, "seconds": 0.1, "parsed": True, "repair": False, "error": None, "attempt": 1,
    }  # fmt: skip
    path = tmp_path / "a.jsonl.gz"
    request, response = exchange("r-1", json.dumps(answer), weights_version="v")
    write(
        [
            exchange_span(at(1), request, response),
            visit(2, "HypothesisRefiner", ["r-1"]),
            outcome_span(at(3), {"error": None, "outputs": {}, "reward": 1.0, "calls": [record]}),
        ],
        path,
    )
    adapter = HierarchicalTraceAdapter(RewardConfig(parsed=0.05))
    (call,) = adapter.adapt_for_ppo(traces.read(path), ["HypothesisRefiner"])
    assert (call.prompt_ids, call.response_ids, call.weights_version) == ((1, 2), (5, 6), "v")
    assert (call.immediate, call.outcome) == (0.05, True)
    (conversation,) = adapter.adapt_for_sft(traces.read(path), ["HypothesisRefiner"])
    assert conversation.answer == answer


def test_both_readers_see_the_same_in_a_trace_of_training(tmp_path):
    import agl_traces as traces

    import agentlightning as agl  # isort: skip  (after training, which keeps LiteLLM from asking the network)

    request, response = exchange("r-1", 'It\'s "it"\n')
    raw = {f"{RAW}{key}": str(value) if isinstance(value, list) else value for key, value in response.items()}
    raw[f"{RAW}messages"] = str(request["messages"])
    operation = {"role": "Supervisor", "model": "senior", "visit": 1, "attempt": 1,
                 "agentlightning.operation.output.response_ids": ["r-1"]}  # fmt: skip
    spans = [
        agl.Span.from_attributes(
            name=name, attributes=attributes, rollout_id="ro-1", attempt_id="at-1", sequence_id=number,
            trace_id="t", span_id=f"s-{number}", start_time=1.0, end_time=2.0,
        )
        for number, (name, attributes) in enumerate([(EXCHANGE, raw), (OPERATION, operation)])
    ]  # fmt: skip
    path = tmp_path / "a.jsonl.gz"
    traces.write(spans, path)
    assert model_calls(read(path)) == model_calls(traces.read(path)) == model_calls(spans)
    assert len(model_calls(spans)) == 1
