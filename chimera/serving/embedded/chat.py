"""Turns conversations into token ids, and generated text into messages; no I/O.

Text inside messages can never become a control token: when a message holds a control token's text (such as
`<|im_end|>` in a tool result), it is tokenized as the plain characters it is.
"""

import json
import re
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from jinja2 import DictLoader, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from chimera.serving.embedded.dialogue.manners import CLOSE, OPEN, Manners
from chimera.serving.embedded.grammar import ToolStyle
from chimera.serving.embedded.protocol import BadRequest, ChatMessage

if TYPE_CHECKING:
    from tokenizers import Tokenizer

NFC_SHRINKS = 3
"""The largest factor by which Unicode's normal form C shortens a text, in UTF-8 bytes."""
CACHED_SEGMENTS = 4096
"""Number of texts between control tokens whose token ids are cached, for each tokenizer."""

CALL_PROBE = re.compile(
    rf'{OPEN}(?P<before>\s*){{"name"(?P<colon>:\s*)"probe"(?P<comma>,\s*)"arguments":\s*'
    r'{"a"(?P<argument_colon>:\s*)1(?P<argument_comma>,\s*)"b":\s*2'
    rf"}}}}(?P<after>\s*){CLOSE}(?P<between>\s*){OPEN}"
)
PLAIN_CALLS = ToolStyle(between="\n", raw_arguments=True)
"""Calls of templates that render none, as `dialogue.manners` writes them."""
PROBE_TOOL = {"type": "function", "function": {"name": "probe", "description": "", "parameters": {"type": "object"}}}
"""Offered with the probe: a model may have a template of its own for conversations with tools."""
CALL_HEAD = re.compile(rf'{OPEN}\s*{{\s*"name"\s*:\s*"(?P<name>[^"\\]*)"\s*,\s*"arguments"\s*:\s*')
PLACEHOLDER = re.compile("\ue000[0-9a-f]{16}\ue001")
"""Replaces the text of a control token while the chat template is rendered."""


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """One tool call in generated text; `arguments` is a JSON string, as OpenAI returns it."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """Generated text, split into content and tool calls."""

    content: str | None
    calls: tuple[ParsedCall, ...]


class ChatFormat:
    """One model's chat template and tokenizer.

    Args:
        marks: Control tokens that the template names, such as bos_token, by these names.
    """

    def __init__(self, template: str, tokenizer: "Tokenizer", marks: Mapping[str, str] | None = None) -> None:
        self._template = _environment().from_string(template, globals=dict(marks or {}))
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        control = {
            token.content: token_id
            for token_id, token in added.items()
            if token.special or re.fullmatch(r"<[^<>\s]+>", token.content)
        }
        self._control = control
        self._control_pattern = _any_of(control)
        self._special_pattern = _any_of(token.content for token in added.values() if token.special)
        settings = json.loads(tokenizer.to_str())
        self._plain_tokenizer = _without_tokens(settings, control)
        self._segment_ids = lru_cache(CACHED_SEGMENTS)(self._encode_segment)
        self._longest = _longest_token(tokenizer, settings)
        self._segments = 0 < len(control) == len(added) and _splits_at_control_tokens(settings)
        style = self._find_tool_style()
        system, rows = self._renders("system", "user"), self._renders("user", "user")
        self.manners = Manners(tools=style is not None, system=system, rows=rows)
        self.tool_style = replace(style or PLAIN_CALLS, marked=OPEN in control and CLOSE in control)

    def encode(
        self, messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]], *, most: int | None = None
    ) -> list[int]:
        """The prompt's token ids, ending where the assistant's turn begins.

        Args:
            most: the most tokens of the prompt. A text that must be longer is refused before it is tokenized, which
                would be slow (a second or more for each million characters).

        Raises:
            BadRequest: the chat template refuses the conversation, or it is longer than `most`.
        """
        plain, shown, hidden = self._prepare(messages, tools)
        text = self._render(plain, shown)
        if most is not None and (fewest := self.fewest_tokens(_restored(text, hidden))) > most:
            raise _too_long(f"at least {fewest}", most)
        ids = self._tokens(text, hidden)
        if most is not None and len(ids) > most:
            raise _too_long(str(len(ids)), most)
        return ids

    def fewest_tokens(self, text: str) -> int:
        """A lower bound of the number of tokens in `text`; 0 for tokenizers that may drop text.

        A byte-level token covers at most as many bytes as the longest entry of the vocabulary. Before that, Unicode's
        normal form C shortens the text at most three times (a Hangul syllable of three letters, the Kelvin sign); a
        character beyond ASCII absorbs at most one ASCII character.
        """
        size, ascii_size = len(text.encode("utf-8", "replace")), len(text.encode("ascii", "ignore"))
        least = max(size // NFC_SHRINKS, ascii_size - (len(text) - ascii_size))
        return least // self._longest if self._longest else 0

    def encode_turn(
        self, messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[list[int], list[int]]:
        """Token ids of the prompt, as `encode` gives them, and of the answer, which is the last message.

        The answer's ids include all text of the template for it, also after its end token.

        Raises:
            BadRequest: the chat template refuses the conversation, or renders the prompt differently with an answer.
        """
        question, shown, hidden = self._prepare(messages[:-1], tools)
        answered, _, hidden_in_answer = self._prepare(messages[-1:], ())
        prompt = self._render(question, shown)
        whole = self._render([*question, *answered], shown, open_turn=False)
        if not whole.startswith(prompt):
            raise BadRequest(
                "messages: the model's chat template renders a prompt otherwise once it is answered, so it cannot be "
                "told which tokens are the answer's",
                param="messages",
            )
        return self._tokens(prompt, hidden), self._tokens(whole[len(prompt) :], hidden_in_answer)

    def _prepare(
        self, messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[list[dict[str, Any]], list[Any], dict[str, str]]:
        """Messages in the template's form, the tools, and the text that each placeholder in them replaces."""
        hidden: dict[str, str] = {}
        plain: list[dict[str, Any]] = []
        as_read = [_to_template(message, self.tool_style.raw_arguments) for message in messages]
        for message in self.manners.adapted(as_read, tools):
            pattern = self._special_pattern if message["role"] == "assistant" else self._control_pattern
            plain.append(_hide(message, pattern, hidden))
        return plain, [_hide(dict(tool), self._control_pattern, hidden) for tool in tools], hidden

    def _render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], *, open_turn: bool = True
    ) -> str:
        try:
            return self._template.render(messages=messages, tools=tools or None, add_generation_prompt=open_turn)
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise BadRequest(f"messages: the model's chat template refuses them: {error}", param="messages") from error

    def _tokens(self, text: str, hidden: Mapping[str, str]) -> list[int]:
        if not hidden and not self._segments:
            return self._tokenizer.encode(text, add_special_tokens=False).ids
        ids: list[int] = []
        end = 0
        for match in (*self._control_pattern.finditer(text), None):
            piece = text[end : match.start() if match else len(text)]
            if hidden:
                ids += self._plain_tokenizer.encode(_restored(piece, hidden), add_special_tokens=False).ids
            else:  # Each turn of a conversation repeats its beginning, so only new segments are encoded.
                ids += self._segment_ids(piece)
            if match:
                ids.append(self._control[match.group()])
                end = match.end()
        return ids

    def _encode_segment(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def closing_token(self) -> int | None:
        """The control token with which the template closes an answer; None if it closes it otherwise."""
        turns = [{"role": role, "content": role} for role in ("user", "assistant")]
        after = self._render(turns, [], open_turn=False).rpartition("assistant")[2]
        match = self._control_pattern.match(after.lstrip())
        return self._control[match.group()] if match else None

    def _renders(self, *roles: str) -> bool:
        """True if the template renders messages of these roles in a row with all their text."""
        texts = [f"text {number}" for number in range(len(roles))]
        turns = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
        try:
            rendered = self._render(turns, [])
        except BadRequest:
            return False
        return all(text in rendered for text in texts)

    def _find_tool_style(self) -> ToolStyle | None:
        """How the template renders tool calls; None if it cannot render them."""
        for raw in (True, False):
            arguments: Any = '{"a":1,"b":2}' if raw else {"a": 1, "b": 2}
            call = {"type": "function", "function": {"name": "probe", "arguments": arguments}}
            turns = [
                {"role": "user", "content": "question"},
                {"role": "assistant", "content": "", "tool_calls": [call, call]},
            ]
            try:
                match = CALL_PROBE.search(self._render(turns, [PROBE_TOOL]))
            except BadRequest:
                continue
            if match is not None:
                return replace(ToolStyle(raw_arguments=raw), **match.groupdict())
        return None


def parse_answer(text: str, offered: Collection[str], *, forced: bool = False) -> ParsedAnswer:
    """Split generated text into content and tool calls.

    If a call is not well formed, or of a tool that was not offered, all of the text is content. A last call that is
    cut off is left out after others, and content if there are none.

    Args:
        offered: Names of the tools that may be called.
        forced: The answer must be calls: one that is cut off has its arguments as far as they are written. It stays
            content if not even its tool is known.
    """
    calls: list[ParsedCall] = []
    position = start = text.find(OPEN) if offered else -1
    while position >= 0:
        head = CALL_HEAD.match(text, position)
        name = head["name"] if head else next(iter(offered)) if len(offered) == 1 else None
        written = written_object(text, head.end()) if head else None
        end = head.end() + len(written) if head and written else position
        tail, closed, _ = text[end:].partition(CLOSE)
        if name is not None and name in offered and written and closed and tail.strip() == "}":
            calls.append(ParsedCall(name, written))
            position = text.find(OPEN, end)
            continue
        if CLOSE in text[position:]:
            return ParsedAnswer(text, ())
        if forced and name is not None and name in offered:
            calls.append(ParsedCall(name, written or (text[head.end() :] if head else "")))
        break
    return ParsedAnswer(text[:start].strip() or None, tuple(calls)) if calls else ParsedAnswer(text, ())


def written_object(text: str, start: int) -> str | None:
    """The text of the JSON object that begins at `start`, as it is written; None if there is none."""
    try:
        value, end = json.JSONDecoder(parse_int=str).raw_decode(text, start)  # Python refuses long whole numbers.
    except (ValueError, RecursionError):
        return None
    return text[start:end] if isinstance(value, dict) else None


def _to_template(message: ChatMessage, raw_arguments: bool) -> dict[str, Any]:
    """A message in the form of chat templates: content is a string; arguments are objects unless `raw_arguments`."""
    fields = {"tool_call_id", "name"} | ({"tool_calls"} if message.tool_calls else set())
    more = message.model_dump(include=fields, exclude_none=True)
    for call in () if raw_arguments else more.get("tool_calls", ()):
        call["function"]["arguments"] = _object_or_text(call["function"]["arguments"])
    return {"role": "system" if message.role == "developer" else message.role, "content": message.text, **more}


def _object_or_text(arguments: str) -> Any:
    try:
        value = json.loads(arguments)
    except json.JSONDecodeError:
        return arguments
    return value if isinstance(value, dict) else arguments


def _hide(value: Any, pattern: re.Pattern[str], hidden: dict[str, str]) -> Any:
    """The same value with the text of control tokens replaced by placeholders, which are added to `hidden`."""
    if isinstance(value, str):

        def replace(match: re.Match[str]) -> str:
            placeholder = f"\ue000{secrets.token_hex(8)}\ue001"
            hidden[placeholder] = match.group()
            return placeholder

        return pattern.sub(replace, value)
    if isinstance(value, dict):
        return {_hide(key, pattern, hidden): _hide(item, pattern, hidden) for key, item in value.items()}
    if isinstance(value, list):
        return [_hide(item, pattern, hidden) for item in value]
    return value


def _restored(text: str, hidden: Mapping[str, str]) -> str:
    """`text` with placeholders of `_hide` replaced by the original text, in one pass."""
    return PLACEHOLDER.sub(lambda match: hidden.get(match.group(), match.group()), text) if hidden else text


def _too_long(tokens: str, most: int) -> BadRequest:
    return BadRequest(
        # Clients such as LiteLLM tell a full context by OpenAI's words.
        f"This model's maximum context length is {most + 1} tokens, of which the answer needs at least 1, and the "
        f"prompt has {tokens} tokens: shorten the prompt or raise serving.context_length",
        param="messages",
        code="context_length_exceeded",
    )


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """A pattern for each of `texts`, of which the longest counts; without texts it fits nothing."""
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or "(?!)")


def _splits_at_control_tokens(settings: Mapping[str, Any]) -> bool:
    """True if text between control tokens can be encoded on its own, so that its ids can be cached.

    This holds for byte-level tokenizers (such as Qwen2's) whose added tokens absorb no white space. Other tokenizers
    encode the whole text, because they may treat the beginning of a text specially.
    """
    exact = not any(
        token[trait]
        for token in settings["added_tokens"]
        for trait in ("lstrip", "rstrip", "single_word", "normalized")
    )
    return exact and _is_byte_level(settings)


def _is_byte_level(settings: Mapping[str, Any]) -> bool:
    """True if tokens keep every byte of a text, except for Unicode's normal form C."""
    parts = settings["pre_tokenizer"] or {}
    steps = parts.get("pretokenizers", [parts])
    plain = all(
        step.get("type") in {"Split", "Digits", "ByteLevel"}
        and not step.get("add_prefix_space")
        and step.get("behavior") != "Removed"
        for step in steps
    )
    return plain and (settings["normalizer"] or {"type": "NFC"})["type"] == "NFC"


def _longest_token(tokenizer: "Tokenizer", settings: Mapping[str, Any]) -> int:
    """The most bytes of a text that one token can cover; 0 if not known."""
    from tokenizers.pre_tokenizers import ByteLevel

    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    if not _is_byte_level(settings) or settings["truncation"] or not set(ByteLevel.alphabet()) <= set(vocabulary):
        return 0
    added = [token.content.encode() for token in tokenizer.get_added_tokens_decoder().values()]
    # A byte-level vocabulary writes each byte as one character; added tokens are plain text.
    return max(map(len, (*vocabulary, *added)))


def _without_tokens(settings: Mapping[str, Any], removed: Mapping[str, int]) -> "Tokenizer":
    """A tokenizer of these settings that treats the text of `removed` tokens as ordinary text."""
    from tokenizers import Tokenizer

    added = [token for token in settings["added_tokens"] if token["content"] not in removed]
    return Tokenizer.from_str(json.dumps({**settings, "added_tokens": added, "post_processor": None}))


class _Generation(Extension):
    """Renders the text inside {% generation %}, with which templates mark the assistant's text for trainers."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 3.1 declares it as an instance variable and reads it from the class

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    """The Jinja environment that Hugging Face chat templates are written for."""
    # Without a loader, a template that includes a file would end in a TypeError and not in a sentence.
    environment = ImmutableSandboxedEnvironment(
        loader=DictLoader({}), trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )

    def refuse(message: str) -> None:
        raise TemplateError(message)

    def to_json(value: Any, indent: int | None = None, separators: Any = None, ensure_ascii: bool = False) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators)

    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment
