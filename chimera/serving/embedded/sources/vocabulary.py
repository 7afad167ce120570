"""Makes the tokenizer of a GGUF file, which names tokens and merges, and how text is split before them by one word."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chimera.core.errors import ConfigError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CONTROL, USER_DEFINED, UNUSED = 3, 4, 5
"""Kinds of tokens in `tokenizer.ggml.token_type`."""
QWEN2 = ("qwen2", "deepseek-r1-qwen")
LLAMA3 = ("llama-bpe", "llama3", "llama-v3")
DIGITS = ("smollm", "starcoder", "refact", "command-r")
"""Each digit by itself, then GPT-2's words."""
GPT2 = ("gpt-2", "default")
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Llama 3 and Qwen2 split text; they differ in how many digits one piece may have."""


def read_tokenizer(facts: Mapping[str, Any], file: Path) -> "Tokenizer":
    """The byte-level tokenizer of a GGUF file; raises ConfigError if it is of a kind that is not known."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

    kind, split = facts.get("tokenizer.ggml.model"), facts.get("tokenizer.ggml.pre", "default")
    if kind != "gpt2" or split not in (*GPT2, *DIGITS, *QWEN2, *LLAMA3):
        raise ConfigError(
            f"{file} has a tokenizer of kind {kind!r} and {split!r}, which is not supported: give the folder in which "
            "the model was saved with its tokenizer.json"
        )
    tokens, kinds = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"]
    vocabulary = {token: number for number, token in enumerate(tokens) if kinds[number] != UNUSED}
    merges = [tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=split in LLAMA3))
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
