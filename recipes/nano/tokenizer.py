"""The small model's tokenizer: transformers' Qwen2Tokenizer with a small vocabulary, trained on rendered transcripts.

Words are split as in Qwen2, because AutoTokenizer uses that class for every Qwen2 model, whatever the tokenizer file
says. Digits are separate tokens, so a small model can copy and compare numbers. The tool-call marks are single tokens,
so that the server can find them without searching text.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from chimera.core.errors import RunError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TOOL_OPEN, TOOL_CLOSE = "<tool_call>", "</tool_call>"


def train_tokenizer(texts: Iterable[str], vocab_size: int, chat_template: str) -> "PreTrainedTokenizerFast":
    """Train a tokenizer of at most `vocab_size` tokens with `chat_template`; raises RunError if `texts` is empty."""
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
    from transformers import Qwen2Tokenizer
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    learner = Tokenizer(models.BPE())
    learner.normalizer = normalizers.NFC()
    learner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    marks = [TOOL_OPEN, TOOL_CLOSE]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(marks),
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    learner.train_from_iterator(texts, trainer)
    if learner.get_vocab_size() < 512:
        raise RunError(f"only {learner.get_vocab_size()} tokens learned: give the tokenizer more transcripts")
    learned = json.loads(learner.to_str())["model"]
    tokenizer = Qwen2Tokenizer(
        vocab=learned["vocab"],
        merges=[tuple(merge) for merge in learned["merges"]],  # pyright: ignore[reportArgumentType] - typed for text only
        eos_token=END,
        pad_token=PAD,
        extra_special_tokens=[START],
    )
    for mark in marks:
        tokenizer.add_tokens(AddedToken(mark, special=False, normalized=False))  # pyright: ignore[reportArgumentType] - same class, re-exported
    tokenizer.chat_template = chat_template
    return tokenizer


def read_chat_template(folder: Path) -> str:
    """The bundled model's chat template, without the file's final newline."""
    return (folder / "chat_template.jinja").read_text(encoding="utf-8").removesuffix("\n")
