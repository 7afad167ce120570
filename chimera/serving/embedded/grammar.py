"""Grammars for constrained decoding: the allowed form of an answer, given tools and a JSON schema (llguidance).

Answers are compact JSON. Tool calls have the white space of the model's chat template, so that a call has the same
text when it is generated and when it is part of the next prompt.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from chimera.serving.embedded.dialogue.manners import CLOSE, OPEN
from chimera.serving.embedded.protocol import BadRequest
from chimera.serving.embedded.schemas.closed import UnsupportedSchema, closed_schema

if TYPE_CHECKING:
    from llguidance import LLMatcher
    from tokenizers import Tokenizer

CACHED_GRAMMARS = 64
MOST_OF_ERROR = 200
MAX_SPELLED = 32
"""Longest token, in bytes, that is tried when text is written with ordinary tokens."""


@dataclass(frozen=True, slots=True)
class ToolStyle:
    """How the chat template renders a tool call: white space around it, separators, and the form of arguments."""

    before: str = ""
    colon: str = ":"
    comma: str = ","
    argument_colon: str = ":"
    argument_comma: str = ","
    after: str = ""
    between: str = ""
    raw_arguments: bool = False
    """True if the template copies an arguments string unchanged, so that calls keep exactly their generated text."""
    marked: bool = True
    """True if the tags of calls are tokens of the vocabulary; otherwise they are written with ordinary tokens."""


def schema_grammar(schema: Mapping[str, Any]) -> str:
    """A grammar for compact JSON values of `schema`: see `chimera.serving.embedded.schemas.closed`.

    Raises:
        BadRequest: No grammar keeps the schema.
    """
    return f"%llguidance {{}}\nstart: {_json(schema, 'response_format')}\n"


def tools_grammar(
    tools: Sequence[Mapping[str, Any]],
    style: ToolStyle,
    *,
    must_call: bool,
    parallel: bool,
    answer: Mapping[str, Any] | None,
) -> str:
    """A grammar for a turn in which tools are offered.

    Args:
        tools: OpenAI tool definitions that may be called.
        style: the white space of calls.
        must_call: the turn has to be a call (tool_choice "required" or a named function).
        parallel: several calls are allowed.
        answer: JSON schema of the answer that may replace a call; None allows any text, also before calls.
    """
    lines = ["%llguidance {}"]
    # A model whose vocabulary has no tags was hardly trained to call: it would write calls until it is cut.
    calls = f"call ({_text(style.between)} call)*" if parallel and style.marked else "call"
    if must_call:
        lines.append(f"start: {calls}")
    elif answer is not None:
        lines += [f"start: {calls} | answer", f"answer: {_json(answer, 'response_format')}"]
    elif style.marked:
        lines += [f"start: TEXT ({calls})?", "TEXT: /(.|\\n)*/"]
    else:  # A tag of ordinary tokens ends the text: after it only a whole call may follow.
        lines += ["start: TEXT | lead called", f"lead[lazy]: /(.|\\n)*{OPEN}/"]
        lines.append(f"TEXT: /(.|\\n)*/ & ~/(.|\\n)*{OPEN}(.|\\n)*/")
    opened, closed = (OPEN, CLOSE) if style.marked else (_text(OPEN), _text(CLOSE))
    lines.append(f"call: {opened} called")
    lines.append("called: " + " | ".join(f"called_{index}" for index in range(len(tools))))
    for index, tool in enumerate(tools):
        function = tool["function"]
        head = f'{style.before}{{"name"{style.colon}"{function["name"]}"{style.comma}"arguments"{style.colon}'
        body = _json(
            function.get("parameters") or {},
            f"tools.{index}.function.parameters",
            arguments=True,
            colon=style.argument_colon,
            comma=style.argument_comma,
        )
        lines.append(f"called_{index}: {_text(head)} {body} {_text('}' + style.after)} {closed}")
    return "\n".join(lines) + "\n"


def _json(
    schema: Mapping[str, Any], subject: str, *, arguments: bool = False, colon: str = ":", comma: str = ","
) -> str:
    """A grammar's rule for the values of `schema`; `subject` is the part of a request that has it."""
    try:
        rewritten = json.loads(_rewritten(json.dumps(schema), arguments))
    except (UnsupportedSchema, RecursionError) as error:
        reason = "the JSON schema is nested too deeply" if isinstance(error, RecursionError) else error
        raise BadRequest(f"{subject}: {reason}", param=subject.partition(".")[0]) from None
    options = {"whitespace_flexible": False, "key_separator": colon, "item_separator": comma}
    return "%json " + json.dumps({**rewritten, "x-guidance": options})


@lru_cache(CACHED_GRAMMARS)
def _rewritten(schema: str, arguments: bool) -> str:
    return json.dumps(closed_schema(json.loads(schema), arguments=arguments))


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


class Grammars:
    """Compiled grammars of one tokenizer. They do not depend on weights and are safe in several threads."""

    def __init__(self, tokenizer: "Tokenizer", vocab: int, eos: Sequence[int]) -> None:
        from llguidance import LLTokenizer

        self._tokenizer = LLTokenizer(tokenizer.to_str(), n_vocab=vocab, eos_token=list(eos))
        self._compiled = lru_cache(CACHED_GRAMMARS)(self._compile)
        self.vocab = vocab
        self.token_bytes: list[bytes] = [self._tokenizer.decode_bytes([token]) for token in range(vocab)]
        added = tokenizer.get_added_tokens_decoder()
        self.ordinary = {piece: token for token, piece in enumerate(self.token_bytes) if piece and token not in added}
        """Tokens by their bytes, without control tokens and other added tokens."""

    def matcher(self, grammar: str, subject: Literal["response_format", "tools"]) -> "LLMatcher":
        """A fresh matcher for `grammar`.

        Raises:
            BadRequest: the grammar cannot be compiled, because of the caller's JSON schema.
        """
        return self._compiled(grammar, subject).deep_copy()

    def _compile(self, grammar: str, subject: str) -> "LLMatcher":
        from llguidance import LLMatcher

        compiled = LLMatcher(self._tokenizer, grammar, log_level=0)
        compiled.compute_bitmask()  # Some grammars are too large for their first step alone.
        if error := compiled.get_error():
            # The whole grammar, or the state of its parser, follows the reason.
            reason = error.rpartition("failed to compile JSON schema: ")[2]
            reason = " ".join(reason.partition("\n   1 | ")[0].partition(" <state>")[0].split())[:MOST_OF_ERROR]
            raise BadRequest(f"{subject}: the JSON schema cannot constrain decoding: {reason}", param=subject)
        return compiled


def forced_tokens(matcher: "LLMatcher", ordinary: Mapping[bytes, int]) -> list[int]:
    """Consume and return the tokens that must come next, because the grammar allows only one continuation.

    They are the tokenizer's own tokens of the forced text, so that an answer has the same tokens when it is part of a
    prompt. Tokens at the end that could merge with following text are left to sampling.

    Args:
        matcher: An answer's state in its grammar; it advances past the returned tokens.
        ordinary: `Grammars.ordinary`.
    """
    forced: list[int] = []
    while tokens := matcher.compute_ff_tokens():
        valid = matcher.validate_tokens(tokens)
        # `valid` is 0 if the tokenizer changes the text: it reads a control token in it, or normalizes its Unicode.
        # llguidance would then allow only that wrong token, so the text is written with ordinary tokens instead.
        taken = tokens[:valid] or _first_token(matcher.compute_ff_bytes(), ordinary)
        if not taken or not matcher.consume_tokens(taken):
            break
        forced += taken
        if valid == len(tokens):
            break
    return forced


def _first_token(text: bytes, ordinary: Mapping[bytes, int]) -> list[int]:
    """A list of the longest ordinary token with which `text` begins; empty if there is none."""
    sizes = range(min(len(text), MAX_SPELLED), 0, -1)
    return next(([ordinary[text[:size]]] for size in sizes if text[:size] in ordinary), [])


def allowed_tokens(matchers: "Sequence[LLMatcher | None]", vocab: int) -> np.ndarray:
    """The tokens that are allowed next in each row: (B, V) bool, all True for rows without a matcher."""
    words = (vocab + 31) // 32
    bits = np.full((len(matchers), words), -1, np.int32)
    address, stride = bits.ctypes.data, words * 4
    for row, matcher in enumerate(matchers):
        if matcher is not None:
            matcher.unsafe_compute_mask_ptr(address + row * stride, stride)
    return np.unpackbits(bits.view(np.uint8), axis=1, count=vocab, bitorder="little").view(np.bool_)
