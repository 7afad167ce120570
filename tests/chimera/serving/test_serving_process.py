"""The server as a process: start, endpoints, weight changes over HTTP, and every way to end."""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import httpx
import psutil
import pytest
from embedded_kit import change, embedded
from message_kit import refused

from agents.roles import ROLES
from agents.visit.prompting import opening, response_format, schema_format
from chimera.config.sections.models import SLOTS, ModelConfig, ServingConfig
from chimera.core.errors import ConfigError, ModelError
from chimera.serving.client import HttpModel
from chimera.serving.process import SERVER, serve

RUBRIC = ModelConfig(kind="rubric")
ELSEWHERE = ModelConfig(
    kind="endpoint", base_url="http://127.0.0.1:9/v1", model="big", api_key_env="BIG_KEY", temperature=0.3
)
LONG = schema_format("Long", {"type": "string", "minLength": 1400, "maxLength": 1500})


def models(folder, **others):
    own = ModelConfig(path=str(folder), max_tokens=30)
    return {**SLOTS, "junior": own, "supervisor": own, "senior": own, **others}


@pytest.fixture(scope="module")
def running(serving_model, tmp_path_factory):
    """One server process for the tests that leave it running."""
    log_file = tmp_path_factory.mktemp("serving") / "logs" / "server.log"
    config = models(serving_model(seed=0), judge=ELSEWHERE)
    with serve(config, ServingConfig(slots=4, answers=0), {"BIG_KEY": "sk-big"}, log_file=log_file) as servers:
        yield SimpleNamespace(servers=servers, log_file=log_file)


def ask(endpoint, **fields):
    body = {
        "model": endpoint.model,
        "messages": [{"role": "user", "content": "q"}],
        "seed": 1,
        "return_token_ids": True,
    }
    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    return httpx.post(f"{endpoint.base_url}/chat/completions", json=body | fields, headers=headers, timeout=None)


def generated(endpoint):
    """How many tokens the server of an endpoint has generated."""
    url, headers = endpoint.base_url.removesuffix("/v1"), {"Authorization": f"Bearer {endpoint.api_key}"}
    return httpx.get(f"{url}/health", headers=headers).json()["counters"]["generated_tokens"]


def wait_until_gone(pid, url):
    """Return when the process has ended and its port is closed; one that nobody reaps counts as ended."""
    while alive(pid) or not refuses(url):
        threading.Event().wait(0.05)


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def refuses(url):
    host, port = url.removeprefix("http://").removesuffix("/v1").split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) != 0


async def test_the_society_s_client_talks_to_every_logical_model(running):
    model = HttpModel(running.servers.endpoints)
    role = ROLES["Supervisor"]
    messages = opening(role, "does it work?")
    for key in ("junior", "supervisor", "senior"):
        completion = await model.complete(key, messages, response_format=response_format(role), seed=3)
        assert completion.prompt_tokens > 0
        assert completion.weights_version == running.servers.versions()[key]
    with pytest.raises(ModelError, match="'PeerReview' cannot grade"):
        await model.complete("board", messages, response_format=response_format(ROLES["PeerReviewer"]))
    await model.aclose()


def test_endpoints_carry_the_configuration(running):
    endpoints = running.servers.endpoints
    assert list(endpoints) == list(SLOTS)
    assert endpoints["junior"].max_tokens == 30
    assert endpoints["junior"].base_url == endpoints["board"].base_url
    assert endpoints["judge"].base_url == "http://127.0.0.1:9/v1"
    assert (endpoints["judge"].model, endpoints["judge"].api_key, endpoints["judge"].temperature) == (
        "big",
        "sk-big",
        0.3,
    )
    assert set(running.servers.versions()) == {"junior", "supervisor", "senior", "refiner", "board", "principal"}


def test_the_server_listens_on_loopback_only_and_hides_its_key(running):
    process = psutil.Process(running.servers.pid)
    listening = [c.laddr.ip for c in process.net_connections(kind="tcp") if c.status == psutil.CONN_LISTEN]
    assert listening == ["127.0.0.1"]
    key = running.servers.endpoints["junior"].api_key
    assert key not in " ".join(process.cmdline())
    assert key not in str(process.environ())
    assert key not in running.log_file.read_text()
    assert key not in repr(running.servers.endpoints)
    assert ask(running.servers.endpoints["junior"], messages=[]).status_code == 400
    assert httpx.get(f"{running.servers.endpoints['junior'].base_url}/models").status_code == 401


def test_a_request_in_flight_keeps_its_weights_when_they_change(running, serving_model):
    junior, servers = running.servers.endpoints["junior"], running.servers
    before = servers.versions()["junior"]
    long = {"response_format": LONG, "max_tokens": 400, "n": 4}
    expected = [choice["token_ids"] for choice in ask(junior, **long).json()["choices"]]
    start = generated(junior)
    with ThreadPoolExecutor(8) as pool:
        flying = pool.submit(ask, junior, **long)
        while generated(junior) == start:
            assert not flying.done() or flying.result().status_code == 200
        changing = pool.submit(servers.load_weights, "junior", serving_model(seed=1), version="trained@7")
        meanwhile = [pool.submit(ask, junior, max_tokens=5, seed=seed) for seed in range(6)]
        assert changing.result() == "trained@7"
        after = ask(junior, max_tokens=5).json()
        old = flying.result().json()
        assert all(one.result().status_code == 200 for one in meanwhile)
    assert old["weights_version"] == before
    assert [choice["token_ids"] for choice in old["choices"]] == expected
    assert after["weights_version"] == servers.versions()["junior"] == "trained@7"
    assert servers.versions()["senior"] == before


async def test_a_client_that_goes_away_frees_its_rows(running):
    senior = running.servers.endpoints["senior"]
    body = {"model": "senior", "messages": [{"role": "user", "content": "q"}]}
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {senior.api_key}"}, timeout=None) as client:
        url, health = f"{senior.base_url}/chat/completions", senior.base_url.removesuffix("/v1") + "/health"

        async def counters():
            return (await client.get(health)).json()["counters"]

        begun = (await counters())["generated_tokens"]
        leaving = asyncio.create_task(client.post(url, json=body | {"response_format": LONG, "n": 100}))
        while (await counters())["generated_tokens"] == begun:
            assert not leaving.done()
        leaving.cancel()
        before = await counters()
        assert (await client.post(url, json=body | {"max_tokens": 3})).status_code == 200
        after = await counters()
    assert after["answers"] - before["answers"] < 50


def test_settings_reach_the_server_and_leaving_the_block_ends_it_and_frees_the_port(serving_model, tmp_path):
    config = ServingConfig(slots=2, context_length=64, processes=1)
    with serve(models(serving_model()), config, {}, log_file=tmp_path / "log") as servers:
        pid, url = servers.pid, servers.endpoints["junior"].base_url
        assert not refuses(url)
        assert psutil.Process(pid).children() == []
        answer = ask(servers.endpoints["junior"], messages=[{"role": "user", "content": "x1" * 64}])
        assert answer.status_code == 400
        assert "context length is 64" in json.dumps(answer.json())
        assert psutil.Process(pid).environ()["OMP_NUM_THREADS"] == "1"
    assert not alive(pid)
    assert refuses(url)
    assert "ERROR" not in (tmp_path / "log").read_text()


PARENT = """
import sys, threading
from pathlib import Path
from chimera.config.sections.models import ModelConfig, SLOTS, ServingConfig
from chimera.serving.process import serve

rubrics = dict.fromkeys(SLOTS, ModelConfig(kind="rubric"))
with serve(rubrics, ServingConfig(), {}, log_file=Path(sys.argv[1])) as servers:
    print(servers.pid, servers.endpoints["junior"].base_url, flush=True)
    threading.Event().wait()
"""


def test_the_server_ends_when_its_parent_is_killed(tmp_path):
    """This one only grades, and so starts sooner; every server watches its parent in the same way."""
    command = [sys.executable, "-c", PARENT, str(tmp_path / "log")]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        pid, url = parent.stdout.readline().split()
        assert not refuses(url)
        parent.kill()
        parent.wait()
        wait_until_gone(int(pid), url)
    finally:
        parent.kill()
        parent.wait()


def test_a_folder_that_cannot_be_served_is_a_configuration_error(serving_model, tmp_path):
    shutil.copytree(serving_model(), tmp_path, dirs_exist_ok=True)
    (tmp_path / "model.safetensors").write_bytes(b"broken")
    with (
        refused(ConfigError, "model.safetensors", "save the model again"),
        serve(models(tmp_path), ServingConfig(), {}, log_file=tmp_path / "log"),
    ):
        pytest.fail("a broken model was served")


def test_a_server_that_gets_no_memory_says_so_in_a_sentence(tmp_path, monkeypatch):
    limit = tmp_path / "site" / "sitecustomize.py"
    limit.parent.mkdir()
    limit.write_text(
        "import resource, sys\n"
        f"if {SERVER!r} in sys.orig_argv: resource.setrlimit(resource.RLIMIT_AS, (900_000_000,) * 2)\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(limit.parent), os.environ.get("PYTHONPATH", "")]))
    with (
        refused(ModelError, "no more memory or threads", "raise the limits", "ulimit -v", lines=None),
        serve(SLOTS, ServingConfig(slots=64), {}, log_file=tmp_path / "log"),
    ):
        pytest.fail("a server without memory was served")


def test_a_server_that_dies_while_starting_is_reported_with_its_last_lines(tmp_path, monkeypatch):
    crash = tmp_path / "site" / "sitecustomize.py"
    crash.parent.mkdir()
    crash.write_text(f"import os, sys\nif {SERVER!r} in sys.orig_argv: print('boom', flush=True); os._exit(7)\n")
    monkeypatch.setenv("PYTHONPATH", str(crash.parent))
    (tmp_path / "log").write_text("an earlier run\n")
    rubrics = dict.fromkeys(SLOTS, RUBRIC)
    with (
        refused(ModelError, "exit code 7", "boom", lines=None) as caught,
        serve(rubrics, ServingConfig(), {}, log_file=tmp_path / "log"),
    ):
        pytest.fail("a crashed server was served")
    assert "an earlier run" not in str(caught.value)


def test_with_endpoints_only_no_process_starts(tmp_path):
    everywhere = dict.fromkeys(SLOTS, ELSEWHERE.model_copy(update={"api_key_env": None}))
    with serve(everywhere, ServingConfig(), {}, log_file=tmp_path / "log") as servers:
        assert servers.pid is None
        assert servers.versions() == {}
        assert {endpoint.api_key for endpoint in servers.endpoints.values()} == {"none"}
        with refused(ModelError, "'junior'", "not embedded"):
            servers.load_weights("junior", tmp_path)
    assert not (tmp_path / "log").exists()


def test_an_endpoint_whose_key_is_not_set_is_a_configuration_error(serving_model, tmp_path):
    config = models(serving_model(), judge=ELSEWHERE)
    with (
        refused(ConfigError, "models.judge.api_key_env", "BIG_KEY", ".env"),
        serve(config, ServingConfig(), {"OTHER_KEY": "x"}, log_file=tmp_path / "log"),
    ):
        pytest.fail("an endpoint without its key was served")
    assert not (tmp_path / "log").exists()


def test_a_run_loads_no_torch_for_its_servers_and_a_server_none_for_rubrics():
    code = """
import sys
import chimera.serving.process
print({"torch", "transformers", "fastapi"} & set(sys.modules))
import chimera.serving.embedded.app
from chimera.config.sections.models import ModelConfig, ServingConfig
from chimera.serving.embedded.service import Service
Service({"judge": ModelConfig(kind="rubric")}, ServingConfig())
print({"torch", "transformers"} & set(sys.modules))
"""
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=False)
    assert done.stdout.split() == ["set()", "set()"], done.stderr


def test_answers_do_not_wait_for_delayed_acknowledgements():
    """asyncio turns Nagle's algorithm off for sockets it knows to be TCP; a mistaken family costs 40 ms an answer."""
    code = """
import socket, sys, uvicorn
from chimera.serving.embedded.__main__ import main
uvicorn.Server.run = lambda self, sockets: print(*[(one.family.name, one.proto) for one in sockets])
main(sys.argv[1:])
"""
    settings = {"api_key": "k", "models": {"judge": {"kind": "rubric"}}, "serving": {}, "log_file": "log"}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = subprocess.run(
            [sys.executable, "-c", code, "--fd", str(listener.fileno())],
            input=json.dumps(settings),
            pass_fds=[listener.fileno()],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.stdout.strip() == f"('AF_INET', {socket.IPPROTO_TCP})", done.stderr


def test_a_cache_that_memory_cannot_hold_is_one_sentence(serving_model, tmp_path):
    folder = shutil.copytree(serving_model(), tmp_path / "model")
    change(folder / "config.json", max_position_embeddings=1_000_000)
    size = {"slots": 4096, "context_length": 1_000_000}
    with refused(ConfigError, "GiB of cache", "lower serving.slots"), embedded(folder, **size):
        pytest.fail("it was served")


def test_sigterm_lets_running_requests_finish_and_later_calls_say_that_it_is_gone(running):
    """The last of the tests that share the server."""
    servers, junior = running.servers, running.servers.endpoints["junior"]
    start = generated(junior)
    with ThreadPoolExecutor(1) as pool:
        flying = pool.submit(ask, junior, response_format=LONG, max_tokens=300)
        while generated(junior) == start:
            assert not flying.done() or flying.result().status_code == 200
        os.kill(servers.pid, signal.SIGTERM)
        answer = flying.result()
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 300
    child = servers._servers["junior"]._child
    child.join()
    assert child.exit_code == 130  # uvicorn raises it again, and the command ends as by Ctrl-C.
    with pytest.raises(ModelError, match=r"does not answer /health") as caught:
        servers.versions()
    assert not caught.value.retriable
    assert "Shutting down" in str(caught.value)
