"""The engine and its cache bookkeeping, against Hugging Face and against their own definitions."""

import asyncio
import shutil
import threading

import numpy as np
import psutil
import pytest
import torch
from embedded_kit import embedded, log_probs
from hypothesis import given, settings
from hypothesis import strategies as st

from chimera.config.sections.models import ModelConfig
from chimera.serving.embedded.checkpoint import load_checkpoint
from chimera.serving.embedded.decoding import batcher
from chimera.serving.embedded.decoding.engine import Engine, cache_bytes_per_row
from chimera.serving.embedded.decoding.rows import MIN_REUSE, RowTable
from chimera.serving.embedded.protocol import parse_request

VARIANTS = [{"tied": True, "kv_heads": 2}, {"tied": False, "kv_heads": 1}, {"tied": False, "kv_heads": 4}]


@pytest.fixture(scope="module", params=VARIANTS, ids=["tied", "untied-mqa", "untied-mha"])
def pair(request, serving_model):
    """The same random model behind our server and in transformers."""
    from transformers import AutoModelForCausalLM

    folder = serving_model(**request.param)
    with embedded(folder, slots=4, context_length=512) as service:
        yield service, AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def ask(service, *bodies):
    """Answers to all bodies, asked at once."""

    async def go():
        base = {"model": "junior", "return_token_ids": True, "logprobs": True}
        return await asyncio.gather(*[service.complete(parse_request(base | body)) for body in bodies])

    return asyncio.run(go())


def talk(text):
    return [{"role": "system", "content": "You are the Geneticist."}, {"role": "user", "content": text}]


def assert_greedy(model, answer, tokens):
    prompt, eos = torch.tensor([answer["prompt_token_ids"]]), model.config.eos_token_id
    expected = model.generate(prompt, do_sample=False, max_new_tokens=tokens, eos_token_id=eos, pad_token_id=eos)
    assert answer["choices"][0]["token_ids"] == expected[0, prompt.shape[1] :].tolist()


def test_greedy_answers_equal_transformers_generate(pair):
    service, model = pair
    texts = ["the rate", "was lower " * 20, "yes", "p=0.01 " * 35, "the rate was lower", "?"]
    for answer in ask(service, *[{"messages": talk(text), "temperature": 0, "max_tokens": 40} for text in texts]):
        assert_greedy(model, answer, 40)


def test_log_probs_equal_transformers(pair):
    service, model = pair
    texts = ["the rate", "was lower " * 20, "the rate was higher", "was lower " * 19 + "not", "a", "b"]
    bodies = [{"messages": talk(text), "seed": 1, "max_tokens": 30, "top_logprobs": 3} for text in texts]
    for answer in ask(service, *bodies, *bodies):
        expected, chosen = log_probs(model, answer, answer["choices"][0])
        content = answer["choices"][0]["logprobs"]["content"]
        assert [one["logprob"] for one in content] == pytest.approx(chosen.tolist(), abs=1e-4)
        top = expected.topk(3).values
        assert np.array([[t["logprob"] for t in one["top_logprobs"]] for one in content]) == pytest.approx(
            top.numpy(), abs=1e-4
        )


def test_a_cached_prefix_changes_no_answer(pair):
    service, model = pair
    for text in ("1 2 3 " * 12, "1 2 3 " * 12 + "more", "1 2 3 " * 11 + "other", "1 2 3 " * 12):
        answer = ask(service, {"messages": talk(text), "temperature": 0, "max_tokens": 12})[0]
        assert_greedy(model, answer, 12)
    usage = answer["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1


def test_a_long_prompt_is_read_in_pieces_and_answered_alike(pair, monkeypatch):
    service, model = pair
    monkeypatch.setattr(batcher, "MOST_AT_ONCE", 16)
    texts = ["4 5 6 " * 20, "4 5 6 " * 20 + "more"]
    for answer in (ask(service, {"messages": talk(text), "temperature": 0, "max_tokens": 12})[0] for text in texts):
        assert answer["usage"]["prompt_tokens"] > 32
        assert_greedy(model, answer, 12)


def test_an_idle_model_forgets_its_prefixes_and_answers_as_before(serving_model, monkeypatch):
    rested, release, others = threading.Event(), batcher.release_memory, set(threading.enumerate())

    def release_and_tell() -> None:
        release()
        if threading.current_thread() not in others:  # The models of other tests may become idle meanwhile.
            rested.set()

    monkeypatch.setattr(batcher, "release_memory", release_and_tell)
    monkeypatch.setattr(batcher, "IDLE_SECONDS", 0.01)
    body = {"messages": talk("0 1 2 " * 12), "temperature": 0, "max_tokens": 12}
    with embedded(serving_model(), slots=4, context_length=512) as service:
        before = ask(service, body)[0]
        assert rested.wait(60)
        monkeypatch.setattr(batcher, "IDLE_SECONDS", 600.0)
        after, again = ask(service, body)[0], ask(service, body)[0]
    cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in (after, again)]
    assert cached == [0, after["usage"]["prompt_tokens"] - 1]
    assert before["choices"][0]["token_ids"] == after["choices"][0]["token_ids"] == again["choices"][0]["token_ids"]


def test_a_released_cache_takes_no_memory():
    """With 24 rows each layer has more than 32 MiB, which glibc never takes from memory that was freed before."""
    shape, process = load_checkpoint("nano").shape, psutil.Process()
    engine = Engine(shape, load_checkpoint("nano").weights, rows=24, context=8191)
    bytes_of_row = cache_bytes_per_row(shape, engine.context, 4)
    start = process.memory_info().rss
    for row in range(1, 8):
        engine.copy_prefix(0, row, engine.context)
    filled = process.memory_info().rss
    engine.release_cache()
    assert filled - start > 6 * bytes_of_row
    assert filled - process.memory_info().rss > 6 * bytes_of_row


def test_a_seeded_answer_does_not_depend_on_the_batch(pair):
    service, _ = pair
    body = {"messages": talk("the rate"), "seed": 7, "temperature": 1.3, "top_p": 0.9, "max_tokens": 40}
    others = [{"messages": talk(f"number {i}"), "temperature": 1.0, "max_tokens": 10 + 7 * i} for i in range(7)]
    alone = ask(service, body)[0]
    crowded = ask(service, *others[:3], body, *others[3:])[3]
    assert alone["choices"][0]["token_ids"] == crowded["choices"][0]["token_ids"]


def test_bfloat16_stays_near_float32_also_after_new_weights(serving_model):
    from transformers import AutoModelForCausalLM

    folder = serving_model(seed=5, tied=False)
    exact = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    models = {"junior": ModelConfig(path=str(folder), dtype="bfloat16"), "senior": ModelConfig(path=str(folder))}
    with embedded(models, slots=4, context_length=512) as service:
        assert {one["id"]: one["dtype"] for one in service.describe()} == {"junior": "bfloat16", "senior": "float32"}
        texts = ["the rate", "was lower " * 20, "p=0.01 " * 35, "?"]
        answers = ask(service, *[{"messages": talk(text), "seed": 1, "max_tokens": 30} for text in texts])
        service.load_weights("junior", folder, "junior@2")
        assert service.describe()[0]["dtype"] == "bfloat16"
    for answer in answers:
        _, expected = log_probs(exact, answer, answer["choices"][0])
        told = torch.tensor([one["logprob"] for one in answer["choices"][0]["logprobs"]["content"]])
        assert 0 < (told - expected).abs().mean() < 0.05
        assert (told - expected).abs().max() < 0.3


def test_requests_are_sampled_by_their_own_rules_and_otherwise_as_the_model_says(serving_model, tmp_path):
    shutil.copytree(serving_model(), tmp_path, dirs_exist_ok=True)
    (tmp_path / "generation_config.json").write_text('{"do_sample": true, "top_k": 1, "eos_token_id": 1}')
    body = {"messages": talk("the rate"), "seed": 3, "temperature": 1.5, "max_tokens": 30, "return_token_ids": True}

    def tokens(service, **fields):
        return ask(service, body | fields)[0]["choices"][0]["token_ids"]

    with embedded(tmp_path, slots=2) as own, embedded(serving_model(), slots=2) as off:
        greedy = tokens(off, temperature=0)
        assert tokens(own) == tokens(off, top_k=1) == tokens(off, min_p=1) == greedy
        assert tokens(own, top_k=0) == tokens(off) != greedy
        penalised = tokens(off, temperature=0, repetition_penalty=10)
        assert len(set(penalised)) > len(set(greedy))


class Cache:
    """What an engine's rows would hold if `RowTable`'s plans were carried out: a token list each."""

    def __init__(self, slots, spares):
        self.table = RowTable(slots, spares)
        self.rows = [[] for _ in range(slots + spares)]
        self.live = {}

    def admit(self, prompt):
        plan = self.table.place(prompt, self.live)
        assert plan.row < self.table.slots
        assert plan.row not in self.live
        assert plan.stash_to not in self.live
        if plan.stash_to is not None:
            self.rows[plan.stash_to] = list(self.rows[plan.row])
        if plan.copy_from is not None:
            self.rows[plan.row][: plan.reused] = self.rows[plan.copy_from][: plan.reused]
        assert self.rows[plan.row][: plan.reused] == prompt[: plan.reused]
        assert plan.reused < len(prompt)
        self.rows[plan.row] = list(prompt)
        self.live[plan.row] = prompt
        return plan

    def finish(self, row, generated):
        self.rows[row] = self.live.pop(row) + generated
        self.table.record(row, self.rows[row])

    def check(self):
        for row, tokens in enumerate(self.rows):
            history = self.table.history(row).tolist()
            assert tokens[: len(history)] == history


@settings(max_examples=150, deadline=None)
@given(
    slots=st.integers(1, 4),
    spares=st.integers(0, 3),
    moves=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(1, 20), st.booleans()), min_size=1, max_size=40
    ),
)
def test_histories_always_say_what_the_rows_hold(slots, spares, moves):
    cache = Cache(slots, spares)
    for family, shared, own, ends in moves:
        if len(cache.live) == slots or (ends and cache.live):
            cache.finish(next(iter(cache.live)), [500 + own] * (own % 5))
        cache.admit([family] * shared + [100 + own] * own)
        cache.check()


def test_prefixes_survive_in_spare_rows_and_batches_stay_short():
    cache = Cache(slots=2, spares=2)
    prompts = [[kind] * 50 for kind in (1, 2, 3, 4)]
    for prompt in prompts[:3]:
        assert cache.admit(prompt).row == 0
        cache.finish(0, [9])
    again = cache.admit([*prompts[0], 7])
    assert (again.row, again.reused) == (0, 50)
    following = cache.admit([*prompts[0], 7, 8])
    assert (following.row, following.reused, following.copy_from) == (1, 51, 0)


def test_a_prompt_seen_before_recomputes_only_its_last_token():
    cache = Cache(slots=1, spares=0)
    cache.admit([1] * 20)
    cache.finish(0, [2, 3])
    assert cache.admit([1] * 20).reused == 19
    cache.finish(0, [])
    assert cache.admit([1] * (MIN_REUSE - 1) + [5]).reused == 0
