"""Tries a model's tokenizer and chat template when it is loaded, because one that is misread fails late and in riddles.

Converters and hand-made folders get them wrong: a decoder of another kind than the vocabulary, an end token that the
template never writes. Then every answer is refused by its grammar, or none ends.
"""

import random
from pathlib import Path
from typing import TYPE_CHECKING

from chimera.core.errors import ConfigError
from chimera.serving.embedded.protocol import BadRequest

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from chimera.serving.embedded.chat import ChatFormat
    from chimera.serving.embedded.checkpoint import Language
    from chimera.serving.embedded.grammar import Grammars

PLAIN = ("a study of 12.5 mg", "In 2024 (n = 38):\n", "naïve\tβ-blocker", '{"answer":"yes"}')
"""Texts that are tried first, because a sentence about them is easily read."""
PIECES = (*"aeinorstAS 0123456789.,;:()%<>=\"'\\/{}[]\n\t", " the", "study", "  ", *"éßµ±≥β細😀")
TEXTS, PIECES_EACH = 1000, 12
ANYTHING = "start: TEXT\nTEXT: /(.|\\n)*/"
SPACE = "\u2581"
"""The space of SentencePiece's vocabularies."""
SHOWN = 60


def try_language(language: "Language", vocab: int, folder: Path) -> list[str]:
    """Try the tokenizer and chat template in `folder`; returns sentences on how the template is used.

    Args:
        vocab: Number of tokens that the model embeds.

    Raises:
        ConfigError: One of them is misread.
    """
    from jinja2 import TemplateError

    from chimera.serving.embedded.chat import ChatFormat
    from chimera.serving.embedded.grammar import Grammars

    try_texts(language.tokenizer, Grammars(language.tokenizer, vocab, language.eos), folder / "tokenizer.json")
    try:
        chat = ChatFormat(language.template, language.tokenizer, language.marks)
    except TemplateError as error:
        raise ConfigError(f"{folder}: its chat template is broken ({error})") from error
    try_end(chat, language.eos, language.tokenizer, folder)
    return [f"{folder}: {sentence}" for sentence in chat.manners.sentences()]


def try_texts(tokenizer: "Tokenizer", grammars: "Grammars", file: Path) -> None:
    """Make sure that tokens spell the text that they were made from, and that a grammar of any text takes them.

    Args:
        file: Where the tokenizer was read from.

    Raises:
        ConfigError: One of a thousand random texts comes back as another.
    """
    draw = random.Random(0)
    texts = [*PLAIN, *("".join(draw.choices(PIECES, k=PIECES_EACH)) for _ in range(TEXTS))]
    matcher = grammars.matcher(ANYTHING, "response_format")
    for text in texts:
        tokens = tokenizer.encode(text, add_special_tokens=False).ids
        spelled = b"".join(grammars.token_bytes[token] for token in tokens)
        plain = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer is not None else text
        if spelled.removeprefix(b" ") != plain.replace(SPACE, " ").encode().removeprefix(b" "):
            read = spelled.decode(errors="replace")
            raise ConfigError(
                f"{file} is misread: the tokens of {text[:SHOWN]!r} spell {read[:SHOWN]!r}, so its decoder is not of "
                "the kind of its vocabulary, or its vocabulary lacks bytes: take the tokenizer.json that was published "
                "with the model"
            )
        if matcher.validate_tokens(tokens) != len(tokens):
            raise ConfigError(
                f"{file} cannot be used with grammars, which refuse its tokens of {text[:SHOWN]!r}: take the "
                "tokenizer.json that was published with the model"
            )


def try_end(chat: "ChatFormat", eos: tuple[int, ...], tokenizer: "Tokenizer", folder: Path) -> None:
    """Make sure that an answer may end with the control token with which the chat template closes it.

    Raises:
        ConfigError: It is none of the model's end tokens, so no answer would end.
    """
    try:
        closing = chat.closing_token()
    except BadRequest as error:
        raise ConfigError(f"{folder}: its chat template refuses a question and its answer: {error.message}") from error
    if closing is not None and closing not in eos:
        names = ", ".join(repr(tokenizer.id_to_token(token)) for token in eos)
        raise ConfigError(
            f"{folder}: its chat template ends an answer with {tokenizer.id_to_token(closing)!r}, and its end tokens "
            f"are {names}, so answers would not end: name {closing} in eos_token_id of generation_config.json"
        )
