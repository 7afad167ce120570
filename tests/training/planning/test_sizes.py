"""A model's numbers from its config.json: those of the model itself."""

import json

import pytest
from safetensors import safe_open

from chimera.core.errors import ConfigError
from chimera.serving.embedded.checkpoint import NANO, load_checkpoint
from training.planning.sizes import Architecture

TINY = {
    "vocab_size": 300, "hidden_size": 32, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip


def stored(folder):
    with safe_open(folder / "model.safetensors", "pt") as file:
        sizes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118  no mapping
    return sum(size[0] * (size[1] if len(size) > 1 else 1) for size in sizes)


def test_the_parameters_of_a_folder_are_those_in_its_weights(serving_model):
    for folder in (NANO, serving_model(seed=3), serving_model(seed=3, tied=False)):
        assert Architecture.read(folder).parameters == stored(folder)


@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("qwen2", {"tie_word_embeddings": True}),
        ("qwen3", {"tie_word_embeddings": False, "head_dim": 24}),
        ("llama", {"attention_bias": True}),
        ("mistral", {"head_dim": 16}),
    ],
)
def test_each_known_family_is_counted_as_transformers_and_peft_build_it(tmp_path, family, more):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForTokenClassification

    config = AutoConfig.for_model(family, **TINY, **more)
    config.save_pretrained(tmp_path)
    model = Architecture.read(tmp_path)
    with torch.device("meta"):
        actor = AutoModelForCausalLM.from_config(config)
        critic = AutoModelForTokenClassification.from_config(AutoConfig.for_model(family, **TINY, **more, num_labels=1))
        assert model.parameters == sum(one.numel() for one in actor.parameters())
        assert model.critic_parameters == sum(one.numel() for one in critic.parameters())
        adapted = get_peft_model(actor, LoraConfig(r=6, target_modules="all-linear", task_type="CAUSAL_LM"))
    trained = sum(one.numel() for one in adapted.parameters() if one.requires_grad)
    assert model.adapter_parameters(6) == trained
    assert model.adapter_parameters(0) == 0


def test_the_cache_is_that_of_the_embedded_server():
    from chimera.serving.embedded.decoding.engine import Engine, cache_bytes_per_row

    nano, model = load_checkpoint("nano"), Architecture.read(NANO)
    for number in (2, 4):
        assert model.cache_bytes(100, number) == cache_bytes_per_row(nano.shape, 100, number)
    engine = Engine(nano.shape, nano.weights, rows=3, context=100)
    assert 3 * model.cache_bytes(100) == engine._cache.nbytes


def test_a_model_that_is_not_known_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"config\.json does not tell the model's sizes"):
        Architecture.read(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**TINY, "model_type": "mamba"}))
    with pytest.raises(ConfigError, match=r"'mamba' is not known here: there are llama, mistral, qwen2"):
        Architecture.read(tmp_path)
