"""Every port of a run asks for the run's key and for the name of this machine."""

import httpx
import psutil
import pytest
from lab_kit import config_for, open_lab, task
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from agents.policies.choice import SelectionSpec
from chimera.config.tree import Config
from chimera.core.errors import RunError
from chimera.serving.door import Door
from training.lab.resources import describe, endpoints

pytestmark = pytest.mark.whole

KEY = "the-run-s-key"
PATHS = [
    ("GET", "/"),
    ("GET", "/health"),
    ("GET", "/docs"),
    ("GET", "/openapi.json"),
    ("GET", "/v1/models"),
    ("GET", "/v1/agl/health"),
    ("GET", "/v1/agl/rollouts"),
    ("GET", "/v1/agl/resources/latest"),
    ("POST", "/v1/agl/queues/rollouts/dequeue"),
    ("POST", "/v1/agl/queues/rollouts/enqueue"),
    ("POST", "/v1/agl/resources"),
    ("POST", "/v1/traces"),
    ("POST", "/admin/weights"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/rollout/ro-1/attempt/at-1/v1/chat/completions"),
    ("OPTIONS", "/v1/agl/rollouts"),
]


@pytest.fixture
def behind_the_door():
    app = Starlette(routes=[Route("/{path:path}", lambda _: PlainTextResponse("inside"))])
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=Door(app, KEY)), base_url="http://127.0.0.1:8000")


@pytest.mark.parametrize(
    "shown", [None, "", KEY, f"Basic {KEY}", f"Bearer {KEY}x", "Bearer ", f"Bearer  {KEY}", "Bearer é"]
)
async def test_without_the_key_nobody_comes_in(behind_the_door, shown):
    headers = {} if shown is None else {"authorization": shown.encode()}
    answer = await behind_the_door.get("/", headers=headers)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert KEY not in answer.text


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8000", 200),
        ("127.0.0.1", 200),
        ("localhost:1", 200),
        ("[::1]:8000", 200),
        ("attacker.example:8000", 421),
        ("127.0.0.1.attacker.example", 421),
        ("", 421),
    ],
)
async def test_the_name_that_is_asked_for_must_be_this_machine_s(behind_the_door, host, status):
    answer = await behind_the_door.get("/", headers={"host": host, "authorization": f"Bearer {KEY}"})
    assert answer.status_code == status


async def test_web_sockets_are_closed():
    sent = []

    async def send(message):
        sent.append(message)

    await Door(None, KEY)({"type": "websocket", "headers": []}, None, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]


def listening():
    """The ports that this process and its children listen on."""
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return {
        connection.laddr
        for process in family
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    }


async def test_every_port_of_a_run_refuses_who_has_no_key_of_its_own(scripted_openai, tmp_path):
    """What another user of the machine can do: look for ports and knock."""
    scripted_openai.hooks[:] = [scripted_openai.never]
    before = listening()
    rubrics = {key: {"kind": "rubric"} for key in ("board", "principal", "judge")}
    plain = config_for(scripted_openai.url, tmp_path, runners=1)
    models = {**plain.model_dump(mode="json")["models"], **rubrics}
    config = Config.model_validate({**plain.model_dump(mode="json"), "models": models})
    async with open_lab(scripted_openai.url, tmp_path, [task("any")], config=config) as lab:
        ports = {place.port: place.ip for place in listening() - before}
        assert set(ports.values()) == {"127.0.0.1"}
        keys = {lab.store.endpoint: lab.store.key, lab.gateway.url: lab.gateway.key}
        board = lab.servers.endpoints["board"]
        keys[board.base_url.removesuffix("/v1")] = board.api_key
        assert {f"http://127.0.0.1:{port}" for port in ports} == set(keys)
        for url, own in keys.items():
            others = [key for place, key in keys.items() if place != url]
            async with httpx.AsyncClient(base_url=url) as client:
                for method, path in PATHS:
                    for key in (None, "sk-guess", *others):
                        headers = {} if key is None else {"authorization": f"Bearer {key}"}
                        answer = await client.request(method, path, headers=headers, json={})
                        assert answer.status_code == 401, (url, method, path, key)
                    headers = {"authorization": f"Bearer {own}", "host": "attacker.example"}
                    assert (await client.request(method, path, headers=headers)).status_code == 421


def test_a_runner_gives_its_key_to_the_run_s_own_gateway_only(attempted_rollout):
    config = Config()
    selection = SelectionSpec(policy=None, folder=None, exploration=0.0)
    versions = {"supervisor": "rubric"}
    own = describe("http://127.0.0.1:5000", config.models, versions, selection)
    found = endpoints(own, attempted_rollout, config.models, "http://127.0.0.1:5000", "key")
    assert found["supervisor"].base_url == "http://127.0.0.1:5000/rollout/ro-1/attempt/at-1/v1"
    for foreign in ("http://127.0.0.1:6000", "http://127.0.0.1:50001", "http://attacker.example"):
        other = describe(foreign, config.models, versions, selection)
        with pytest.raises(RunError, match="not this run's gateway"):
            endpoints(other, attempted_rollout, config.models, "http://127.0.0.1:5000", "key")


@pytest.fixture
def attempted_rollout():
    import agentlightning as agl

    attempt = agl.Attempt(rollout_id="ro-1", attempt_id="at-1", sequence_id=1, start_time=0.0)
    return agl.AttemptedRollout(rollout_id="ro-1", input={}, start_time=0.0, attempt=attempt)
