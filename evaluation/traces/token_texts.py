"""The text of each token of a response, by the tokenizer of the model that sampled it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from chimera.core.errors import ConfigError
from chimera.serving.embedded.checkpoint import TOKENIZER_FILE, locate

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_PART_OF_A_LETTER = "\N{REPLACEMENT CHARACTER}"


def load_tokenizer(path: str) -> "Tokenizer":
    """The tokenizer of a configured model path, see `chimera.serving.embedded.checkpoint.locate`.

    Raises:
        ConfigError: There is none.
    """
    from tokenizers import Tokenizer

    file: Path = locate(path) / TOKENIZER_FILE
    if not file.is_file():
        raise ConfigError(f"{file.parent} has no {TOKENIZER_FILE}: save the model's fast tokenizer beside its weights")
    return Tokenizer.from_file(str(file))


def token_texts(tokenizer: "Tokenizer", ids: Sequence[int]) -> list[str]:
    """What each token adds to the text; joined they are the whole text, control tokens included.

    A letter whose bytes are spread over several tokens is added by the last of them.
    """
    found: list[str] = []
    before = ""
    for end in range(1, len(ids) + 1):
        text = tokenizer.decode(list(ids[:end]), skip_special_tokens=False)
        unfinished = text.endswith(_PART_OF_A_LETTER) and end < len(ids)
        found.append("" if unfinished else text[len(before) :])
        before = before if unfinished else text
    return found
