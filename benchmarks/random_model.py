"""Models of real size with random weights, made for a benchmark: nothing is downloaded."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TEMPLATE = """{%- set opening = messages[0].content if messages[0].role == 'system' else 'Answer the question.' -%}
<|im_start|>system
{{ opening }}{% if tools %}

To call a tool, write <tool_call>{"name": NAME, "arguments": {...}}</tool_call>. The tools:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}{% endif %}<|im_end|>
{% for message in messages if message.role != 'system' -%}
<|im_start|>{{ 'user' if message.role == 'tool' else message.role }}
{{ message.content or '' }}{% for call in message.tool_calls or [] -%}
<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen's tokenizer splits text."""
MARKS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"]
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
PLAIN = {"rope_type": "default", "rope_theta": 1e6}


@dataclass(frozen=True)
class Size:
    """The shape of a model, as its config.json on the hub has it."""

    family: str
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int = 151_936
    head_dim: int = 64
    rope: Mapping[str, Any] = field(default_factory=lambda: PLAIN)


SIZES: Mapping[str, Size] = {
    "0.5b": Size("qwen2", 896, 4864, 24, 14, 2),
    "1.5b": Size("qwen2", 1536, 8960, 28, 12, 2, head_dim=128),
    "3b": Size("qwen2", 2048, 11008, 36, 16, 2, head_dim=128),
    "qwen3-0.6b": Size("qwen3", 1024, 3072, 28, 16, 8, head_dim=128),
    "llama-1b": Size("llama", 2048, 8192, 16, 32, 8, vocabulary=128_256, rope=LLAMA3),
    "tiny": Size("qwen2", 64, 128, 2, 4, 2, 4096, head_dim=16),
}


def make(folder: Path, size: Size, vocabulary: Path | None) -> int:
    """Write a model of `size` with random weights in bfloat16; returns the number of its weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    folder.mkdir()
    ids = make_tokenizer(folder, vocabulary)
    torch.manual_seed(0)
    # Qwen2 takes its head's size from the others.
    head_settings = {} if size.family == "qwen2" else {"head_dim": size.head_dim}
    config = AutoConfig.for_model(
        size.family,
        hidden_size=size.hidden,
        intermediate_size=size.inner,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        vocab_size=size.vocabulary,
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
        rope_parameters=dict(size.rope),
        bos_token_id=None,
        eos_token_id=ids["<|im_end|>"],
        pad_token_id=ids["<|endoftext|>"],
        **head_settings,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def make_tokenizer(folder: Path, vocabulary: Path | None) -> dict[str, int]:
    """Write a tokenizer with a chat template; returns the ids of its marks."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import TikTokenConverter

    from chimera.config.sections.bundled import NANO

    if vocabulary is None:
        plain = Tokenizer.from_file(str(NANO / "tokenizer.json"))
        plain.add_special_tokens(MARKS)
    else:
        plain = TikTokenConverter(vocab_file=str(vocabulary), pattern=PATTERN, extra_special_tokens=MARKS).converted()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return {mark: int(plain.token_to_id(mark)) for mark in MARKS}
