"""The chunks of a streamed chat completion, as OpenAI's API has them. Their deltas add up to the unstreamed answer."""

from codecs import getincrementaldecoder
from collections.abc import Iterator, Mapping
from typing import Any

OF_TOKENS = ("token_ids", "sampled_logprobs")
"""Fields of a choice that have one entry for each token, beside its log-probabilities."""
WHOLE = frozenset(("choices", "usage", "object"))
"""Fields of a completion whose chunks have others in their place."""


class Chunks:
    """Makes the chunks of one answer: `grown` for what is written meanwhile, `rest` for what the whole answer adds.

    Args:
        head: The fields of the completion besides its choices and usage; `prompt_token_ids` go into the first chunk.
        mark: Text that begins a tool call. What follows it is sent when the answer is whole, because text that is not
            a well-formed call stays content. None: no tools are offered.
        usage: True: a last chunk has the usage, and the others have null there.
    """

    def __init__(self, head: Mapping[str, Any], *, mark: str | None, usage: bool) -> None:
        self._head = {key: value for key, value in head.items() if key not in WHOLE}
        self._mark, self._usage = mark, usage
        self._choices: dict[int, _Choice] = {}

    def grown(self, index: int, text: bytes, fields: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The chunks for more of one choice: its text, and `fields` of its new tokens (`OF_TOKENS`, `logprobs`)."""
        mark = (self._mark or "").encode()
        choice, opening = self._choice(index, calls=bool(text) and mark.startswith(text[: len(mark) or 1]))
        yield from opening
        content = choice.grown(text)
        choice.count(fields)
        if content or fields:
            yield self._chunk(index, {"content": content} if content else {}, fields)

    def rest(self, response: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The last chunks, when the whole answer is there."""
        for whole in response["choices"]:
            index, message = whole["index"], whole["message"]
            choice, opening = self._choice(index, calls=message["content"] is None)
            yield from opening
            if content := (message["content"] or "")[choice.sent :]:
                yield self._chunk(index, {"content": content})
            for number, call in enumerate(message.get("tool_calls", ())):
                function = call["function"]
                begun = {**call, "index": number, "function": {**function, "arguments": ""}}
                yield self._chunk(index, {"tool_calls": [begun]})
                arguments = {"index": number, "function": {"arguments": function["arguments"]}}
                yield self._chunk(index, {"tool_calls": [arguments]})
            yield self._chunk(index, {}, choice.left(whole), whole["finish_reason"])
        if self._usage:
            yield {**self._empty(), "choices": [], "usage": response["usage"]}

    def _choice(self, index: int, *, calls: bool = False) -> "tuple[_Choice, list[dict[str, Any]]]":
        """The choice, and its first chunk if it is new."""
        if index in self._choices:
            return self._choices[index], []
        choice = self._choices[index] = _Choice(self._mark)
        opening = self._chunk(index, {"role": "assistant", "content": None if calls else ""})
        self._head.pop("prompt_token_ids", None)
        return choice, [opening]

    def _chunk(
        self, index: int, delta: dict[str, Any], fields: Mapping[str, Any] | None = None, finish: str | None = None
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish, **(fields or {})}
        return {**self._empty(), "choices": [choice]}

    def _empty(self) -> dict[str, Any]:
        return {**self._head, "object": "chat.completion.chunk", **({"usage": None} if self._usage else {})}


class _Choice:
    """What of one choice has been sent: `sent` characters of content, `_tokens` entries of each field of tokens."""

    def __init__(self, mark: str | None) -> None:
        self._mark = mark
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._text = ""
        self._tokens = 0
        self.sent = 0

    def grown(self, text: bytes) -> str:
        """The new content, after `text` more."""
        self._text += self._decoder.decode(text)
        start, self.sent = self.sent, max(self.sent, self._certain())
        return self._text[start : self.sent]

    def _certain(self) -> int:
        """How many first characters are content, whatever follows; before a call, white space is left out."""
        if self._mark is None:
            return len(self._text)
        if self._text[:1].isspace():
            return 0
        end = self._text.find(self._mark, self.sent)
        if end < 0:
            sizes = range(len(self._mark) - 1, 0, -1)
            end = len(self._text) - next((size for size in sizes if self._text.endswith(self._mark[:size])), 0)
        return len(self._text[:end].rstrip())

    def count(self, fields: Mapping[str, Any]) -> None:
        """Count the tokens that are sent with `fields`."""
        if fields:
            self._tokens += len(next(iter(_of_tokens(fields).values())))

    def left(self, whole: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of the tokens that have not been sent."""
        return _put({name: entries[self._tokens :] for name, entries in _of_tokens(whole).items()})


def _of_tokens(fields: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The fields of a choice with one entry for each token."""
    entries = {name: fields[name] for name in OF_TOKENS if name in fields}
    return entries | ({"logprobs": fields["logprobs"]["content"]} if fields.get("logprobs") else {})


def _put(entries: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `_of_tokens`."""
    log_probs = {"logprobs": {"content": entries["logprobs"], "refusal": None}} if "logprobs" in entries else {}
    return {**entries, **log_probs}
