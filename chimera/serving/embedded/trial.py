"""Tries a model's tokenizer and chat template when it is loaded, because one that is misread fails late and in riddles.

Converters and hand-made folders get them wrong: a decoder of another kind than the vocabulary, an end token that the
template never writes. Then every answer is refused by its grammar, or none ends.
"""

import random
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import TemplateError

from chimera.core.errors import ConfigError
from chimera.serving.embedded.chat import ChatFormat
from chimera.serving.embedded.grammar import Grammars
from chimera.serving.embedded.protocol import BadRequest

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from chimera.serving.embedded.checkpoint import Language

PLAIN = ("a study of 12.5 mg", "In 2024 (n = 38):\n", "naïve\tβ-blocker", '{"answer":"yes"}')
"""Texts that are tried first, because a sentence about them is easily read."""
PIECES = (*"aeinorstAS 0123456789.,;:()%<>=\"'\\/{}[]\n\t", " the", "study", "  ", *"éßµ±≥β細😀")
TEXTS, PIECES_EACH = 1000, 12
ANYTHING = "start: TEXT\nTEXT: /(.|\\n)*/"
SPACE = "\u2581"
"""The space of SentencePiece's vocabularies."""
REMEDY = "take the tokenizer.json that was published with the model"


def tried(language: "Language", vocab: int, folder: Path) -> tuple[ChatFormat, Grammars]:
    """The chat format and the grammars of the model in `folder`, which embeds `vocab` tokens.

    Raises:
        ConfigError: Its tokenizer or its chat template is misread.
    """
    grammars = Grammars(language.tokenizer, vocab, language.eos)
    _try_texts(language.tokenizer, grammars, folder / "tokenizer.json")
    try:
        chat = ChatFormat(language.template, language.tokenizer, language.marks)
        closing = chat.closing_token()
    except TemplateError as error:
        raise ConfigError(f"{folder}: its chat template is broken ({error})") from error
    except BadRequest as error:
        why = error.__cause__ or error
        raise ConfigError(f"{folder}: its chat template refuses a question and its answer: {why}") from error
    if closing is not None and closing not in language.eos:
        last, *ends = (repr(language.tokenizer.id_to_token(token)) for token in (closing, *language.eos))
        raise ConfigError(
            f"{folder}: its chat template ends an answer with {last}, and its end tokens are {', '.join(ends)}, so "
            f"answers would not end: name {closing} in eos_token_id of generation_config.json"
        )
    return chat, grammars


def _try_texts(tokenizer: "Tokenizer", grammars: Grammars, file: Path) -> None:
    """Make sure that tokens spell the text that they were made from, and that a grammar of any text takes them."""
    draw = random.Random(0)
    texts = [*PLAIN, *("".join(draw.choices(PIECES, k=PIECES_EACH)) for _ in range(TEXTS))]
    matcher = grammars.matcher(ANYTHING, "response_format")
    for text in texts:
        tokens = tokenizer.encode(text, add_special_tokens=False).ids
        spelled = b"".join(grammars.token_bytes[token] for token in tokens)
        plain = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer is not None else text
        if spelled.removeprefix(b" ") != plain.replace(SPACE, " ").encode().removeprefix(b" "):
            raise ConfigError(
                f"{file} is misread: the tokens of {text!r} spell {spelled.decode(errors='replace')!r}, so its decoder "
                f"is not of the kind of its vocabulary, or its vocabulary lacks bytes: {REMEDY}"
            )
        if matcher.validate_tokens(tokens) != len(tokens):
            raise ConfigError(f"{file} does not suit grammars, which refuse its tokens of {text!r}: {REMEDY}")
