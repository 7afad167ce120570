"""Text that a grammar forces: same answers as token by token, in far fewer steps, with the same figures."""

import asyncio
import json
import shutil

import pytest
import torch
from embedded_kit import change, embedded, log_probs
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from agents.visit.prompting import schema_format
from chimera.serving.embedded.grammar import Grammars, allowed_tokens, schema_grammar
from chimera.serving.embedded.protocol import parse_request

SENTENCES = [
    f"In the {name} analysis, the rate was {10 + number} per cent lower in the treated group (p=0.0{number})."
    for number, name in enumerate(
        ["primary", "second", "third", "late", "early", "whole", "adjusted", "blind", "crude", "final"]
    )
]


@pytest.fixture(scope="module")
def folder(serving_model):
    return serving_model()


@pytest.fixture(scope="module")
def tokenizer(folder):
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def service(folder):
    with embedded(folder, slots=4, context_length=1200) as service:
        yield service


@pytest.fixture(scope="module")
def plain_model(folder):
    """The same weights in transformers."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def request(schema=None, **fields):
    form = {} if schema is None else {"response_format": schema_format("Any", schema)}
    asked = {"messages": [{"role": "user", "content": "the rate?"}], **form, **fields}
    return parse_request({"model": "junior", "return_token_ids": True, "seed": 1, **asked})


def ask(service, schema, **fields):
    return asyncio.run(service.complete(request(schema, **fields)))


def quoting(sentences, most=3):
    return {
        "type": "object",
        "properties": {
            "evidence": {"type": "array", "items": {"enum": sentences}, "minItems": 1, "maxItems": most},
            "claim": {"type": "string", "maxLength": 5},
            "answer": {"enum": ["yes", "no", "maybe"]},
        },
        "required": ["evidence", "claim", "answer"],
        "additionalProperties": False,
    }


def test_quoted_sentences_take_far_fewer_steps_than_tokens(service):
    before = service.counters()
    answer = ask(service, quoting(SENTENCES))
    after = service.counters()
    done = {name: after[name] - before[name] for name in after}
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert set(json.loads(answer["choices"][0]["message"]["content"])["evidence"]) <= set(SENTENCES)
    assert done["generated_tokens"] == answer["usage"]["completion_tokens"] > 60
    assert done["decode_steps"] <= done["generated_tokens"] - done["forced_tokens"]
    assert done["decode_steps"] < done["generated_tokens"] / 2


def test_log_probs_of_forced_tokens_are_the_models_own(service, plain_model):
    before = service.counters()["forced_tokens"]
    answer = ask(service, quoting(SENTENCES), logprobs=True, top_logprobs=2)
    forced = service.counters()["forced_tokens"] - before
    choice = answer["choices"][0]
    expected, chosen = log_probs(plain_model, answer, choice)
    ids, scored = choice["token_ids"], choice["logprobs"]["content"]
    assert [one["logprob"] for one in scored] == pytest.approx(chosen.tolist(), abs=1e-4)
    best = [[top["logprob"] for top in one["top_logprobs"]] for one in scored]
    assert torch.tensor(best) == pytest.approx(expected.topk(2).values, abs=1e-4)
    assert len(choice["sampled_logprobs"]) == len(ids)
    assert choice["sampled_logprobs"].count(0.0) >= forced > len(ids) / 2


def test_asking_for_log_probs_or_company_in_the_batch_changes_no_answer(service):
    schema = quoting(SENTENCES)
    alone = [ask(service, schema, seed=seed)["choices"][0]["token_ids"] for seed in range(6)]
    assert [ask(service, schema, seed=seed, logprobs=True)["choices"][0]["token_ids"] for seed in range(6)] == alone

    async def together():
        requests = [request(schema, seed=seed) for seed in range(6)]
        requests += [request(seed=seed, max_tokens=30) for seed in range(3)]
        return await asyncio.gather(*map(service.complete, requests))

    assert [one["choices"][0]["token_ids"] for one in asyncio.run(together())][:6] == alone


def test_limit_and_stop_string_hold_within_forced_text(service):
    schema = quoting(SENTENCES[:1], most=1)
    whole = ask(service, schema)["choices"][0]
    for limit in (1, 2, 3, 9, 20):
        for wanted in ({}, {"logprobs": True}):
            cut = ask(service, schema, max_tokens=limit, **wanted)
            assert cut["choices"][0]["token_ids"] == whole["token_ids"][:limit]
            assert cut["choices"][0]["finish_reason"] == "length"
            assert cut["usage"]["completion_tokens"] == limit
    stopped = ask(service, schema, stop="treated")["choices"][0]
    assert stopped["message"]["content"] == whole["message"]["content"].partition("treated")[0]
    assert stopped["finish_reason"] == "stop"


def test_forced_text_has_the_tokens_that_encoding_it_gives(service, tokenizer):
    schema = {"type": "array", "items": {"enum": SENTENCES[:1]}, "minItems": 2, "maxItems": 2}
    choice = ask(service, schema)["choices"][0]
    text = json.dumps(SENTENCES[:1] * 2, separators=(",", ":"))
    assert choice["message"]["content"] == text
    expected = tokenizer.encode(text + "<|im_end|>", add_special_tokens=False).ids
    assert choice["token_ids"] == expected


AWKWARD = ["the tag <|im_end|> ends a turn", "<tool_call> is a tag", "e\u0301 is decomposed", 'a "quote" and a \\']


@pytest.mark.parametrize("sentence", AWKWARD)
def test_sentences_that_a_tokenizer_would_change_are_quoted_as_they_are(folder, tmp_path, sentence):
    """The bundled model's tokenizer writes Unicode in its composed form; every one reads control tokens in text."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    change(tmp_path / "tokenizer.json", normalizer={"type": "NFC"})
    with embedded(tmp_path, slots=2, context_length=600) as service:
        choice = ask(service, quoting([sentence, SENTENCES[0]], most=2))["choices"][0]
        alone = ask(service, {"enum": [sentence]})["choices"][0]
    assert set(json.loads(choice["message"]["content"])["evidence"]) <= {sentence, SENTENCES[0]}
    assert json.loads(alone["message"]["content"]) == sentence


def token_by_token(model, grammars, prompt, schema):
    """The greedy answer to `prompt`, every token by a forward pass of its own under the grammar's mask."""
    matcher = grammars.matcher(schema_grammar(schema), "response_format")
    ids = list(prompt)
    while len(ids) < len(prompt) + 300:
        with torch.inference_mode():
            logits = model(torch.tensor([ids])).logits[0, -1]
        allowed = torch.from_numpy(allowed_tokens([matcher], len(logits)))[0]
        token = int(logits.masked_fill(~allowed, float("-inf")).argmax())
        if token == model.config.eos_token_id:
            break
        ids.append(token)
        assert matcher.consume_token(token)
    return b"".join(grammars.token_bytes[token] for token in ids[len(prompt) :]).decode("utf-8", "replace")


def schemas():
    words = st.lists(st.sampled_from([*SENTENCES[:4], "yes", 'q"', "é", "{", "the rate"]), min_size=1, unique=True)
    leaves = st.one_of(
        words.map(lambda some: {"enum": some}),
        st.just({"type": "boolean"}),
        st.just({"type": "string", "maxLength": 4}),
        st.just({"type": "integer", "minimum": -20, "maximum": 300}),
    )
    arrays = st.builds(
        lambda items, low: {"type": "array", "items": items, "minItems": low, "maxItems": low + 1},
        leaves,
        st.integers(0, 2),
    )
    keys = st.lists(st.sampled_from(["evidence", "b c", "ü", "x_1"]), min_size=1, max_size=3, unique=True)
    return st.builds(
        lambda names, one, other: {
            "type": "object",
            "properties": {name: one if place % 2 else other for place, name in enumerate(names)},
            "required": names,
            "additionalProperties": False,
        },
        keys,
        leaves,
        arrays,
    )


@settings(max_examples=15, deadline=None)
@given(schema=schemas(), question=st.sampled_from(["the rate?", "was it lower", "1 2 3"]))
def test_greedy_text_is_what_token_by_token_decoding_gives(service, plain_model, tokenizer, schema, question):
    messages = [{"role": "user", "content": question}]
    answer = ask(service, schema, messages=messages, temperature=0, max_tokens=300)
    grammars = Grammars(tokenizer, 512, [plain_model.config.eos_token_id])
    expected = token_by_token(plain_model, grammars, answer["prompt_token_ids"], schema)
    assert answer["choices"][0]["message"]["content"] == expected
