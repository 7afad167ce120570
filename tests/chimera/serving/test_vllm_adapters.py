"""LoRA adapters beside the weights of vLLM replicas: published without a pause, proven, rolled back and unloaded."""

import asyncio
import shutil

import pytest
from embedded_kit import change
from message_kit import refused
from vllm_kit import add_adapter, answer_text, fleet, learner, scripted_replicas, served_model, until

from chimera.core.errors import ConfigError, ModelError
from chimera.data.tasks import load
from chimera.serving.vllm.adapters import base_of, switches
from training.configuration import load_config
from training.model.weights import LoraAdapter, write_model
from training.phases import make_phases

ASKED = {"model": "senior", "messages": [{"role": "user", "content": "q"}]}
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


@pytest.fixture
def model(serving_model, tmp_path):
    """Makes folders with merged weights; those with a `base` have the adapter, too."""

    def make(name, value, base=None):
        folder = served_model(serving_model(), tmp_path / name, value)
        if base is not None:
            add_adapter(folder, base, value - learner(base, [0, 0], "")[0])
        return folder

    return make


@pytest.fixture
def adapted(tmp_path):
    """Opens servers of a model that take adapters."""
    return lambda base, count=2: fleet(base, tmp_path, count, adapters=True)


async def said(weights):
    """What several calls at a time are answered by, and the versions on their answers."""
    answers = await asyncio.gather(*(weights.answer(ASKED, 60) for _ in range(4)))
    return {(answer_text(answer), version) for answer, version in answers}


def routes(server):
    return [path for path, *_ in server.asked if path not in ("/v1/chat/completions", "/v1/completions")]


async def test_an_adapter_goes_live_while_old_answers_are_written_and_each_has_its_own_version(model, adapted):
    base = model("base", -1.0)
    async with adapted(base) as (weights, servers):
        for server in servers:
            server.hold = asyncio.Event()
        of_base = [asyncio.create_task(weights.answer(ASKED, 60)) for _ in range(2)]
        await until(servers[0].changed, lambda: sum(server.running for server in servers) == 2)
        done = await weights.publish(model("one", -2.0, base), "senior@1")
        of_one = [asyncio.create_task(weights.answer(ASKED, 60)) for _ in range(2)]
        await until(servers[0].changed, lambda: sum(server.running for server in servers) == 4)
        await weights.publish(model("two", -3.0, base), "senior@2")
        of_two = [asyncio.create_task(weights.answer(ASKED, 60)) for _ in range(2)]
        await until(servers[0].changed, lambda: sum(server.running for server in servers) == 6)
        assert not any(task.done() for task in (*of_base, *of_one, *of_two))
        assert [len(server.adapters) for server in servers] == [2, 2]
        for server in servers:
            server.hold.set()
        answers = await asyncio.gather(*of_base, *of_one, *of_two)
        found = [(answer_text(answer), version) for answer, version in answers]
        assert found == [("-1.0", "base@0")] * 2 + [("-2.0", "senior@1")] * 2 + [("-3.0", "senior@2")] * 2
        await until(servers[0].changed, lambda: all(len(server.adapters) == 1 for server in servers))
        assert {path for server in servers for path in routes(server)} == {LOAD, UNLOAD}
        assert (list(done.seconds), done.apart) == (["write", "load", "prove"], [0.0, 0.0])


async def test_no_more_than_two_adapters_are_held_however_many_are_published(model, adapted):
    base = model("base", -1.0)
    async with adapted(base, count=1) as (weights, (server,)):
        server.hold = asyncio.Event()
        asking = []
        for number in (2, 3):
            await weights.publish(model(f"{number}", -float(number), base), f"senior@{number}")
            asking.append(asyncio.create_task(weights.answer(ASKED, 60)))
            await until(server.changed, lambda: server.running == len(asking))
        third = asyncio.create_task(weights.publish(model("4", -4.0, base), "senior@4"))
        server.hold.set()
        await asyncio.gather(third, *asking)
        assert server.most_adapters == 2
        assert await said(weights) == {("-4.0", "senior@4")}


@pytest.mark.parametrize("fault", ["refused", "not taken", "not loaded"])
async def test_an_adapter_that_one_server_lacks_leaves_the_old_one_live(model, adapted, fault):
    base = model("base", -1.0)
    async with adapted(base) as (weights, servers):
        await weights.publish(model("one", -2.0, base), "senior@1")
        if fault == "refused":
            servers[1].refuses = LOAD
        servers[1].stuck = fault == "not loaded"
        servers[1].takes_adapters = fault != "not taken"
        reason = "does not serve the weights" if fault == "not loaded" else LOAD
        with refused(ModelError, "senior@1", "server 2", reason):
            await weights.publish(model("two", -3.0, base), "senior@2")
        assert await said(weights) == {("-2.0", "senior@1")}
        assert [len(server.adapters) for server in servers] == [1, 1]
        assert "/pause" not in routes(servers[0])


async def test_the_gate_rolls_back_to_an_older_adapter_and_to_the_weights_without_one(model, adapted):
    base = model("base", -1.0)
    one, two = model("one", -2.0, base), model("two", -3.0, base)
    async with adapted(base) as (weights, servers):
        for folder, version in ((one, "senior@1"), (two, "senior@2"), (one, "senior@1")):
            await weights.publish(folder, version)
        assert await said(weights) == {("-2.0", "senior@1")}
        await weights.publish(base, "base@0")
        assert await said(weights) == {("-1.0", "base@0")}
        names = [body["lora_name"] for path, body, _ in servers[0].asked if path == LOAD]
        assert len(set(names)) == 3, "vLLM would find what it computed by the first of two equal names"
        assert [name.rpartition("-")[0] for name in names] == ["senior@1", "senior@2", "senior@1"]
        await until(servers[0].changed, lambda: not any(server.adapters for server in servers))
        assert "/pause" not in routes(servers[0])


async def test_an_adapter_of_other_weights_has_those_loaded_first_in_a_pause(model, adapted):
    base = model("base", -1.0)
    sft = model("sft", -2.0, base)
    async with adapted(base) as (weights, servers):
        await weights.publish(sft, "senior@sft")
        done = await weights.publish(model("ppo", -5.0, sft), "senior@ppo-1")
        assert [stage for stage in done.seconds if stage in ("pause", "reload", "load")] == ["pause", "reload", "load"]
        assert await said(weights) == {("-5.0", "senior@ppo-1")}
        done = await weights.publish(model("ppo2", -6.0, sft), "senior@ppo-2")
        assert list(done.seconds) == ["write", "load", "prove"]
        await weights.publish(sft, "senior@sft")  # The gate: these are the weights without an adapter now.
        assert await said(weights) == {("-2.0", "senior@sft")}
        await weights.publish(base, "base@0")
        assert await said(weights) == {("-1.0", "base@0")}
        assert not any(server.adapters for server in servers)


async def test_an_adapter_on_other_weights_that_fails_brings_the_old_adapter_back(model, adapted, tmp_path):
    base = model("base", -1.0)
    async with adapted(base) as (weights, servers):
        await weights.publish(model("one", -2.0, base), "senior@1")
        wrong = model("wrong", -7.0, model("other", -4.0))
        add_adapter(wrong, tmp_path / "other", -1.0)
        with refused(ModelError, "senior@1", "server 1", 0.0001):
            await weights.publish(wrong, "senior@2")
        assert await said(weights) == {("-2.0", "senior@1")}
        assert [len(server.adapters) for server in servers] == [1, 1]


async def test_whole_weights_are_published_when_the_adapters_own_base_is_gone(model, adapted, tmp_path):
    base = model("base", -1.0)
    new = model("new", -2.0, base)
    add_adapter(new, tmp_path / "removed", -1.0)
    async with adapted(base) as (weights, servers):
        await weights.publish(new, "senior@1")
        assert await said(weights) == {("-2.0", "senior@1")}
        assert not any(server.adapters for server in servers)


async def test_a_server_that_was_started_again_gets_the_live_adapter_before_calls(model, adapted, tmp_path):
    base = model("base", -1.0)
    again = tmp_path / "again"
    again.mkdir()
    async with adapted(base) as (weights, servers), scripted_replicas(base, again, 1) as ((fresh,), (replica,)):
        await weights.publish(model("one", -2.0, base), "senior@1")
        assert await weights.replace(0, replica) == 0.0
        assert await said(weights) == {("-2.0", "senior@1")}
        assert not [path for path, *_ in servers[0].asked if path == "/v1/chat/completions"]
        await weights.publish(model("two", -3.0, base), "senior@2")
        assert await said(weights) == {("-3.0", "senior@2")}
        await until(fresh.changed, lambda: len(fresh.adapters) == 1)


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
@pytest.mark.parametrize(
    ("beside", "saved", "written"),
    [("float32", "bfloat16", True), ("bfloat16", "bfloat16", True), ("bfloat16", "float32", False)],
)
def test_an_adapter_beside_weights_that_the_learner_rounded_is_not_written(
    serving_model, tmp_path, key, beside, saved, written
):
    import torch

    source = shutil.copytree(serving_model(), tmp_path / "source")
    change(source / "config.json", **{"dtype": None, key: saved})
    adapter = LoraAdapter(beside, {"r": 1}, {"a.lora_A.weight": torch.ones(1, 1)})
    write_model(tmp_path / "model", {"w": torch.ones(1)}, source, adapter)
    assert base_of(tmp_path / "model") == (source if written else None)


VLLM = ["models.refiner.kind=vllm", "models.refiner.python=/vllm/bin/python", "data.size=400"]


@pytest.mark.parametrize(("rank", "room"), [(1, "1"), (4, "8"), (16, "16"), (257, "320")])
def test_a_server_has_room_for_the_rank_in_the_sizes_that_vllm_knows(rank, room):
    assert switches(rank) == ["--enable-lora", "--max-lora-rank", room, "--max-loras", "2"]
    assert switches(0) == []


def test_a_phase_whose_adapters_are_larger_than_servers_take_is_refused_before_anything_starts():
    config = load_config(None, [*VLLM, "models.refiner.adapter_rank=8", "ppo.lora_rank=16"])
    assert config.lora_ranks("refiner") == {"ppo": 16}
    with refused(
        ConfigError, "models.refiner.adapter_rank=8", "ppo.lora_rank=16", "set models.refiner.adapter_rank=16"
    ):
        make_phases(("gather", "ppo"), config, load(config.data))
    fits = load_config(None, [*VLLM, "models.refiner.adapter_rank=16", "ppo.lora_rank=16"])
    assert [phase.name for phase in make_phases(("gather", "ppo"), fits, load(fits.data))] == ["gather", "ppo"]
