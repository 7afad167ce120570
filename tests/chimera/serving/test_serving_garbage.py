"""The client side of model calls against servers that answer anything but a chat completion, over real sockets."""

import asyncio
import gzip
import json
from contextlib import asynccontextmanager

import pytest
from message_kit import refused

from chimera.core.errors import ModelError, UnreachableError
from chimera.serving.client import Endpoint, HttpModel

LONG = 3600.0
"""A time limit that no busy machine reaches."""
MESSAGE = {"role": "assistant", "content": "yes"}
CHOICE = {"index": 0, "message": MESSAGE, "finish_reason": "stop"}
GOOD = {"id": "a", "choices": [CHOICE], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
CALL = {"id": "c", "type": "function", "function": {"name": "search", "arguments": "{}"}}


def http(body, *, status="200 OK", kind="application/json", length=None, headers=""):
    """A whole HTTP answer as bytes; `body` is JSON unless it is bytes."""
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    length = len(body) if length is None else length
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{headers}\r\n".encode() + body


@asynccontextmanager
async def answering(answer, host="127.0.0.1"):
    """A server that reads each request and sends `answer`: bytes, or an async function of the writer.

    Gives its address and the list of requests.
    """
    requests = []

    async def handle(reader, writer):
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            requests.append(head + await reader.readexactly(int(length.split(b":")[1])))
            if isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
            else:
                await answer(writer)
        except ConnectionError:
            pass  # The client has seen enough.
        finally:
            writer.close()

    server = await asyncio.start_server(handle, host, 0)
    async with server:
        yield f"http://{host}:{server.sockets[0].getsockname()[1]}/v1", requests


async def ask(answer, *, timeout_s=LONG):
    async with answering(answer) as (url, _):
        model = HttpModel({"junior": Endpoint(url, "m", "key", timeout_s=timeout_s)}, max_retries=0)
        try:
            return await model.complete("junior", [{"role": "user", "content": "?"}])
        finally:
            await model.aclose()


def choice(**message):
    return http({**GOOD, "choices": [{**CHOICE, "message": {**MESSAGE, **message}}]})


def calls(call):
    return choice(content=None, tool_calls=call)


def function(**changes):
    return calls([{**CALL, "function": {**CALL["function"], **changes}}])


DEEP = b'{"choices": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
INSTEAD = "instead of a chat completion: is base_url an OpenAI-compatible server, with its /v1?"
GARBAGE = {
    "html": (http(b"<html>Welcome</html>", kind="text/html"), f"answered 200 with a web page {INSTEAD}"),
    "html-that-calls-itself-json": (http(b" <!doctype html>"), "with a web page instead"),
    "nothing": (http(b""), "answered 200 with nothing instead"),
    "nothing-at-all": (http(b"", status="204 No Content"), "with nothing instead"),
    "text": (http(b"It works!", kind="text/plain"), "with something else (the whole answer: Invalid JSON: "),
    "null": (http(None), "(the whole answer: Input should be an object) instead"),
    "number": (http(7), "(the whole answer: Input should be an object)"),
    "string": (http("yes"), "(the whole answer: Input should be an object)"),
    "list": (http([GOOD]), "(the whole answer: Input should be an object)"),
    "half-json": (http(b'{"choices": ['), "Invalid JSON: EOF"),
    "no-utf8": (http(b'{"choices": "\xff\xfe"}'), "Invalid JSON: "),
    "deep": (http(DEEP), "recursion limit"),
    "half-a-surrogate": (choice(content="\ud800"), "Invalid JSON: unexpected end of hex escape"),
    "half-a-surrogate-in-arguments": (function(arguments='"\udc00"'), "Invalid JSON: lone "),
    "empty-object": (http({}), "answered without choices"),
    "choices-null": (http({**GOOD, "choices": None}), "answered without choices"),
    "choices-empty": (http({**GOOD, "choices": []}), "answered without choices"),
    "choices-string": (http({**GOOD, "choices": "yes"}), "(choices: Input should be a valid array)"),
    "choice-null": (http({**GOOD, "choices": [None]}), "(choices.0: Input should be an object)"),
    "message-missing": (http({**GOOD, "choices": [{}]}), "(choices.0.message: Field required)"),
    "message-null": (http({**GOOD, "choices": [{"message": None}]}), "(choices.0.message: Input should be an object)"),
    "message-string": (http({**GOOD, "choices": [{"message": "y"}]}), "(choices.0.message: Input should be an object)"),
    "content-number": (choice(content=7), "(choices.0.message.content: Input should be a valid string)"),
    "content-object": (choice(content={"text": "yes"}), "(choices.0.message.content: Input should be a valid string)"),
    "tool-calls-string": (calls("search"), "(choices.0.message.tool_calls: Input should be a valid array)"),
    "tool-call-null": (calls([None]), "tool_calls.0: Input should be an object"),
    "function-missing": (calls([{"id": "c"}]), "tool_calls.0.function: Field required"),
    "function-name-number": (function(name=7), "function.name: Input should be a valid string"),
    "arguments-number": (function(arguments=7), "function.arguments: Input should be a valid string"),
    "finish-reason-list": (
        http({**GOOD, "choices": [{**CHOICE, "finish_reason": ["stop"]}]}),
        "(choices.0.finish_reason: Input should be a valid string)",
    ),
    "usage-string": (http({**GOOD, "usage": "many"}), "(usage: Input should be an object)"),
    "usage-words": (http({**GOOD, "usage": {"prompt_tokens": "many"}}), "(usage.prompt_tokens: Input should be"),
    "usage-negative": (http({**GOOD, "usage": {"completion_tokens": -1}}), "(usage.completion_tokens: Input should"),
    "id-number": (http({**GOOD, "id": 7}), "(id: Input should be a valid string)"),
    "version-object": (http({**GOOD, "weights_version": {}}), "(weights_version: Input should be a valid string)"),
    "closed-early": (http(GOOD, length=4096), "sent an answer that is broken off or no HTTP: Response payload is not"),
    "length-too-short": (http(GOOD, length=12), "sent an answer that is broken off or no HTTP: "),
    "length-no-number": (http(GOOD, length="many"), "sent an answer that is broken off or no HTTP: "),
    "no-http": (b"220 mail.example.org ESMTP\r\n\r\n", "sent an answer that is broken off or no HTTP: "),
    "no-gzip": (http(GOOD, headers="Content-Encoding: gzip\r\n"), "sent an answer that cannot be decompressed"),
    "huge": (http(b" " * (33 * 2**20)), "sent more than 32 MiB"),
    "huge-once-unpacked": (
        http(gzip.compress(bytes(33 * 2**20)), headers="Content-Encoding: gzip\r\n"),
        "sent more than 32 MiB",
    ),
    "error-as-html": (http(b"<h1>Bad Gateway</h1>", status="502 Bad", kind="text/html"), "answered 502: <h1>"),
    "error-in-a-list": (http([{"error": {"message": "no key"}}], status="400 Bad"), "answered 400: no key"),
    "error-string": (http("slow", status="400 Bad"), "answered 400: slow"),
    "error-of-fields": (
        http({"detail": [{"loc": ["body", "seed"], "msg": "not permitted"}]}, status="422 Bad"),
        "answered 422: body.seed: not permitted",
    ),
    "error-with-200": (http({"error": {"message": "no credit"}}), "answered without choices: no credit"),
    "error-null": (http(None, status="400 Bad"), "answered 400: null"),
    "error-list": (http([1], status="400 Bad"), "answered 400: [1]"),
    "error-half-a-surrogate": (http({"error": {"message": "\ud800 no"}}, status="400 Bad"), "answered 400: ? no"),
    "error-deep": (http(DEEP, status="500 Bad"), "answered 500: "),
    "status-beyond-all": (http(GOOD, status="999 What"), "answered 999: "),
}  # fmt: skip


@pytest.mark.parametrize("case", GARBAGE)
async def test_an_answer_that_is_no_completion_is_one_sentence(case):
    answer, said = GARBAGE[case]
    with pytest.raises(ModelError) as caught:
        await ask(answer)
    sentence = str(caught.value)
    assert sentence.startswith("model 'junior' (m at http://127.0.0.1:")
    assert said in sentence
    assert not isinstance(caught.value, UnreachableError)  # Which would end a whole evaluation.
    assert "\n" not in sentence
    assert len(sentence.encode()) < 2500


@pytest.mark.parametrize(
    "answer",
    [
        http({**GOOD, "usage": None}),
        http({**GOOD, "usage": {"prompt_tokens": None}}),
        http({"choices": [{"message": {"content": "yes", "tool_calls": None}}]}),
        http({**GOOD, "id": None, "surprise": {"deep": [1, 2]}}),
        http(gzip.compress(json.dumps(GOOD).encode()), headers="Content-Encoding: gzip\r\n"),
        http(GOOD, kind="text/plain"),
    ],
    ids=["usage-null", "tokens-null", "least", "unknown-fields", "gzip", "text-plain"],
)
async def test_an_answer_that_lacks_only_what_is_optional_is_read(answer):
    assert (await ask(answer)).content == "yes"


async def test_a_server_that_closes_without_a_word_cannot_be_reached():
    with refused(UnreachableError, "'junior'", "ServerDisconnectedError", "is the server running"):
        await ask(b"")


async def test_headers_without_end_are_given_up():
    async def endless(writer):
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(b"X-More: and more\r\n" * 1000)
            await writer.drain()

    with refused(ModelError, "'junior'", "broken off or no HTTP"):
        await ask(endless)


@pytest.mark.parametrize("start", [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n"])
async def test_a_server_that_drips_is_given_up_after_the_time_of_one_call(start):
    """Each byte comes long before the limit, which is for the whole answer."""

    async def drip(writer):
        writer.write(start)
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.01)

    with refused(ModelError, "'junior'", "0.3 s") as caught:
        await ask(drip, timeout_s=0.3)
    assert caught.value.retriable


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"])
@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2"])
async def test_a_prompt_is_not_sent_to_where_an_answer_points(status, host):
    async with answering(http(GOOD), host) as (elsewhere, requests):
        with pytest.raises(ModelError) as caught:
            await ask(http({}, status=status, headers=f"Location: {elsewhere}/chat/completions\r\n"))
    said = f"answered {status[:3]} and points to '{elsewhere}/chat/completions': prompts go to the configured address"
    assert said in str(caught.value)
    assert not caught.value.retriable
    assert requests == []
