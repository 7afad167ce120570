"""`python -m chimera doctor`: what it finds out about servers, tools and the machine before a run."""

import json

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from config_kit import unread_data

from agents.tools.toolbox import build_toolbox
from chimera import doctor
from chimera.core.types import Brief
from chimera.data.tasks import load
from chimera.serving.client import Endpoint
from evaluation.probes.context import told_context
from evaluation.probes.machine import machine_findings
from evaluation.probes.tools import tool_findings
from training.configuration import load_config

SLOTS = ("junior", "supervisor", "senior", "board", "principal", "judge")


@pytest.fixture
def asked(scripted_openai, tmp_path, monkeypatch, capsys):
    """Runs the command against the scripted server; gives exit code and findings by area and name."""
    monkeypatch.chdir(tmp_path)
    for name in ("WANDB_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    scripted_openai.hooks.clear()

    def run(*overrides, hook=None, url=None):
        scripted_openai.hooks[:] = [hook] if hook else []
        models = {
            key: {"kind": "endpoint", "base_url": url or scripted_openai.url, "model": "m", "structured": "always"}
            for key in SLOTS
        }
        config = {"models": models, "data": {"size": 40}, "pipeline": {"gather": {"tasks": 4}}}
        (tmp_path / "c.yaml").write_text(json.dumps(config))
        code = doctor.main(["--json", "--config", "c.yaml", *overrides])
        found = json.loads(capsys.readouterr().out)
        return code, {(one["area"], one["what"]): (one["level"], one["text"]) for one in found}

    yield run
    scripted_openai.hooks.clear()


@pytest.mark.parametrize("own", [True, False])
def test_the_bundled_model_with_data_that_it_cannot_read_is_a_warning(tmp_path, own):
    class Enough(Exception):
        pass

    found = []

    def tell(one):
        found.append(one)
        if one.area == "pipeline":
            raise Enough  # Models would be started next.

    config = load_config(None, [f"data.path={unread_data(tmp_path)}"] if own else [])
    with pytest.raises(Enough):
        doctor.examine(config, tell)
    warnings = [one for one in found if one.what == "bundled model"]
    assert [one.level for one in warnings] == (["warning"] if own else [])
    for one in warnings:
        assert "plays junior, supervisor, senior, refiner: a toy" in one.text
        assert "models.junior.path=FOLDER" in one.text


def test_servers_that_can_do_everything(asked):
    code, found = asked()
    assert code == 0
    assert not [one for one in found.values() if one[0] in ("warning", "fault")]
    said = "Geneticist: without a JSON schema it calls a tool; beside one it calls a tool"
    assert found["models.junior", "tools"] == ("ok", said)
    assert found["pipeline", "gather"] == ("ok", "gather can run")
    level, text = found["rollout", "one task"]
    assert level == "ok"
    assert "decision GO" in text
    assert "literature_search" in text
    assert found["models.junior", "context"][0] == "note"
    assert found["models.board", "answers"][0] == "ok"
    assert ("models.board", "response ids") not in found
    assert ("models.board", "tools") not in found, "no role of this slot has tools"


def test_a_server_that_never_calls_a_tool_beside_a_schema_is_named_with_the_setting(asked):
    def silent(request):
        if request.get("tools") and "response_format" in request:
            return {"evidence": ["x"], "comparison": "x", "claim": "x", "answer": "yes"}
        return None

    code, found = asked(hook=silent)
    level, text = found["models.junior", "tools"]
    assert level == "warning"
    assert text.endswith("beside one it calls none; set models.junior.structured=final")
    assert code == 0


def test_a_server_that_refuses_schemas_cannot_work_unless_none_are_sent(asked):
    def refusing(request):
        return (400, "response_format is not known here") if "response_format" in request else None

    code, found = asked(hook=refusing)
    level, text = found["models.junior", "JSON schema"]
    assert (code, level) == (1, "fault")
    assert "response_format is not known here" in text
    assert text.endswith("set models.junior.structured=never")
    assert ("rollout", "one task") not in found


@pytest.mark.parametrize(("name", "said"), [("", "4 had no id and 0"), ("same", "0 had no id and 3")])
def test_ids_that_are_empty_or_repeat_are_one_line(asked, scripted_openai, name, said):
    scripted_openai.response_id = name
    try:
        found = asked()[1]
    finally:
        scripted_openai.response_id = None
    level, text = found["models.board", "response ids"]
    assert (level, said in text) == ("note", True)


def test_a_server_that_is_not_there_is_said_once_with_all_its_slots(asked, scripted_openai):
    code, found = asked(f"models.senior.base_url={scripted_openai.url}", url="http://127.0.0.1:9/v1")
    assert code == 1
    faults = {area: text for (area, what), (level, text) in found.items() if level == "fault" and what == "answers"}
    (text,) = faults.values()
    assert "models.junior" in faults
    assert "http://127.0.0.1:9/v1) cannot be reached (Cannot connect to host 127.0.0.1:9 " in text
    assert "(models.supervisor, models.board, models.principal, models.judge would ask it too)" in text
    assert found["models.senior", "answers"][0] == "ok"


def test_a_phase_that_cannot_run_is_a_fault_with_its_reason(asked):
    code, found = asked("pipeline.sft={roles: [juniors]}")
    level, text = found["pipeline", "sft"]
    assert (code, level) == (1, "fault")
    assert "models.junior" in text
    assert found["pipeline", "the rest"] == ("ok", "python -m chimera.train --phases gather can run")


@pytest.mark.parametrize(
    ("overrides", "place", "said"),
    [
        (["wandb.mode=online"], ("wandb", "online"), "WANDB_API_KEY"),
        (["models.junior.api_key_env=OPENAI_API_KEY"], ("models", "start"), "OPENAI_API_KEY"),
        (
            ["models.junior.provider=nonsense", "models.junior.structured=auto"],
            ("models", "start"),
            "models.junior.provider=nonsense: ",
        ),
        (["data.path=nofile.csv"], ("data", "nofile.csv"), "nofile.csv: no such file"),
    ],
    ids=["W&B without key", "server without key", "unknown provider", "no data"],
)
def test_what_is_not_there_is_a_fault_that_names_it(asked, overrides, place, said):
    code, found = asked(*overrides)
    level, text = found[place]
    assert (code, level) == (1, "fault")
    assert said in text


@pytest.mark.parametrize("address", ["http://wandb.lan", "", "wandb.lan", "http://wandb.lan:b", "http://127.0.0.1:9"])
def test_a_server_of_wandb_is_tried_at_its_address_through_the_proxy(scripted_openai, monkeypatch, address):
    for name, value in (("WANDB_BASE_URL", address), ("HTTP_PROXY", scripted_openai.url), ("NO_PROXY", "127.0.0.1")):
        monkeypatch.setenv(name, value)
    *_, wandb = machine_findings(load_config(None, ["wandb.mode=online"]), {"WANDB_API_KEY": "k"})
    reached = address == "http://wandb.lan"
    assert (wandb.level, f"WANDB_BASE_URL={address}" in wandb.text) == ("ok" if reached else "warning", not reached)


@pytest.mark.parametrize("told", [{"max_model_len": 4096}, {"meta": {"n_ctx": 4096, "n_ctx_train": 32768}}])
async def test_the_context_is_read_as_vllm_and_as_llama_cpp_tell_it(told):
    app = web.Application()
    app.router.add_get("/v1/models", lambda _: web.json_response({"data": [{"id": "m", **told}]}))
    async with TestServer(app) as server:
        assert await told_context(Endpoint(str(server.make_url("/v1")), "m", "key")) == 4096


@pytest.mark.whole
def test_the_bundled_model_works_as_configured(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text("data: {size: 40}\npipeline: {gather: {tasks: 4}}\n")
    assert doctor.main(["--config", "c.yaml", "models.refiner.max_tokens=1500"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "models.junior: context 2,048 tokens, of which an answer may take 768" in said
    assert "prompts of more than 548 fail: lower models.refiner.max_tokens" in said
    assert "models.junior: token ids" in said
    # One rollout of a sampled model may need an answer twice, which is a warning.
    assert "the configured run can work; warnings: " in said


@pytest.mark.parametrize("goal", ["word " * 200, "x" * 1000])
async def test_a_question_that_is_longer_than_a_query_is_cut_for_a_search(goal):
    config = load_config(overrides=["data.size=40"])
    tools = build_toolbox(config.tools, load(config.data).documents(), {})
    found = await tool_findings(config, tools, Brief("1", goal, ()))
    assert {one.what: one.level for one in found if one.what == "literature_search"} == {"literature_search": "ok"}
