"""What the gateway does with a call: real servers behind it and a real store beside it, on loopback."""

import asyncio
import json
import os
import re
import signal
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import aiohttp
import httpx
import psutil
import pytest
import uvicorn
from agentlightning.types import EnqueueRolloutRequest
from idle_child import tell_modules

from chimera.config.tree import Config
from chimera.core.errors import ChimeraError
from chimera.processes import forks
from chimera.serving import connections
from chimera.serving.client import Endpoint
from evaluation.traces.spans import EXCHANGE, RAW
from training.lab.gateway import thin
from training.lab.gateway.exchanges import Exchange, Exchanges, StoreAwayError, encode
from training.lab.gateway.process import Gateway
from training.lab.gateway.thin import ThinGateway
from training.lab.store import LabStore

CALL = "/rollout/{0}/attempt/{1}/v1/chat/completions"
ASKED = {"model": "junior", "messages": [{"role": "user", "content": "Does it?"}], "seed": 7}
ANSWER = {
    "id": "answer-1",
    "object": "chat.completion",
    "model": "served",
    "weights_version": "junior@sft",
    "prompt_token_ids": [1, 2],
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "It does \ud83d."}, "token_ids": [3]}],
}


@contextmanager
def served(app):
    """The address of an ASGI application that is served in a thread."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off"))
    ready = threading.Event()

    async def run():
        serving = asyncio.create_task(server.serve())
        while not server.started:  # noqa: ASYNC110  uvicorn has no event for it
            await asyncio.sleep(0.01)
        ready.set()
        await serving

    thread = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
    thread.start()
    ready.wait()
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.force_exit = server.should_exit = True
        thread.join(10)


class Upstream:
    """A server behind the gateway; `reply` is (status, headers, body), or an async function of ASGI's `send`."""

    def __init__(self):
        self.seen = []
        self.reply = (200, {}, json.dumps(ANSWER).encode())
        self.left = threading.Event()

    async def __call__(self, scope, receive, send):
        body, message = b"", {"more_body": True}
        while message.get("more_body"):
            message = await receive()
            body += message.get("body", b"")
        headers = {key.decode(): value.decode() for key, value in scope["headers"]}
        self.seen.append(SimpleNamespace(path=scope["path"], headers=headers, body=body))
        if callable(self.reply):
            await self.reply(receive, send)
            return
        status, headers, body = self.reply
        encoded = [(key.encode(), value.encode()) for key, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": encoded})
        await send({"type": "http.response.body", "body": body})

    async def hang(self, receive, send):
        while (await receive())["type"] != "http.disconnect":
            pass
        self.left.set()

    @staticmethod
    async def drip(receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": b" ", "more_body": True})
            await asyncio.sleep(0.01)


@pytest.fixture
async def gateway():
    """The gateway's application before a server, beside a store with one rollout under way."""
    upstream, store = Upstream(), LabStore(lambda _: None)
    store.employ("Worker-0")
    await store.start()
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input={}, mode="train")])
    held = await store.dequeue_rollout("Worker-0")
    with served(upstream) as url:
        async with aiohttp.ClientSession() as session:
            exchanges = Exchanges(session, store.endpoint, store.key, patience=60.0)
            recording = asyncio.create_task(exchanges.run())
            endpoints = {
                "junior": Endpoint(f"{url}/v1", "served", "sk-behind", timeout_s=3600.0),
                "hasty": Endpoint(f"{url}/v1", "served", "sk-behind", timeout_s=0.2),
                "gone": Endpoint("http://127.0.0.1:9/v1", "served", "sk-behind"),
            }
            app = ThinGateway(endpoints, frozenset({"junior"}), exchanges, print)
            path = CALL.format(held.rollout_id, held.attempt.attempt_id)
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=None) as client:
                kit = SimpleNamespace(upstream=upstream, store=store, client=client, path=path, url=url)
                kit.rollout_id = held.rollout_id
                yield kit
            recording.cancel()
            await app.close()
    await store.close()


async def recorded(kit):
    spans = (await kit.store.query_spans(kit.rollout_id)).items
    return [
        {key.removeprefix(RAW): value for key, value in span.attributes.items()}
        for span in spans
        if span.name == EXCHANGE
    ]


def said(answer):
    return answer.json()["error"]["message"]


async def test_a_call_is_forwarded_answered_and_in_the_store_by_then(gateway):
    answer = await gateway.client.post(gateway.path, json=ASKED, headers={"authorization": "Bearer the-gateway-s"})
    assert (answer.status_code, answer.json()) == (200, ANSWER)
    (seen,) = gateway.upstream.seen
    assert (seen.path, seen.headers["authorization"]) == ("/v1/chat/completions", "Bearer sk-behind")
    assert json.loads(seen.body) == {**ASKED, "model": "served", "return_token_ids": True}
    (exchange,) = await recorded(gateway)
    assert (exchange["id"], exchange["weights_version"], exchange["seed"]) == ("answer-1", "junior@sft", 7)
    assert exchange["prompt_token_ids"] == "[1, 2]"
    assert "'token_ids': [3]" in exchange["choices"]
    assert "sk-behind" not in repr(exchange)


async def test_other_servers_are_not_asked_for_what_they_may_not_know(gateway):
    await gateway.client.post(gateway.path, json={**ASKED, "model": "hasty"})
    assert "return_token_ids" not in json.loads(gateway.upstream.seen[0].body)


@pytest.mark.parametrize("name", ["", None, "same"])
async def test_answers_of_other_servers_get_ids_of_their_own(gateway, name):
    gateway.upstream.reply = (200, {}, json.dumps({**ANSWER, "id": name}).encode())
    answers = [await gateway.client.post(gateway.path, json={**ASKED, "model": "hasty"}) for _ in range(3)]
    ids = [answer.json()["id"] for answer in answers]
    assert len(set(ids)) == 3
    assert all(one.startswith(f"{name or 'answer'}-") for one in ids)
    assert [exchange["id"] for exchange in await recorded(gateway)] == ids
    assert [answer.json()["choices"] for answer in answers] == [ANSWER["choices"]] * 3


async def test_many_calls_at_once_are_all_recorded_once(gateway):
    async def call(number):
        answer = await gateway.client.post(gateway.path, json={**ASKED, "seed": number})
        assert answer.status_code == 200

    await asyncio.gather(*(call(number) for number in range(100)))
    assert sorted(exchange["seed"] for exchange in await recorded(gateway)) == list(range(100))


@pytest.mark.parametrize(
    ("reply", "status", "message"),
    [
        ((400, {"retry-after": "3"}, b'{"error": {"message": "too long"}}'), 400, "too long"),
        ((429, {"retry-after": "3"}, b'{"error": {"message": "slower"}}'), 429, "slower"),
        ((500, {}, b'{"error": {"message": "broken"}}'), 500, "broken"),
        ((200, {}, b"<html>Welcome</html>"), 502, "no JSON object: '<html>Welcome"),
        ((200, {}, b"null"), 502, "no JSON object: 'null'"),
        ((200, {}, b"[" * 100_000), 502, "no JSON object"),
        ((200, {}, b""), 502, "no JSON object: ''"),
        ((307, {"location": "http://elsewhere.example/"}, b""), 502, "redirects to 'http://elsewhere.example/'"),
    ],
)
async def test_what_is_no_answer_is_passed_on_in_words_and_not_recorded(gateway, reply, status, message):
    gateway.upstream.reply = reply
    answer = await gateway.client.post(gateway.path, json=ASKED)
    assert answer.status_code == status
    assert message in said(answer)
    assert answer.headers.get("retry-after") == reply[1].get("retry-after")
    assert len(gateway.upstream.seen) == 1
    assert await recorded(gateway) == []


async def test_prompts_and_key_go_to_no_other_server(gateway):
    other = Upstream()
    with served(other) as url:
        gateway.upstream.reply = (307, {"location": f"{url}/v1/chat/completions"}, b"")
        assert (await gateway.client.post(gateway.path, json=ASKED)).status_code == 502
    assert other.seen == []


async def test_a_server_that_drips_is_given_up(gateway):
    gateway.upstream.reply = gateway.upstream.drip
    answer = await gateway.client.post(gateway.path, json={**ASKED, "model": "hasty"})
    assert (answer.status_code, "did not answer within 0.2 s" in said(answer)) == (504, True)


async def test_a_server_that_is_not_there_is_named(gateway):
    answer = await gateway.client.post(gateway.path, json={**ASKED, "model": "gone"})
    assert answer.status_code == 503
    assert said(answer).startswith("served at http://127.0.0.1:9/v1 cannot be reached")


async def test_sizes_have_limits(gateway, monkeypatch):
    for module in (thin, connections):
        monkeypatch.setattr(module, "MAX_BYTES", 200)
    answer = await gateway.client.post(gateway.path, json={**ASKED, "messages": "x" * 300})
    assert (answer.status_code, gateway.upstream.seen) == (413, [])
    answer = await gateway.client.post(gateway.path, json={"model": "junior"})
    assert (answer.status_code, "sent more than" in said(answer)) == (502, True)


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"{", b'{"model": 1}', b'{"model": "no-such"}', b"[" * 100_000])
async def test_a_body_that_names_no_model_is_refused(gateway, body):
    answer = await gateway.client.post(gateway.path, content=body)
    assert (answer.status_code, "whose model is one of junior" in said(answer)) == (400, True)


@pytest.mark.parametrize(("method", "path"), [("GET", CALL), ("POST", "/v1/chat/completions"), ("POST", CALL + "/x")])
async def test_there_is_one_route(gateway, method, path):
    assert (await gateway.client.request(method, path.format("ro-1", "at-1"), json=ASKED)).status_code == 404


async def test_an_attempt_that_nobody_holds_is_told_so_and_ends_the_recording(gateway):
    answer = await gateway.client.post(CALL.format("ro-forged", "at-forged"), json=ASKED)
    assert (answer.status_code, "no runner of this run holds" in said(answer)) == (403, True)
    assert (await gateway.client.post(gateway.path, json=ASKED)).status_code == 200


async def test_a_caller_who_leaves_frees_the_server(gateway):
    gateway.upstream.reply = gateway.upstream.hang
    with served(ThinGatewayOf(gateway)) as url:
        async with aiohttp.ClientSession() as session:
            asking = asyncio.create_task(session.post(f"{url}{gateway.path}", json=ASKED))
            while not gateway.upstream.seen:  # noqa: ASYNC110  what is awaited happens in another thread
                await asyncio.sleep(0.01)
            asking.cancel()
        await asyncio.to_thread(gateway.upstream.left.wait)


def ThinGatewayOf(kit):
    """The same application, for a server in another thread: with connections of its own."""

    async def app(scope, receive, send):
        endpoints = {"junior": Endpoint(f"{kit.url}/v1", "served", "sk-behind", timeout_s=3600.0)}
        async with aiohttp.ClientSession() as session:
            inner = ThinGateway(
                endpoints, frozenset(), Exchanges(session, kit.store.endpoint, kit.store.key, 60.0), print
            )
            await inner(scope, receive, send)
            await inner.close()

    return app


async def test_an_answer_waits_for_the_store():
    """What a caller has got is recorded, whenever the gateway is killed."""
    store = Upstream()
    asked, may_answer = threading.Event(), threading.Event()

    async def hold(receive, send):
        asked.set()
        await asyncio.to_thread(may_answer.wait)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    store.reply = hold
    with served(store) as url:
        async with aiohttp.ClientSession() as session:
            exchanges = Exchanges(session, url, "key", patience=60.0)
            running = asyncio.create_task(exchanges.run())
            recording = asyncio.create_task(exchanges.record(Exchange("ro-1", "at-1", {}, ANSWER, 1, 2)))
            await asyncio.to_thread(asked.wait)
            assert not recording.done()
            may_answer.set()
            await recording
            running.cancel()


async def test_a_store_that_comes_back_gets_everything(caplog):
    store, states = Upstream(), [500, 503]

    async def recover(receive, send):
        status = states.pop() if states else 200
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    store.reply = recover
    with served(store) as url:
        async with aiohttp.ClientSession() as session:
            exchanges = Exchanges(session, url, "key", patience=60.0)
            running = asyncio.create_task(exchanges.run())
            await exchanges.record(exchange := Exchange("ro-1", "at-1", ASKED, ANSWER, 1, 2))
            running.cancel()
    bodies = [len(one.body) for one in store.seen]
    assert bodies == [len(encode([exchange]))] * 3


async def test_exchanges_share_a_connection_to_the_store():
    """Each connection of its own would cost the store a TLS handshake."""
    store, made = Upstream(), []

    async def late(receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.sleep(0.05)
        await send({"type": "http.response.body", "body": b"taken"})

    async def note(*_):
        made.append("connection")

    store.reply = late
    tracing = aiohttp.TraceConfig()
    tracing.on_connection_create_end.append(note)
    with served(store) as url:
        async with aiohttp.ClientSession(trace_configs=[tracing]) as session:
            exchanges = Exchanges(session, url, "key", patience=60.0)
            running = asyncio.create_task(exchanges.run())
            for number in range(3):
                await exchanges.record(Exchange("ro-1", "at-1", {"seed": number}, ANSWER, 1, 2))
            running.cancel()
    assert len(store.seen) == 3
    assert made == ["connection"]


async def test_a_store_that_stays_away_ends_the_recording_and_all_who_wait():
    async with aiohttp.ClientSession() as session:
        exchanges = Exchanges(session, "http://127.0.0.1:9", "key", patience=0.0)
        running = asyncio.create_task(exchanges.run())
        waiting = [exchanges.record(Exchange("ro-1", "at-1", {}, ANSWER, 1, 2)) for _ in range(3)]
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(one, StoreAwayError) for one in ended)
        with pytest.raises(StoreAwayError, match="store_timeout_s"):
            await running
        with pytest.raises(StoreAwayError):
            await exchanges.record(Exchange("ro-1", "at-1", {}, ANSWER, 1, 2))


async def test_a_run_without_its_store_ends_in_words_and_nobody_got_an_unrecorded_answer(tmp_path):
    forks.prepare()
    upstream, failed = Upstream(), asyncio.get_running_loop().create_future()

    def fail(error: ChimeraError) -> None:
        failed.set_result(error)

    with served(upstream) as url:
        endpoints = {"junior": Endpoint(f"{url}/v1", "served", "sk-behind")}
        config = Config.model_validate({"gateway": {"store_timeout_s": 0.1}})
        gateway = Gateway(config, endpoints, "http://127.0.0.1:9", "key", tmp_path / "gateway.log", failed.cancel, fail)
        await gateway.start()
        try:
            async with httpx.AsyncClient(headers={"authorization": f"Bearer {gateway.key}"}, timeout=None) as client:
                with pytest.raises(httpx.HTTPStatusError, match="503"):
                    (await client.post(gateway.url + CALL.format("ro-1", "at-1"), json=ASKED)).raise_for_status()
            error = await failed
        finally:
            gateway.stop()
    assert str(error).startswith("the gateway gave up: the run's store has taken no exchange for 0.1 s")
    assert len(upstream.seen) == 1


async def test_a_store_that_no_longer_answers_ends_the_run_and_not_only_one_that_is_gone(tmp_path):
    """A real store that takes the connection and then nothing more, with two gateway processes that write to it."""
    forks.prepare()
    upstream, failed = Upstream(), asyncio.get_running_loop().create_future()
    hanging, go_on = threading.Event(), threading.Event()
    store = LabStore(lambda _: None)
    store.employ("Worker-0")

    async def hang(spans):
        hanging.set()
        go_on.wait()  # It blocks the thread of the store's server.

    def fail(error):
        if not failed.done():
            failed.set_result(error)

    await store.start()
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input={}, mode="train")])
    held = await store.dequeue_rollout("Worker-0")
    store.add_many_spans = hang
    with served(upstream) as url:
        endpoints = {"junior": Endpoint(f"{url}/v1", "served", "sk-behind")}
        config = Config.model_validate({"gateway": {"store_timeout_s": 0.5, "processes": 2}})
        gateway = Gateway(config, endpoints, store.endpoint, store.key, tmp_path / "gateway.log", failed.cancel, fail)
        await gateway.start()
        try:
            path = CALL.format(held.rollout_id, held.attempt.attempt_id)
            async with httpx.AsyncClient(headers={"authorization": f"Bearer {gateway.key}"}, timeout=None) as client:
                answer = await client.post(gateway.url + path, json=ASKED)
            error = await failed
        finally:
            go_on.set()
            gateway.stop()
            await store.close()
    assert hanging.is_set()
    assert (answer.status_code, "It does" in answer.text) == (503, False)
    assert re.match(r"the gateway gave up: .* taken no exchange for 0\.5 s .*: it did not answer within", str(error))


async def test_several_processes_share_the_calls_and_one_that_dies_is_replaced(tmp_path):
    """Each connection is served by one of them; what was answered is in the store, whichever answered."""
    forks.prepare()
    upstream, restarted, go_on = Upstream(), asyncio.Event(), threading.Event()

    async def hold(receive, send):
        while not go_on.is_set():  # noqa: ASYNC110  it is set in another thread
            await asyncio.sleep(0.01)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(ANSWER).encode()})

    upstream.reply = hold
    store = LabStore(lambda _: None)
    store.employ("Worker-0")
    await store.start()
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input={}, mode="train")])
    held = await store.dequeue_rollout("Worker-0")
    path = CALL.format(held.rollout_id, held.attempt.attempt_id)
    told = []

    def tell(text):
        told.append(text)
        restarted.set()

    with served(upstream) as url:
        endpoints = {"junior": Endpoint(f"{url}/v1", "served", "sk-behind")}
        config = Config.model_validate({"gateway": {"processes": 2}})
        gateway = Gateway(config, endpoints, store.endpoint, store.key, tmp_path / "gateway.log", tell, print)
        await gateway.start()
        first, second = gateway.pids
        headers = {"authorization": f"Bearer {gateway.key}", "connection": "close"}
        try:
            async with httpx.AsyncClient(headers=headers, timeout=None) as client:

                async def call(number):
                    while True:
                        try:
                            answer = await client.post(gateway.url + path, json={**ASKED, "seed": number})
                        except httpx.TransportError:  # It went to the process that was just killed.
                            continue
                        assert answer.status_code == 200
                        return

                calls = [asyncio.create_task(call(number)) for number in range(30)]
                while len(upstream.seen) < 30:  # noqa: ASYNC110  what is awaited happens in another thread
                    await asyncio.sleep(0.01)
                shares = [connections_to(url, pid) for pid in (first, second)]
                os.kill(first, signal.SIGKILL)
                go_on.set()
                await asyncio.gather(*calls)
                await restarted.wait()
                while len(gateway.pids) < 2:  # noqa: ASYNC110  another task starts it
                    await asyncio.sleep(0.01)
            seeds = {
                span.attributes[f"{RAW}seed"]
                for span in (await store.query_spans(held.rollout_id)).items
                if span.name == EXCHANGE
            }
        finally:
            gateway.stop()
            await store.close()
    assert seeds == set(range(30))
    assert (min(shares) > 0, sum(shares)) == (True, 30)
    assert re.match(r"gateway 1 \(process \d+\) was killed by SIGKILL; restart 1 of 3", told[0])


def connections_to(url, pid):
    port = int(url.rpartition(":")[2])
    return sum(one.raddr[1:] == (port,) for one in psutil.Process(pid).net_connections("tcp4") if one.raddr)


def test_what_no_span_can_hold_is_encoded_all_the_same():
    strange = {"id": "half \ud800", "created": 2**70, "usage": {"a": [1]}, "nothing": None, "yes": True, "t": 0.5}
    assert encode([Exchange("ro-1", "at-1", {}, strange, 1, 2)])


async def test_no_process_loads_litellm_unless_it_is_the_gateway(tmp_path):
    """It takes seven seconds of processor time, and would be loaded with Agent Lightning."""
    receiver, sender = forks.pipe()
    child = forks.Fork("teller", tell_modules, (sender,), tmp_path / "teller.log")
    child.start()
    loaded = await forks.receive(receiver, child, seconds=3600)
    child.join()
    assert {"agentlightning", "training.lab.gateway.process", "training.lab.runners.runner"} < loaded
    assert "litellm" not in loaded
