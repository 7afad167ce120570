"""Llama and Qwen3 models behind the server, beside transformers: each path of the engine, float32 and bfloat16."""

import asyncio
import copy
import json
from types import SimpleNamespace

import pytest
import torch
from embedded_kit import change, embedded, log_probs
from message_kit import refused
from shape_kit import OTHERS, make_shape

from chimera.core.errors import ConfigError
from chimera.serving.embedded.checkpoint import load_checkpoint
from chimera.serving.embedded.decoding.engine import Chunk, Engine, Singles
from chimera.serving.embedded.decoding.matrices import BLOCK, Matrices
from chimera.serving.embedded.protocol import parse_request


@pytest.fixture(scope="module", params=OTHERS)
def other(request, serving_model, tmp_path_factory):
    """A folder, and its model in transformers."""
    from transformers import AutoModelForCausalLM

    folder = make_shape(tmp_path_factory.mktemp(request.param), request.param, serving_model())
    return SimpleNamespace(
        folder=folder, model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    )


def logits_of(model, tokens):
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0]


def numbers(seed, count):
    return torch.randint(0, 400, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def through_all_paths(engine, first, second):
    """Logits at places of both sequences, by a chunk, a reused prefix in another row, and single tokens."""
    _, (scored,) = engine.forward(Singles(), [Chunk(0, first[:90], 0, scored=90)])
    engine.copy_prefix(0, 1, 60)
    singles, (rest,) = engine.forward(Singles([first[90]], [90], 91), [Chunk(1, second[60:100], 60, scored=40)])
    both, _ = engine.forward(Singles([first[91], second[100]], [91, 100], 101), [])
    return torch.cat([scored, singles, both[:1]]), torch.cat([rest, both[1:]])


def test_logits_equal_those_of_transformers(other):
    first = numbers(1, 92)
    second = first[:60] + numbers(2, 41)
    checkpoint = load_checkpoint(str(other.folder))
    engine = Engine(checkpoint.shape, checkpoint.weights, rows=3, context=120)
    assert checkpoint.weights == {}
    found, other_found = through_all_paths(engine, first, second)
    assert torch.allclose(found, logits_of(other.model, first), atol=1e-4)
    assert torch.allclose(other_found, logits_of(other.model, second)[60:], atol=1e-4)


def test_weights_in_bfloat16_give_the_logits_of_rounded_weights(other):
    """Where the processor multiplies bfloat16 itself, all else is rounded too."""
    first = numbers(1, 92)
    second = first[:60] + numbers(2, 41)
    rounded = copy.deepcopy(other.model)
    for value in rounded.parameters():
        value.data = value.data.bfloat16().float()
    expected = logits_of(rounded, first)
    for computed in (torch.float32, torch.bfloat16):
        checkpoint = load_checkpoint(str(other.folder), "bfloat16")
        engine = Engine(checkpoint.shape, checkpoint.weights, rows=3, context=120, dtype=computed)
        assert engine._layers[0].down.dtype == torch.bfloat16
        apart = (through_all_paths(engine, first, second)[0] - expected).abs()
        if computed == torch.float32:
            assert apart.max() < 1e-4
        else:
            assert 0 < apart.mean() < 0.02 * expected.abs().max()


def test_a_whole_service_answers_with_the_log_probs_of_transformers(other):
    """Prompts with shared beginnings, several choices of one prompt, a schema, and the same weights again."""
    talk = [{"role": "system", "content": "You are the Geneticist."}]
    schema = {"type": "object", "properties": {"answer": {"enum": ["yes", "no"]}}, "required": ["answer"]}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema | {"additionalProperties": False}}}
    bodies = [
        {"n": 3, "messages": [*talk, {"role": "user", "content": "the rate was lower " * 9}]},
        {"messages": [*talk, {"role": "user", "content": "the rate was lower " * 9 + "?"}]},
        {"messages": [*talk, {"role": "user", "content": "yes"}], "response_format": form},
    ]
    base = {"model": "junior", "return_token_ids": True, "logprobs": True, "seed": 1, "max_tokens": 24}

    async def ask():
        return await asyncio.gather(*[service.complete(parse_request(base | body)) for body in bodies])

    with embedded(other.folder, slots=4, context_length=512) as service:
        answers = asyncio.run(ask())
        service.load_weights("junior", other.folder)
        answers += asyncio.run(ask())
    assert json.loads(answers[2]["choices"][0]["message"]["content"])["answer"] in ("yes", "no")
    for answer in answers:
        for choice in answer["choices"]:
            _, expected = log_probs(other.model, answer, choice)
            told = [one["logprob"] for one in choice["logprobs"]["content"]]
            assert told == pytest.approx(expected.tolist(), abs=1e-4)


@pytest.mark.parametrize("tokens", [1, 7, 80])
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_a_product_by_blocks_is_the_product(tokens, stored):
    torch.manual_seed(0)
    weight = torch.randn(2 * BLOCK // 512 + 3, 512).to(stored)
    x, bias = torch.randn(tokens, 512), torch.randn(len(weight))
    matrices = Matrices(torch.float32)
    expected = torch.nn.functional.linear(x, weight.float(), bias)
    assert torch.allclose(matrices.product(x, weight, bias), expected, atol=1e-3)
    small = torch.randn(5, 512).to(stored)
    assert torch.equal(matrices.product(x, small), torch.nn.functional.linear(x, small.float()))


@pytest.mark.parametrize("tokens", [1, 7, 80])
def test_a_prepared_matrix_gives_the_same_product(tokens):
    """In bfloat16; where the processor does not multiply it, nothing is prepared."""
    torch.manual_seed(0)
    weight = torch.randn(1030, 512).bfloat16()
    x, bias = torch.randn(tokens, 512).bfloat16(), torch.randn(1030).bfloat16()
    matrices = Matrices(torch.bfloat16)
    with torch.inference_mode():
        found = matrices.product(x, matrices.prepared(weight), bias)
    assert torch.allclose(found.float(), torch.nn.functional.linear(x, weight, bias).float(), atol=0.3, rtol=0.01)
    assert torch.equal(matrices.prepared(weight.float()), weight.float())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gemma3"}, ("Llama, Qwen2, Qwen3", "'gemma3'", "vLLM", "llama.cpp's server", "endpoint")),
        ({"mlp_bias": True}, "biases in its feed-forward"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "'yarn'"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor"),
        ({"rope_parameters": OTHERS["llama"]["rope_parameters"] | {"factor": -1}}, "factor is -1"),
        ({"rope_parameters": OTHERS["llama"]["rope_parameters"] | {"high_freq_factor": 1}}, "low_freq_factor"),
        ({"attention_bias": True}, "q_proj.bias"),
        ({"head_dim": 8}, ("q_proj.weight", "(64, 32)")),
        ({"model_type": "qwen3"}, "'llama3'"),
    ],
)
def test_what_the_engine_does_not_compute_is_refused(serving_model, tmp_path, changes, message):
    folder = make_shape(tmp_path, "llama", serving_model())
    change(folder / "config.json", **changes)
    with refused(ConfigError, message):
        load_checkpoint(str(folder))
