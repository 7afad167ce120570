"""The chunks of a streamed chat completion, as OpenAI's API has them. Their deltas add up to the unstreamed answer."""

from codecs import getincrementaldecoder
from collections.abc import Iterator, Mapping
from typing import Any

OF_TOKENS = ("token_ids", "sampled_logprobs")
"""Fields of a choice with one entry for each token, beside its log-probabilities."""


class Chunks:
    """Makes the chunks of one answer: `grown` for what is written meanwhile, `rest` for what the whole answer adds.

    Args:
        head: The completion, or its fields that are known when it begins.
        mark: Text that begins a tool call. What follows it is sent when the answer is whole, because text that is not
            a well-formed call stays content. None: no tools are offered.
        usage: True: a last chunk has the usage, and the others have null there.
    """

    def __init__(self, head: Mapping[str, Any], *, mark: str | None, usage: bool) -> None:
        names = ("id", "created", "model", "system_fingerprint", "weights_version")
        self._head: dict[str, Any] = {name: head[name] for name in names} | {"object": "chat.completion.chunk"}
        self._head |= {"usage": None} if usage else {}
        self._mark, self._usage = mark, usage
        self._choices: dict[int, _Content] = {}

    def grown(self, index: int, text: bytes, tokens: int, fields: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The chunks for more of one choice: its text, the number of its new tokens, and the fields of these."""
        mark = (self._mark or "").encode()
        yield from self._opening(index, calls=bool(text) and mark.startswith(text[: len(mark) or 1]))
        choice = self._choices[index]
        choice.tokens += tokens
        content = choice.grown(text)
        if content or fields:
            yield self._chunk(index, {"content": content} if content else {}, **fields)

    def rest(self, response: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The last chunks, when the whole answer is there."""
        for whole in response["choices"]:
            index, message = whole["index"], whole["message"]
            yield from self._opening(index, calls=message["content"] is None)
            choice = self._choices[index]
            if content := (message["content"] or "")[choice.sent :]:
                yield self._chunk(index, {"content": content})
            for number, call in enumerate(message.get("tool_calls", ())):
                arguments = {"arguments": call["function"]["arguments"]}
                begun = {**call, "index": number, "function": {**call["function"], "arguments": ""}}
                yield self._chunk(index, {"tool_calls": [begun]})
                yield self._chunk(index, {"tool_calls": [{"index": number, "function": arguments}]})
            fields = {name: whole[name][choice.tokens :] for name in OF_TOKENS if name in whole}
            if scores := whole["logprobs"]:
                fields["logprobs"] = {**scores, "content": scores["content"][choice.tokens :]}
            yield self._chunk(index, {}, finish_reason=whole["finish_reason"], **fields)
        if self._usage:
            yield {**self._head, "choices": [], "usage": response["usage"]}

    def _opening(self, index: int, *, calls: bool) -> Iterator[dict[str, Any]]:
        """The first chunk of a choice, once."""
        if index not in self._choices:
            self._choices[index] = _Content(self._mark)
            yield self._chunk(index, {"role": "assistant", "content": None if calls else ""})

    def _chunk(self, index: int, delta: dict[str, Any], **fields: Any) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **fields}
        return {**self._head, "choices": [choice]}


class _Content:
    """The text of one choice. `sent` characters of its content and `tokens` tokens have been sent."""

    def __init__(self, mark: str | None) -> None:
        self._mark, self._text = mark, ""
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self.sent = self.tokens = 0

    def grown(self, text: bytes) -> str:
        """The new content, after `text` more."""
        self._text += self._decoder.decode(text)
        start, self.sent = self.sent, max(self.sent, self._certain())
        return self._text[start : self.sent]

    def _certain(self) -> int:
        """How many first characters are content, whatever follows: a call loses the white space before it."""
        if self._mark is None:
            return len(self._text)
        if self._text[:1].isspace():
            return 0
        end = self._text.find(self._mark, self.sent)
        if end < 0:
            sizes = range(len(self._mark) - 1, 0, -1)
            end = len(self._text) - next((size for size in sizes if self._text.endswith(self._mark[:size])), 0)
        return len(self._text[:end].rstrip())
