"""The text of each token of a response, by the tokenizer of the model that sampled it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chimera.core.errors import ConfigError
from chimera.run.directory import Run
from chimera.serving.embedded.checkpoint import TOKENIZER_FILE, locate
from evaluation.traces.tree import Tree, learned_calls

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
    texts: list[str] = []
    before = ""
    for end in range(1, len(ids) + 1):
        text = tokenizer.decode(list(ids[:end]), skip_special_tokens=False)
        unfinished = text.endswith(_PART_OF_A_LETTER) and end < len(ids)
        texts.append("" if unfinished else text[len(before) :])
        before = before if unfinished else text
    return texts


def learned_texts(run: Run, tree: Tree) -> tuple[Mapping[str, Sequence[str]], str | None]:
    """Token texts, by response id, of the calls that PPO learned from; or a sentence that says why there are none."""
    if not tree.learned:
        return {}, None
    texts_by_call: dict[str, Sequence[str]] = {}
    slots = {visit.role: visit.model for visit in tree.visits}
    tokenizers: dict[str, Any] = {}
    for record, ids in learned_calls(tree):
        slot = slots[record.role]
        try:
            if slot not in tokenizers:
                tokenizers[slot] = load_tokenizer(run.config.models[slot].path)
        except ConfigError as error:
            return {}, f"Tokens are shown by their ids, because the tokenizer of {slot} cannot be had: {error}"
        if ids:
            texts_by_call[record.response_id] = token_texts(tokenizers[slot], ids)
    return texts_by_call, None
