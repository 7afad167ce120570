"""Every port of a run asks for the run's key and for the name of this machine."""

import httpx
import psutil
import pytest
from lab_kit import SECRET, config_for, open_lab, task
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from chimera.config.tree import Config
from chimera.serving.auth import Authentication

pytestmark = pytest.mark.whole

KEY = "the-run-s-key"
PATHS = [
    ("GET", "/"),
    ("GET", "/health"),
    ("GET", "/docs"),
    ("GET", "/openapi.json"),
    ("GET", "/v1/models"),
    ("POST", "/admin/weights"),
    ("POST", "/v1/chat/completions"),
    ("OPTIONS", "/v1/chat/completions"),
]


@pytest.fixture
def behind_the_door():
    app = Starlette(routes=[Route("/{path:path}", lambda _: PlainTextResponse("inside"))])
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app=Authentication(app, KEY)), base_url="http://127.0.0.1:8000"
    )


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

    await Authentication(None, KEY)({"type": "websocket", "headers": []}, None, send)
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
    before = listening()
    plain = config_for(scripted_openai.url, tmp_path).model_dump(mode="json")
    config = Config.model_validate({**plain, "models": {**plain["models"], "board": {"kind": "rubric"}}})
    async with open_lab(scripted_openai.url, tmp_path, [task("any")], config=config) as lab:
        (place,) = listening() - before
        board = lab.servers.endpoints["board"]
        assert (place.ip, f"http://127.0.0.1:{place.port}/v1") == ("127.0.0.1", board.base_url)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{place.port}") as client:
            for method, path in PATHS:
                for key in (None, "sk-guess", SECRET):
                    headers = {} if key is None else {"authorization": f"Bearer {key}"}
                    answer = await client.request(method, path, headers=headers, json={})
                    assert answer.status_code == 401, (method, path, key)
                headers = {"authorization": f"Bearer {board.api_key}", "host": "attacker.example"}
                assert (await client.request(method, path, headers=headers)).status_code == 421
