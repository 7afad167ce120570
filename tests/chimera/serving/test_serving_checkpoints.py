"""Folders as checkpoints: what is read from them, and which are refused with what reason."""

import json
import shutil

import pytest
import torch
from embedded_kit import change
from message_kit import refused

from chimera.config.sections.bundled import NANO
from chimera.config.sections.models import ModelConfig, ServingConfig
from chimera.core.errors import ConfigError
from chimera.serving.embedded.checkpoint import check_checkpoint, load_checkpoint
from chimera.serving.embedded.service import Service


def test_weights_larger_than_memory_are_refused_before_they_are_read(serving_model, monkeypatch, tmp_path):
    from types import SimpleNamespace

    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(serving_model(seed=5, tied=False), tmp_path / "model")
    size = sum(value.numel() for value in load_checkpoint(str(folder)).weights.values())
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=3 * size))
    with refused(ConfigError, folder, "float32", "models.*.dtype=bfloat16", "kind: endpoint"):
        load_checkpoint(str(folder))
    whole = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    for number, name in enumerate(whole):  # Each part alone would fit.
        save_file({name: whole[name]}, folder / f"model-{number}.safetensors")
    for refuse in (check_checkpoint, load_checkpoint):
        with refused(ConfigError, folder, "float32"):
            refuse(str(folder), "float32")
    assert load_checkpoint(str(folder), "bfloat16").weights["model.norm.weight"].dtype == torch.bfloat16


@pytest.mark.parametrize("settings_of_makers", [{"top_k": "many"}, {"temperature": -1}])
def test_generation_settings_that_mean_nothing_are_refused(serving_model, tmp_path, settings_of_makers):
    shutil.copytree(serving_model(), tmp_path, dirs_exist_ok=True)
    (tmp_path / "generation_config.json").write_text(json.dumps({"do_sample": True, **settings_of_makers}))
    with refused(ConfigError, "generation_config.json", *settings_of_makers):
        load_checkpoint(str(tmp_path))


def edit_config(**changes):
    return lambda folder: change(folder / "config.json", **changes)


def remove(name):
    return lambda folder: (folder / name).unlink()


def overwrite(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def truncate(name):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-100])


def edit_weight(name, another):
    """One tensor is another, or is missing where `another` is None."""

    def edit(folder):
        from safetensors.torch import load_file, save_file

        weights = load_file(folder / "model.safetensors")
        one = weights.pop(name)
        save_file(weights | ({} if another is None else {name: another(one)}), folder / "model.safetensors")

    return edit


def edit_tokenizer_config(folder):
    (folder / "tokenizer_config.json").write_text("{}")
    edit_config(eos_token_id=None)(folder)


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (edit_config(model_type="gpt2"), ("holds 'gpt2'", "kind: endpoint")),
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
        (overwrite("config.json", b"{}"), "holds None"),
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
    shutil.copytree(serving_model(), tmp_path, dirs_exist_ok=True)
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
    shutil.copytree(serving_model(), tmp_path, dirs_exist_ok=True)
    edit_config(rope_theta=None, rope_parameters={"rope_theta": 5e5, "rope_type": "default"})(tmp_path)
    assert load_checkpoint(str(tmp_path)).shape.rope_theta == 5e5
    edit_config(rope_theta=2e4, rope_parameters=None)(tmp_path)
    assert load_checkpoint(str(tmp_path)).shape.rope_theta == 2e4


def test_weights_may_be_sharded(serving_model, tmp_path):
    from safetensors.torch import load_file, save_file

    shutil.copytree(serving_model(), tmp_path, dirs_exist_ok=True)
    whole = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    names = list(whole)
    for index, part in enumerate((names[:9], names[9:])):
        save_file({name: whole[name] for name in part}, tmp_path / f"model-{index}.safetensors")
    loaded = load_checkpoint(str(tmp_path)).weights
    assert all(torch.equal(loaded[name], tensor) for name, tensor in whole.items())


def edit_tokenizer(**changes):
    return lambda folder: change(folder / "tokenizer.json", **changes)


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
        (overwrite("chat_template.jinja", b"{% if %}"), "its chat template is broken"),
    ],
)
def test_a_model_that_is_misread_is_refused_before_anything_starts(serving_model, tmp_path, break_it, message):
    shutil.copytree(serving_model(), tmp_path, dirs_exist_ok=True)
    (tmp_path / "tokenizer_config.json").unlink()  # It names the end token too.
    assert check_checkpoint(str(tmp_path), "float32") == []
    break_it(tmp_path)
    with refused(ConfigError, str(tmp_path), message):
        check_checkpoint(str(tmp_path), "float32")
    with refused(ConfigError, str(tmp_path), message):
        Service({"junior": ModelConfig(path=str(tmp_path))}, ServingConfig())
