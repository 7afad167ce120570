"""Makes the tokenizer of a GGUF file, which names tokens and merges, and how text is split before them by one word."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chimera.core.errors import ConfigError

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.pre_tokenizers import PreTokenizer

CONTROL, USER_DEFINED, UNUSED = 3, 4, 5
"""Kinds of tokens in `tokenizer.ggml.token_type`."""
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Llama 3 and Qwen2 split text; they differ in how many digits one piece may have."""
QWEN2 = ("qwen2", "deepseek-r1-qwen")
LLAMA3 = ("llama-bpe", "llama3", "llama-v3")
DIGITS = ("smollm", "starcoder", "refact", "command-r")
"""Each digit by itself, then GPT-2's words."""
GPT2 = ("gpt-2", "default")


def read_tokenizer(facts: Mapping[str, Any], file: Path) -> "Tokenizer":
    """The byte-level tokenizer of a GGUF file; raises ConfigError if it is of a kind that is not known."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

    kind, split = facts.get("tokenizer.ggml.model"), facts.get("tokenizer.ggml.pre", "default")
    steps = _splits(split) if kind == "gpt2" else None
    if steps is None:
        raise ConfigError(
            f"{file} has a tokenizer of kind {kind!r} and {split!r}, which is not supported: give the folder in which "
            "the model was saved with its tokenizer.json"
        )
    tokens, kinds = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"]
    vocabulary = {token: number for number, token in enumerate(tokens) if kinds[number] != UNUSED}
    merges = [tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=split in LLAMA3))
    tokenizer.pre_tokenizer = steps
    tokenizer.decoder = decoders.ByteLevel()
    if split in QWEN2:
        tokenizer.normalizer = normalizers.NFC()
    for number, token in enumerate(tokens):
        if kinds[number] in (CONTROL, USER_DEFINED):
            special = kinds[number] == CONTROL
            tokenizer.add_tokens([AddedToken(token, special=special, normalized=False)])
    return tokenizer


def _splits(name: str) -> "PreTokenizer | None":
    """How text is split before merges, by llama.cpp's name for it."""
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

    if name in GPT2:
        return ByteLevel(add_prefix_space=False)
    if name in DIGITS:
        return Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    if name in QWEN2 or name in LLAMA3:
        words = Regex(WORDS.format(digits="" if name in QWEN2 else "{1,3}"))
        return Sequence([Split(words, "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)])
    return None
