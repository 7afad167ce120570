"""The engine, its cache bookkeeping and the sampler, against Hugging Face and against their own definitions."""

import asyncio
import json
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from message_kit import refused

from chimera.config.sections.models import ModelConfig, ServingConfig
from chimera.core.errors import ConfigError
from chimera.serving.embedded.checkpoint import NANO, check_checkpoint, load_checkpoint
from chimera.serving.embedded.decoding import batcher
from chimera.serving.embedded.decoding.rows import MIN_REUSE, RowTable
from chimera.serving.embedded.decoding.sampling import choose, nucleus, penalise
from chimera.serving.embedded.protocol import parse_request
from chimera.serving.embedded.service import Service

VARIANTS = [{"tied": True, "kv_heads": 2}, {"tied": False, "kv_heads": 1}, {"tied": False, "kv_heads": 4}]


@pytest.fixture(scope="module", params=VARIANTS, ids=["tied", "untied-mqa", "untied-mha"])
def pair(request, serving_model):
    """The same random model behind our server and in transformers."""
    from transformers import AutoModelForCausalLM

    folder = serving_model(**request.param)
    service = Service({"junior": ModelConfig(path=str(folder))}, ServingConfig(slots=4, context_length=512, answers=0))
    yield service, AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    service.close()


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
        prompt, generated = answer["prompt_token_ids"], answer["choices"][0]["token_ids"]
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + generated])).logits[0, len(prompt) - 1 : -1]
        expected = torch.log_softmax(logits, -1)
        content = answer["choices"][0]["logprobs"]["content"]
        chosen = expected.gather(1, torch.tensor(generated)[:, None])[:, 0]
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


def test_an_idle_model_gives_its_cache_back_and_answers_as_before(pair, monkeypatch):
    service, model = pair
    rested, release = threading.Event(), batcher.release_memory
    body = {"messages": talk("0 1 2 " * 12), "temperature": 0, "max_tokens": 12}
    ask(service, body)
    monkeypatch.setattr(batcher, "release_memory", lambda: (release(), rested.set()))
    monkeypatch.setattr(batcher, "IDLE_SECONDS", 0.01)
    first = ask(service, body)[0]
    assert rested.wait(60)
    monkeypatch.setattr(batcher, "IDLE_SECONDS", 600.0)
    again = ask(service, body)[0]
    assert first["choices"][0]["token_ids"] == again["choices"][0]["token_ids"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert_greedy(model, again, 12)


def test_a_seeded_answer_does_not_depend_on_the_batch(pair):
    service, _ = pair
    body = {"messages": talk("the rate"), "seed": 7, "temperature": 1.3, "top_p": 0.9, "max_tokens": 40}
    others = [{"messages": talk(f"number {i}"), "temperature": 1.0, "max_tokens": 10 + 7 * i} for i in range(7)]
    alone = ask(service, body)[0]
    crowded = ask(service, *others[:3], body, *others[3:])[3]
    assert alone["choices"][0]["token_ids"] == crowded["choices"][0]["token_ids"]
    different = ask(service, body | {"seed": 8})[0]
    assert alone["choices"][0]["token_ids"] != different["choices"][0]["token_ids"]


def test_bfloat16_stays_near_float32_also_after_new_weights(serving_model):
    from transformers import AutoModelForCausalLM

    folder = serving_model(seed=5, tied=False)
    exact = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    models = {"junior": ModelConfig(path=str(folder), dtype="bfloat16"), "senior": ModelConfig(path=str(folder))}
    service = Service(models, ServingConfig(slots=4, context_length=512, answers=0))
    try:
        assert {one["id"]: one["dtype"] for one in service.describe()} == {"junior": "bfloat16", "senior": "float32"}
        texts = ["the rate", "was lower " * 20, "p=0.01 " * 35, "?"]
        answers = ask(service, *[{"messages": talk(text), "seed": 1, "max_tokens": 30} for text in texts])
        service.load_weights("junior", folder, "junior@2")
        assert service.describe()[0]["dtype"] == "bfloat16"
    finally:
        service.close()
    for answer in answers:
        prompt, generated = answer["prompt_token_ids"], answer["choices"][0]["token_ids"]
        with torch.inference_mode():
            logits = exact(torch.tensor([prompt + generated])).logits[0, len(prompt) - 1 : -1]
        expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(generated)[:, None])[:, 0]
        told = torch.tensor([one["logprob"] for one in answer["choices"][0]["logprobs"]["content"]])
        assert 0 < (told - expected).abs().mean() < 0.05
        assert (told - expected).abs().max() < 0.3


def test_weights_larger_than_memory_are_refused_before_they_are_read(serving_model, monkeypatch):
    from types import SimpleNamespace

    folder = serving_model(seed=5, tied=False)
    size = sum(value.numel() for value in load_checkpoint(str(folder)).weights.values())
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=3 * size))
    with refused(ConfigError, "model.safetensors", "float32", "models.*.dtype=bfloat16", "kind: endpoint"):
        load_checkpoint(str(folder))
    assert load_checkpoint(str(folder), "bfloat16").weights["model.norm.weight"].dtype == torch.bfloat16


# --- cache rows


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


# --- sampling


def sample(logits, temperature, top_p, uniform, allowed=None):
    return choose(
        torch.tensor(logits),
        torch.tensor(temperature),
        None if top_p is None else torch.tensor(top_p),
        torch.tensor(uniform, dtype=torch.float64),
        None if allowed is None else torch.tensor(allowed),
        want_log_probs=True,
    )


def test_tokens_come_in_the_proportions_of_their_probabilities():
    logits = [0.3, -1.0, 2.0, 0.0]
    uniform = (np.arange(4000) + 0.5) / 4000
    choice = sample([logits] * 4000, [0.7] * 4000, None, uniform)
    expected = torch.softmax(torch.tensor(logits) / 0.7, -1)
    counted = torch.bincount(choice.tokens, minlength=4) / 4000
    assert counted.tolist() == pytest.approx(expected.tolist(), abs=1e-3)
    assert choice.log_probs is not None
    assert choice.log_probs[0].exp().tolist() == pytest.approx(expected.tolist(), abs=1e-5)


@settings(max_examples=100, deadline=None)
@given(
    logits=st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=12),
    top_p=st.floats(0.01, 1),
    uniform=st.floats(0, 1, exclude_max=True),
    temperature=st.floats(0.1, 2),
    data=st.data(),
)
def test_sampling_respects_mask_and_nucleus(logits, top_p, uniform, temperature, data):
    allowed = data.draw(st.lists(st.booleans(), min_size=len(logits), max_size=len(logits)).filter(any))
    choice = sample([logits] * 2, [temperature, 0.0], [top_p, top_p], [uniform] * 2, [allowed] * 2)
    drawn, greedy = choice.tokens.tolist()
    assert allowed[drawn]
    assert allowed[greedy]
    best = max(value for value, ok in zip(logits, allowed, strict=True) if ok)
    assert logits[greedy] == best
    masked = torch.tensor(logits).masked_fill(~torch.tensor(allowed), float("-inf"))
    probabilities = torch.softmax(masked / temperature, -1)
    more_likely = probabilities[probabilities > probabilities[drawn]].sum()
    assert float(more_likely) < top_p + 1e-5
    assert choice.log_probs is not None
    assert float(choice.log_probs[0, drawn]) > float("-inf")
    assert float(choice.log_probs[1, greedy]) == 0.0


def test_nucleus_keeps_the_smallest_sufficient_set():
    kept = nucleus(torch.tensor([[0.1, 0.5, 0.25, 0.15]] * 3), torch.tensor([0.4, 0.7, 1.0]))
    assert kept.tolist() == pytest.approx(
        np.array([[0, 0.5, 0, 0], [0, 0.5, 0.25, 0], [0.1, 0.5, 0.25, 0.15]]), abs=1e-6
    )


@settings(max_examples=100, deadline=None)
@given(
    logits=st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=12, unique=True),
    top_k=st.integers(1, 12),
    min_p=st.floats(0, 1),
    uniform=st.floats(0, 1, exclude_max=True),
)
def test_a_drawn_token_is_among_the_likeliest(logits, top_k, min_p, uniform):
    one, none = torch.ones(1), torch.tensor([uniform], dtype=torch.float64)
    rules = {"top_k": torch.tensor([top_k]), "min_p": torch.tensor([min_p])}
    choice = choose(torch.tensor([logits]), one, None, none, None, want_log_probs=True, **rules)
    probabilities = torch.softmax(torch.tensor(logits), -1)
    drawn = probabilities[choice.tokens[0]]
    assert int((probabilities > drawn).sum()) < top_k
    assert float(drawn) >= min_p * float(probabilities.max()) - 1e-6
    assert choice.log_probs is not None
    assert float(choice.log_probs.exp().sum()) == pytest.approx(1, abs=1e-5)


def test_tokens_that_were_written_become_less_likely():
    assert penalise(torch.tensor([2.0, -2.0, 2.0, 0.0]), torch.tensor([0, 1]), 2.0).tolist() == [1.0, -4.0, 2.0, 0.0]


def test_requests_are_sampled_by_their_own_rules_and_otherwise_as_the_model_says(serving_model, tmp_path):
    for file in serving_model().iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "generation_config.json").write_text('{"do_sample": true, "top_k": 1, "eos_token_id": 1}')
    own, off = (
        Service({"junior": ModelConfig(path=str(folder))}, ServingConfig(slots=2, answers=0))
        for folder in (tmp_path, serving_model())
    )
    body = {"messages": talk("the rate"), "seed": 3, "temperature": 1.5, "max_tokens": 30, "return_token_ids": True}

    def tokens(service, **fields):
        return ask(service, body | fields)[0]["choices"][0]["token_ids"]

    try:
        greedy = tokens(off, temperature=0)
        assert tokens(own) == tokens(off, top_k=1) == tokens(off, min_p=1) == greedy
        assert tokens(own, top_k=0) == tokens(off) != greedy
        penalised = tokens(off, temperature=0, repetition_penalty=10)
        assert len(set(penalised)) > len(set(greedy))
    finally:
        own.close()
        off.close()


@pytest.mark.parametrize("settings_of_makers", [{"top_k": "many"}, {"temperature": -1}])
def test_generation_settings_that_mean_nothing_are_refused(serving_model, tmp_path, settings_of_makers):
    for file in serving_model().iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "generation_config.json").write_text(json.dumps({"do_sample": True, **settings_of_makers}))
    with refused(ConfigError, "generation_config.json", *settings_of_makers):
        load_checkpoint(str(tmp_path))


# --- folders that cannot be served


def edit_config(**changes):
    def edit(folder):
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return edit


def remove(name):
    return lambda folder: (folder / name).unlink()


def overwrite(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def truncate(name):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-100])


def edit_weight(name, change):
    """One tensor is another, or is missing where `change` is None."""

    def edit(folder):
        from safetensors.torch import load_file, save_file

        weights = load_file(folder / "model.safetensors")
        one = weights.pop(name)
        save_file(weights | ({} if change is None else {name: change(one)}), folder / "model.safetensors")

    return edit


def edit_tokenizer_config(folder):
    (folder / "tokenizer_config.json").write_text("{}")
    edit_config(eos_token_id=None)(folder)


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (edit_config(model_type="gpt2"), ("model_type 'gpt2'", "kind: endpoint")),
        (edit_config(rope_scaling={"rope_type": "yarn", "factor": 4.0}), ("'yarn'", "kind: endpoint")),
        (edit_config(use_sliding_window=True), "sliding-window"),
        (edit_config(hidden_act="gelu"), "'gelu'"),
        (edit_config(num_hidden_layers=3), "model.layers.2"),
        (edit_config(hidden_size=64), "config.json says"),
        (edit_config(vocab_size=300), "only 300"),
        (remove("config.json"), "config.json is missing"),
        (overwrite("config.json", b"{"), "not valid JSON"),
        (overwrite("config.json", b"[]"), ("config.json", "not a list")),
        (remove("tokenizer.json"), "no tokenizer.json"),
        (remove("chat_template.jinja"), "no chat template"),
        (remove("model.safetensors"), "*.safetensors"),
        (overwrite("model.safetensors", b"cut off"), "model.safetensors cannot be read"),
        (edit_tokenizer_config, "names no eos token"),
        (edit_config(num_hidden_layers=0), "num_hidden_layers is 0"),
        (edit_config(num_hidden_layers=10**9), "num_hidden_layers is 1000000000"),
        (edit_config(num_hidden_layers=9999), "model.layers.2"),
        (edit_config(num_attention_heads=None), "num_attention_heads is None"),
        (edit_config(num_attention_heads=0), "num_attention_heads is 0"),
        (edit_config(num_key_value_heads=3), "do not fit each other"),
        (edit_config(hidden_size="wide"), "hidden_size is wide"),
        (edit_config(vocab_size=10**12), "vocab_size is 1000000000000"),
        (edit_config(vocab_size=513), ("embed_tokens.weight", "(512, 32)", "(513, 32)")),
        (edit_config(max_position_embeddings=-1), "max_position_embeddings is -1"),
        (edit_config(rope_theta=float("nan")), "rope_theta is nan"),
        (edit_config(eos_token_id=10**6), "names '1000000' as eos token"),
        (edit_config(quantization_config={"bits": 4}), "quantised"),
        (overwrite("config.json", b"{}"), "model_type None"),
        (overwrite("config.json", b"[" * 10**5), "nested too deeply"),
        (overwrite("config.json", b"\xff\xfe"), "not valid JSON"),
        (overwrite("tokenizer.json", b"{}"), "tokenizer.json cannot be read"),
        (overwrite("tokenizer.json", b"\xff"), "tokenizer.json cannot be read"),
        (overwrite("chat_template.jinja", b"\xff"), "chat_template.jinja cannot be read"),
        (edit_weight("model.norm.weight", lambda one: one.fill_(float("nan"))), ("norm.weight", "not finite")),
        (edit_weight("model.norm.weight", lambda one: one.int()), ("norm.weight", "torch.int32")),
        (edit_weight("model.layers.1.mlp.up_proj.weight", lambda one: one[1:]), ("up_proj.weight", "(47, 32)")),
        (edit_weight("model.layers.1.mlp.gate_proj.weight", lambda one: one.sum()), ("gate_proj.weight", "()")),
        (edit_weight("model.layers.1.mlp.down_proj.weight", None), "down_proj"),
        (truncate("model.safetensors"), "model.safetensors cannot be read"),
        (overwrite("adapter_config.json", b"{}"), "holds an adapter"),
    ],
)
def test_a_folder_that_cannot_be_served_is_refused_with_the_reason(serving_model, tmp_path, break_it, message):
    for file in serving_model().iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    load_checkpoint(str(tmp_path))
    break_it(tmp_path)
    with refused(ConfigError, message):
        load_checkpoint(str(tmp_path))


def test_a_path_that_is_nowhere_is_refused(monkeypatch):
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    def offline(name, **_):
        raise LocalEntryNotFoundError(f"cannot reach the hub for {name}")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with refused(ConfigError, "models.*.path", "'someone/model'", "hub", "'nano'"):
        load_checkpoint("someone/model")
    with refused(ConfigError, "models.*.path", "'./nowhere'", "config.json"):
        load_checkpoint("./nowhere")
    with refused(ConfigError, "models.*.path", __file__, "config.json"):
        load_checkpoint(__file__)


def test_a_hub_name_is_served_under_its_own_name(serving_model, monkeypatch):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **_: str(serving_model()))
    assert load_checkpoint("someone/model").name == "model"


@pytest.mark.skipif(not (NANO / "model.safetensors").is_file(), reason="the bundled model has not been made yet")
def test_the_bundled_model_loads_and_can_call_tools():
    from chimera.serving.embedded.completion import TextSide

    checkpoint = load_checkpoint("nano")
    assert checkpoint.name == "nano"
    assert TextSide(checkpoint, ServingConfig()).chat.tool_style is not None
    assert sum(file.stat().st_size for file in NANO.glob("*.safetensors")) <= 10 * 2**20


def test_rope_theta_is_read_in_both_forms(serving_model, tmp_path):
    for file in serving_model().iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    edit_config(rope_theta=None, rope_parameters={"rope_theta": 5e5, "rope_type": "default"})(tmp_path)
    assert load_checkpoint(str(tmp_path)).shape.rope_theta == 5e5
    edit_config(rope_theta=2e4, rope_parameters=None)(tmp_path)
    assert load_checkpoint(str(tmp_path)).shape.rope_theta == 2e4


def test_weights_may_be_sharded(serving_model, tmp_path):
    from safetensors.torch import load_file, save_file

    for file in serving_model().iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    whole = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    names = list(whole)
    for index, part in enumerate((names[:9], names[9:])):
        save_file({name: whole[name] for name in part}, tmp_path / f"model-{index}.safetensors")
    loaded = load_checkpoint(str(tmp_path)).weights
    assert all(torch.equal(loaded[name], tensor) for name, tensor in whole.items())


# --- tokenizers and chat templates that are misread


def edit_tokenizer(**changes):
    def change(folder):
        file = folder / "tokenizer.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return change


BYTE_FALLBACK = {
    "type": "Sequence",
    "decoders": [
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    ],
}
"""What transformers 5.10 makes of SmolLM2's GGUF file."""


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (edit_tokenizer(decoder=BYTE_FALLBACK), ("tokenizer.json", "decoder")),
        (edit_tokenizer(normalizer={"type": "Lowercase"}, pre_tokenizer=None), "tokenizer.json"),
        (edit_config(eos_token_id=0), ("'<|im_end|>'", "'<|im_start|>'", "generation_config.json")),
        (overwrite("chat_template.jinja", b"{{ raise_exception('no chat') }}"), ("chat template", "no chat")),
        (overwrite("chat_template.jinja", b"{% if %}"), "chat template"),
    ],
)
def test_a_model_that_is_misread_is_refused_before_anything_starts(serving_model, tmp_path, break_it, message):
    for file in serving_model().iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "tokenizer_config.json").unlink()  # It names the end token too.
    assert check_checkpoint(str(tmp_path), "float32") == []
    break_it(tmp_path)
    with refused(ConfigError, str(tmp_path), message):
        check_checkpoint(str(tmp_path), "float32")
    with refused(ConfigError, str(tmp_path), message):
        Service({"junior": ModelConfig(path=str(tmp_path))}, ServingConfig())
