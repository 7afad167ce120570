"""Writes the model folder of a GGUF file: its weights as safetensors, its tokenizer and chat template, its settings.

Weights become bfloat16: it rounds by 0.4 %, quantised weights were rounded by several per cent before, and float32
would take twice the disk. llama.cpp stores a Llama model's queries and keys with the halves of each head interleaved;
here they get transformers' order back.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chimera.core.errors import ConfigError
from chimera.serving.embedded.shapes import ELSEWHERE, FAMILIES, RopeScaling, Shape, expected_tensors, read_shape
from chimera.serving.embedded.sources.cache import cached
from chimera.serving.embedded.sources.vocabulary import read_tokenizer

if TYPE_CHECKING:
    from gguf import ReaderTensor

ROPE_FACTORS = "rope_freqs.weight"
"""The tensor with which llama.cpp keeps Llama 3's scaling of rotary positions: a divisor of each frequency."""
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""The scaling of all Llama 3 models beyond its factor, which a GGUF file does not name."""
MARKS = ("bos", "eos", "unknown", "padding")
MAGIC = b"GGUF"
FORMAT = 1
"""Of converted folders. Raise it when a conversion gives another folder than before."""


def is_gguf(file: Path) -> bool:
    """True if `file` begins as GGUF files do, whatever its name ends with."""
    try:
        with file.open("rb") as opened:
            return opened.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def gguf_folder(file: Path) -> Path:
    """The model folder of a GGUF file, in the user's cache; made at the first use. Raises ConfigError as `convert`."""
    state, place = file.stat(), file.resolve()
    # Reading all of a large file to hash it would take a minute at each start.
    mark = f"{place} {state.st_size} {state.st_mtime_ns} {FORMAT}"
    return cached(f"{file.stem}-{hashlib.sha256(mark.encode()).hexdigest()[:12]}", lambda folder: convert(file, folder))


def convert(file: Path, folder: Path) -> None:
    """Write the model in `file` to `folder`, which exists, as transformers and the embedded server read it.

    Raises:
        ConfigError: The file is broken, or holds a model or tokenizer that is not supported.
    """
    import gguf

    try:
        reader = gguf.GGUFReader(file)
        facts = {name: field.contents() for name, field in reader.fields.items()}
        tensors = {tensor.name: tensor for tensor in reader.tensors}
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    except Exception as error:  # The library has no error of its own: a broken file ends in any of Python's.
        raise ConfigError(f"{file} is no whole GGUF file ({error}): fetch it again") from error
    settings = _settings(facts, tensors, file)
    tokenizer = read_tokenizer(facts, file)
    _write_weights(read_shape(settings, file), settings["model_type"], tensors, folder, file)
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = {mark: facts.get(f"tokenizer.ggml.{mark}_token_id") for mark in (*MARKS, "eot")}
    tokens = facts["tokenizer.ggml.tokens"]
    marks = {f"{mark[:3]}_token": tokens[ids[mark]] for mark in MARKS if ids[mark] is not None}
    _write(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **marks})
    ends = list(dict.fromkeys(ids[mark] for mark in ("eos", "eot") if ids[mark] is not None))
    generation = {"bos_token_id": ids["bos"], "eos_token_id": ends, "pad_token_id": ids["padding"]}
    _write(folder / "config.json", settings | generation)
    _write(folder / "generation_config.json", generation)
    if template := facts.get("tokenizer.chat_template"):
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def _write(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _settings(facts: Mapping[str, Any], tensors: "Mapping[str, ReaderTensor]", file: Path) -> dict[str, Any]:
    """The file's sizes as a config.json has them."""
    family = facts.get("general.architecture")
    if not isinstance(family, str) or family not in FAMILIES:
        raise ConfigError(
            f"the embedded server runs {', '.join(FAMILIES.values())} models, and {file} holds {family!r}: {ELSEWHERE}"
        )

    def fact(name: str) -> Any:
        return facts.get(f"{family}.{name}")

    rope: dict[str, Any] = {"rope_theta": fact("rope.freq_base") or 10_000.0}
    scaling = fact("rope.scaling.type") or "none"
    rope["rope_type"] = "default" if scaling == "none" else scaling
    embedded = tensors.get("token_embd.weight")
    settings = {
        "model_type": family,
        "architectures": [f"{FAMILIES[family]}ForCausalLM"],
        "dtype": "bfloat16",
        "vocab_size": int(embedded.shape[1]) if embedded is not None else None,
        "hidden_size": fact("embedding_length"),
        "intermediate_size": fact("feed_forward_length"),
        "num_hidden_layers": fact("block_count"),
        "num_attention_heads": fact("attention.head_count"),
        "num_key_value_heads": fact("attention.head_count_kv"),
        "head_dim": fact("attention.key_length"),
        "rms_norm_eps": fact("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": fact("context_length"),
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_output.bias" in tensors,
        "rope_parameters": rope,
    }
    settings = {name: value for name, value in settings.items() if value is not None}
    if ROPE_FACTORS in tensors:
        factors = np.asarray(tensors[ROPE_FACTORS].data, np.float32)
        settings["rope_parameters"] = {**rope, **_llama3(read_shape(settings, file), factors, file)}
    return settings


def _llama3(shape: Shape, factors: np.ndarray, file: Path) -> dict[str, Any]:
    """Llama 3's scaling, if it is what gives the file's factors."""
    scaling = RopeScaling(factor=float(factors.max()), **LLAMA3)
    expected = shape.rotary_frequencies() / replace(shape, rope_scaling=scaling).rotary_frequencies()
    if expected.shape != factors.shape or not np.allclose(expected.numpy(), factors, rtol=1e-3):
        raise ConfigError(
            f"{file} scales its rotary positions otherwise than Llama 3, which is not supported: {ELSEWHERE}"
        )
    return {"rope_type": "llama3", **scaling.model_dump()}


def _write_weights(shape: Shape, family: str, tensors: "Mapping[str, ReaderTensor]", folder: Path, file: Path) -> None:
    import gguf
    import torch
    from safetensors.torch import save_file

    architecture = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == family)
    names = gguf.get_tensor_name_map(architecture, shape.layers)
    weights: dict[str, torch.Tensor] = {}
    left = set(tensors) - {ROPE_FACTORS}
    for name, _ in expected_tensors(shape, {}):
        module, _, kind = name.rpartition(".")
        stored = f"{names.get_name(module)}.{kind}"
        if stored not in tensors:
            raise ConfigError(f"{file} lacks the tensor {stored}: is it a whole model?")
        left.discard(stored)
        tensor = tensors[stored]
        try:
            values = gguf.dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            raise ConfigError(
                f"{file}: {stored} is of type {tensor.tensor_type.name}, which gguf cannot read: take another "
                "quantisation of the model"
            ) from error
        values = values.reshape(tuple(reversed(tensor.shape.tolist())))
        if family == "llama" and ".self_attn." in name and module.endswith(("q_proj", "k_proj")):
            values = _halves(values, shape.heads if module.endswith("q_proj") else shape.kv_heads)
        weights[name] = torch.tensor(values).to(torch.bfloat16)
    if left:
        raise ConfigError(f"{file} has the tensor {min(left)}, which the engine does not compute: {ELSEWHERE}")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _halves(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head as two halves that are turned together, from llama.cpp's interleaved pairs."""
    return values.reshape(heads, -1, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
