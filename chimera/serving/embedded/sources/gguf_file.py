"""Writes the model folder of a GGUF file: weights as safetensors, tokenizer, chat template and settings.

Weights become bfloat16: it rounds by 0.4 %, quantised weights were rounded by several per cent before, and float32
would take twice the disk. llama.cpp interleaves the halves of each head of a Llama model's queries and keys. A tensor
that the engine does not compute is refused; transformers' own reader leaves it out, and Llama 3's rotary scaling too.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chimera.core.errors import ConfigError
from chimera.serving.embedded.sources.cache import cached
from chimera.serving.embedded.sources.shapes import (
    ELSEWHERE,
    FAMILIES,
    RopeScaling,
    Shape,
    expected_tensors,
    family_of,
    read_shape,
)

if TYPE_CHECKING:
    from gguf import ReaderTensor
    from tokenizers import Tokenizer

    Tensors = Mapping[str, ReaderTensor]

CONTROL, USER_DEFINED, UNUSED = 3, 4, 5
"""Kinds of tokens in `tokenizer.ggml.token_type`."""
QWEN2 = ("qwen2", "deepseek-r1-qwen")
LLAMA3_WORDS = ("llama-bpe", "llama3", "llama-v3")
DIGITS = ("smollm", "starcoder", "refact", "command-r")
"""Each digit by itself, then GPT-2's words."""
GPT2 = ("gpt-2", "default")
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Llama 3 and Qwen2 split text; they differ in how many digits one piece may have."""
MAGIC = b"GGUF"
FORMAT = 1
"""Of converted folders. Raise it when a conversion gives another folder than before."""
SIZES = {
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "context_length": "max_position_embeddings",
}
"""GGUF's names of sizes, and those of config.json."""
ROPE_FACTORS = "rope_freqs.weight"
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""What a GGUF file does not name of Llama 3's rotary scaling: it has only a divisor of each frequency."""
MARKS = ("bos", "eos", "unknown", "padding")


def is_gguf(file: Path) -> bool:
    """True if `file` begins as GGUF files do, whatever its name ends with."""
    try:
        with file.open("rb") as opened:
            return opened.read(len(MAGIC)) == MAGIC
    except OSError:  # No file, or one that nobody may read: it is named as no model.
        return False


def gguf_folder(file: Path) -> Path:
    """The model folder of a GGUF file, in the user's cache; made at the first use. Raises ConfigError as `convert`."""
    state = file.stat()
    # Not the hash of its content: reading a large file would take a minute at each start.
    mark = f"{file.resolve()} {state.st_size} {state.st_mtime_ns} {FORMAT}"
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
    except Exception as error:  # The library has no error of its own: a broken file ends in any of Python's.
        raise ConfigError(f"{file} is no whole GGUF file ({error}): fetch it again") from error
    settings = _settings(facts, tensors, file)
    tokenizer = _read_tokenizer(facts, file)
    _write_weights(read_shape(settings, file), settings["model_type"], tensors, folder, file)
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = {mark: facts.get(f"tokenizer.ggml.{mark}_token_id") for mark in (*MARKS, "eot")}
    marks = {f"{mark[:3]}_token": tokenizer.id_to_token(ids[mark]) for mark in MARKS if ids[mark] is not None}
    ends = list(dict.fromkeys(ids[mark] for mark in ("eos", "eot") if ids[mark] is not None))
    generation = {"bos_token_id": ids["bos"], "eos_token_id": ends, "pad_token_id": ids["padding"]}
    for name, content in (
        ("config.json", settings | generation),
        ("generation_config.json", generation),
        ("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **marks}),
    ):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    if template := facts.get("tokenizer.chat_template"):
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def _settings(facts: Mapping[str, Any], tensors: "Tensors", file: Path) -> dict[str, Any]:
    """The file's sizes as a config.json has them."""
    family = family_of(facts.get("general.architecture"), file)
    scaling = facts.get(f"{family}.rope.scaling.type", "none")
    rope = {
        "rope_theta": facts.get(f"{family}.rope.freq_base", 10_000.0),
        "rope_type": "default" if scaling == "none" else scaling,
    }
    embedded = tensors.get("token_embd.weight")
    settings = {
        "model_type": family,
        "architectures": [f"{FAMILIES[family]}ForCausalLM"],
        "dtype": "bfloat16",
        "vocab_size": 0 if embedded is None else int(embedded.shape[1]),
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_output.bias" in tensors,
        "rope_parameters": rope,
        **{name: facts[key] for size, name in SIZES.items() if (key := f"{family}.{size}") in facts},
    }
    if ROPE_FACTORS in tensors:
        rope |= _llama3(read_shape(settings, file), np.asarray(tensors[ROPE_FACTORS].data), file)
    return settings


def _llama3(shape: Shape, factors: np.ndarray, file: Path) -> dict[str, Any]:
    """Llama 3's scaling, if it is what gives the file's factors."""
    scaling = RopeScaling(factor=float(factors.max()), **LLAMA3)
    expected = shape.rotary_frequencies() / replace(shape, rope_scaling=scaling).rotary_frequencies()
    if expected.shape != factors.shape or not np.allclose(expected.numpy(), factors, rtol=1e-3):
        raise ConfigError(f"{file} scales its rotary positions otherwise than Llama 3: {ELSEWHERE}")
    return {"rope_type": "llama3", **scaling.model_dump()}


def _write_weights(shape: Shape, family: str, tensors: "Tensors", folder: Path, file: Path) -> None:
    import gguf
    import torch
    from safetensors.torch import save_file

    architecture = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == family)
    names = gguf.get_tensor_name_map(architecture, shape.layers)
    unused = set(tensors) - {ROPE_FACTORS}
    weights: dict[str, torch.Tensor] = {}
    for name, _ in expected_tensors(shape, {}):
        module, _, kind = name.rpartition(".")
        stored = f"{names.get_name(module)}.{kind}"
        if stored not in tensors:
            raise ConfigError(f"{file} lacks the tensor {stored}: is it a whole model?")
        unused.discard(stored)
        tensor = tensors[stored]
        try:
            values = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(tensor.shape[::-1].tolist())
        except NotImplementedError as error:
            raise ConfigError(f"{file}: {stored} is {tensor.tensor_type.name}: take another quantisation") from error
        if family == "llama" and module.endswith(("q_proj", "k_proj")):
            heads = shape.heads if module.endswith("q_proj") else shape.kv_heads
            values = values.reshape(heads, -1, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
        weights[name] = torch.tensor(values).to(torch.bfloat16)
    if unused:
        raise ConfigError(f"{file} has the tensor {min(unused)}, which the engine does not compute: {ELSEWHERE}")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _read_tokenizer(facts: Mapping[str, Any], file: Path) -> "Tokenizer":
    """The byte-level tokenizer of a GGUF file; raises ConfigError if it is of a kind that is not known."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

    kind, split = facts.get("tokenizer.ggml.model"), facts.get("tokenizer.ggml.pre", "default")
    if kind != "gpt2" or split not in (*GPT2, *DIGITS, *QWEN2, *LLAMA3_WORDS):
        raise ConfigError(
            f"{file} has a tokenizer of kind {kind!r} and {split!r}, which is not supported: give the folder in which "
            "the model was saved with its tokenizer.json"
        )
    tokens, kinds = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"]
    vocabulary = {token: number for number, token in enumerate(tokens) if kinds[number] != UNUSED}
    merges = [tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=split in LLAMA3_WORDS))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    if split in DIGITS:
        tokenizer.pre_tokenizer = Sequence([Digits(individual_digits=True), tokenizer.pre_tokenizer])
    elif split not in GPT2:
        words = Split(Regex(WORDS.format(digits="" if split in QWEN2 else "{1,3}")), "isolated")
        tokenizer.pre_tokenizer = Sequence([words, ByteLevel(add_prefix_space=False, use_regex=False)])
    if split in QWEN2:
        tokenizer.normalizer = normalizers.NFC()
    for token, what in zip(tokens, kinds, strict=True):
        if what in (CONTROL, USER_DEFINED):
            tokenizer.add_tokens([AddedToken(token, special=what == CONTROL, normalized=False)])
    return tokenizer
