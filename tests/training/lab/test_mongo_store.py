"""`cluster.store`: the store's rollouts and spans in a MongoDB."""

import asyncio
import importlib.util
import shutil
import subprocess
import time

import aiohttp
import httpx
import pytest
from agentlightning.types import EnqueueRolloutRequest

from chimera.config.tree import load_config
from chimera.core.errors import ConfigError
from chimera.core.ports import free_port
from training.lab.gateway.exchanges import Exchange, encode
from training.lab.store import KeyedStoreClient, LabStore

PYMONGO = importlib.util.find_spec("pymongo") is not None


@pytest.mark.parametrize("uri", ["mongodb://me:my-password@127.0.0.1/?replicaSet=rs0", "http://127.0.0.1:27017", "x"])
def test_an_address_with_a_password_is_refused_because_it_would_be_recorded(uri):
    with pytest.raises(ConfigError, match=r"cluster\.store"):
        load_config(None, [f"cluster.store={uri}"])


@pytest.mark.skipif(PYMONGO, reason="pymongo is installed")
def test_what_is_missing_is_named():
    with pytest.raises(ConfigError, match=r"cluster\.store=mongodb://127\.0\.0\.1:1/ needs the package pymongo"):
        LabStore(lambda _: None, mongo="mongodb://127.0.0.1:1/")


@pytest.mark.skipif(not PYMONGO, reason="pymongo is not installed")
def test_a_server_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr("training.lab.backing.CONNECT_SECONDS", 0.1)
    with pytest.raises(ConfigError, match=r"cluster\.store=mongodb://127\.0\.0\.1:1/: no MongoDB answers"):
        LabStore(lambda _: None, mongo="mongodb://127.0.0.1:1/")


@pytest.fixture
def mongod(tmp_path):
    """The address of a real server, not yet a replica set, and a function that makes it one."""
    program = shutil.which("mongod")
    if program is None or not PYMONGO:
        pytest.skip("mongod or pymongo is not installed")
    import pymongo

    port = free_port()
    (tmp_path / "data").mkdir()
    server = subprocess.Popen(
        [program, "--dbpath", tmp_path / "data", "--port", str(port), "--bind_ip", "127.0.0.1", "--replSet", "rs0"],
        stdout=subprocess.DEVNULL,
    )

    def initiate():
        with pymongo.MongoClient("127.0.0.1", port, directConnection=True) as client:
            member = {"_id": 0, "host": f"127.0.0.1:{port}"}
            client.admin.command("replSetInitiate", {"_id": "rs0", "members": [member]})
            while not client.admin.command("hello")["isWritablePrimary"]:
                time.sleep(0.1)

    try:
        yield f"mongodb://127.0.0.1:{port}/", initiate
    finally:
        server.kill()
        server.wait()


async def test_a_real_server_keeps_rollouts_and_exchanges_behind_the_key(mongod):
    address, initiate = mongod
    with pytest.raises(ConfigError, match="is no replica set"):
        LabStore(lambda _: None, mongo=f"{address}?directConnection=true")
    await asyncio.to_thread(initiate)
    ended = []
    store, other = (LabStore(ended.append, mongo=f"{address}?replicaSet=rs0") for _ in range(2))
    store.employ("Worker-0")
    other.employ("Worker-0")
    await store.start()
    try:
        await store.enqueue_many_rollouts([EnqueueRolloutRequest(input={"task": 1}, mode="train")])
        other._closing = True  # It does not wait for work.
        assert await other.dequeue_rollout("Worker-0") is None, "a run that starts anew takes no rollout of another"
        client, stranger = KeyedStoreClient(store.endpoint, store.key), KeyedStoreClient(store.endpoint, "wrong")
        with pytest.raises(aiohttp.ClientResponseError, match="401"):
            await stranger.dequeue_rollout("Worker-0")
        held = await client.dequeue_rollout("Worker-0")
        assert held is not None
        exchange = Exchange(held.rollout_id, held.attempt.attempt_id, {}, {"id": "answer"}, 1, 2)
        headers = {"authorization": f"Bearer {store.key}", "content-type": "application/x-protobuf"}
        async with httpx.AsyncClient(headers=headers) as http:
            (await http.post(f"{store.endpoint}/v1/traces", content=encode([exchange]))).raise_for_status()
        await client.update_attempt(held.rollout_id, held.attempt.attempt_id, status="succeeded")
        spans = (await store.query_spans(held.rollout_id)).items
        assert [span.attributes["llm.hosted_vllm.id"] for span in spans] == ["answer"]
        assert ended == [held.rollout_id]
        await client.close()
        await stranger.close()
    finally:
        await store.close()
        await other.close()
