"""vLLM servers that sleep while the learner computes: nothing is answered meanwhile, nothing is lost, all wake up."""

import asyncio
import json

import pytest
from message_kit import refused
from vllm_kit import fleet, served_model, until, write_python

from chimera.config.sections.models import ModelConfig, ServingConfig
from chimera.core.errors import ConfigError, ModelError
from chimera.data.tasks import load
from chimera.serving.process import serve
from chimera.serving.vllm.engine import arguments
from chimera.serving.vllm.weights import prepare
from training.configuration import load_config
from training.phases import make_phases

ASKED = {"model": "senior", "messages": [{"role": "user", "content": "q"}]}
SLEEP, WAKE = "/sleep?level=1&mode=wait", "/wake_up"
ON_GPU = {"kind": "vllm", "python": "/vllm/bin/python", "gpus": ["0"], "sleep": True}


@pytest.fixture
def on_gpus(serving_model, tmp_path):
    """Two servers on GPUs and the weights behind them, to be opened."""
    return fleet(served_model(serving_model(), tmp_path / "base", -1.0), tmp_path, device="cuda")


async def test_servers_sleep_when_their_answers_have_ended_and_calls_wait_until_they_are_awake(on_gpus):
    async with on_gpus as (weights, servers):
        for server in servers:
            server.hold = asyncio.Event()
        before = [asyncio.create_task(weights.answer(ASKED, 60)) for _ in range(2)]
        await until(servers[0].changed, lambda: sum(server.running for server in servers) == 2)
        falling = asyncio.create_task(weights.sleep())
        during = [asyncio.create_task(weights.answer(ASKED, 60)) for _ in range(2)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in (*before, falling, *during))
        for server in servers:
            server.hold.set()
        await falling
        assert all(server.asleep for server in servers)
        assert not any(task.done() for task in during)
        await weights.wake()
        answers = await asyncio.gather(*before, *during)
        assert {(answer.status, version) for answer, version in answers} == {(200, "base@0")}
        for server in servers:
            assert [path for path, *_ in server.asked if path != "/v1/chat/completions"] == [SLEEP, WAKE]


async def test_a_server_that_refuses_to_sleep_ends_the_phase_and_the_others_are_woken(on_gpus):
    async with on_gpus as (weights, servers):
        servers[1].refuses = "/sleep"
        with refused(ModelError, "server 2", 500, "/sleep"):
            await weights.sleep()
        await weights.wake()
        assert not servers[0].asleep
        answer, _ = await weights.answer(ASKED, 60)
        assert answer.status == 200


async def test_nothing_is_answered_by_servers_that_do_not_wake_up(on_gpus):
    async with on_gpus as (weights, servers):
        await weights.sleep()
        servers[0].refuses = WAKE
        with refused(ModelError, "server 1", 500, "/wake_up"):
            await weights.wake()
        with refused(ModelError, "senior", "server 1", "/wake_up"):
            await weights.answer(ASKED, 60)


@pytest.mark.whole
def test_a_run_sends_only_those_servers_to_sleep_that_are_configured_so(serving_model, tmp_path):
    folder = served_model(serving_model(), tmp_path / "model", -1.0)
    sleeper = {**ON_GPU, "path": str(folder), "python": write_python(tmp_path)}
    awake = {**sleeper, "sleep": False}
    models = {name: ModelConfig.model_validate(one) for name, one in {"senior": sleeper, "junior": awake}.items()}
    with serve(models, ServingConfig(), {}, log_file=tmp_path / "models.log") as servers:
        servers.sleep()
        servers.wake()
    noted = [json.loads(line) for line in (tmp_path / "vllm-publishes.jsonl").read_text().splitlines()]
    assert [(one["slot"], list(one["seconds"])) for one in noted] == [("senior", ["sleep"]), ("senior", ["wake"])]


def test_servers_are_started_with_vllms_sleep_mode_only_where_it_is_asked_for(serving_model, tmp_path):
    folder = prepare(serving_model(), tmp_path / "served")
    for sleep in (True, False):
        model = ModelConfig.model_validate({**ON_GPU, "sleep": sleep})
        made = arguments(model, ServingConfig(), folder, tmp_path / "socket", "0")
        assert ("--enable-sleep-mode" in made) is sleep


def test_rollouts_ahead_of_an_update_and_sleep_during_it_are_refused_together():
    given = [f"models.junior.{key}={value}" for key, value in ON_GPU.items()]
    config = load_config(None, [*given, "ppo.ahead=1", "data.size=400"])
    with refused(ConfigError, "ppo.ahead=1", "sleep=true", "not both"):
        make_phases(("gather", "ppo"), config, load(config.data))
