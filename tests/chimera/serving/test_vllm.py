"""Weights behind vLLM replicas: which replica a call goes to, the order of a publish, its proof, and the stamps."""

import asyncio
import json
import os
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from message_kit import refused
from vllm_kit import answer_text, fleet, scripted_replicas, served_model, until

from chimera.config.sections.models import ModelConfig, ServingConfig
from chimera.core.errors import ConfigError, ModelError
from chimera.processes.programs import Program
from chimera.serving.process import check_models
from chimera.serving.sharing import share
from chimera.serving.vllm.engine import arguments
from chimera.serving.vllm.publish import Loaded, ServedWeights
from chimera.serving.vllm.replicas import Replica, least_busy
from chimera.serving.vllm.weights import prepare
from training.configuration import load_config

PYTHON = "/vllm/bin/python"
VLLM = ["models.junior.kind=vllm", f"models.junior.python={PYTHON}"]
REFINER = ["models.refiner.kind=vllm", f"models.refiner.python={PYTHON}"]
ROUTES = [
    "/pause?mode=wait",
    "/collective_rpc",
    "/reset_prefix_cache",
    "/update_weight_version",
    "/resume",
    "/v1/completions",
]
ASKED = {"model": "senior", "messages": [{"role": "user", "content": "q"}], "seed": 3}


@pytest.fixture
def model(serving_model, tmp_path):
    """Makes folders with a model and what a scripted server computes with it."""
    return lambda name, value, **options: served_model(serving_model(**options), tmp_path / name, value)


def test_a_call_goes_to_the_replica_with_the_fewest_answers_under_way():
    replicas = [Replica(name, "", "", busy=busy) for name, busy in (("a", 2), ("b", 1), ("c", 1))]
    assert least_busy(replicas).name == "b"


async def test_calls_are_shared_among_replicas_while_they_answer(model, tmp_path):
    async with fleet(model("base", -1.0), tmp_path) as (weights, servers):
        for server in servers:
            server.hold = asyncio.Event()
        asking = [asyncio.create_task(weights.answer(ASKED, 60)) for _ in range(4)]
        await until(servers[0].changed, lambda: sum(server.running for server in servers) == 4)
        assert [server.running for server in servers] == [2, 2]
        for server in servers:
            server.hold.set()
        assert {version for _, version in await asyncio.gather(*asking)} == {"base@0"}


async def test_a_server_that_refuses_because_it_is_about_to_end_has_its_call_made_by_another(model, tmp_path):
    prepared = prepare(model("base", -1.0), tmp_path / "served" / "0")
    async with scripted_replicas(prepared, tmp_path, 2) as (servers, replicas):
        replicas[0].program = Program("vLLM server 1", ["/bin/sleep", "0.3"], tmp_path / "log", dict(os.environ))
        weights = ServedWeights("senior", replicas, Loaded("base@0", prepared, prepared), "float32", tmp_path)
        servers[0].refuses = "/v1/chat/completions"
        answer, version = await weights.answer(ASKED, 60)
        assert (answer.status, version, len(servers[1].asked)) == (200, "base@0", 1)


@pytest.mark.parametrize(("device", "seeds"), [("cpu", [None, None]), ("cuda", [3, 3])])
async def test_no_seed_reaches_vllm_on_a_processor_which_would_end_by_it(model, tmp_path, device, seeds):
    async with fleet(model("base", -1.0), tmp_path, device=device) as (weights, servers):
        await asyncio.gather(weights.answer(ASKED, 60), weights.answer(ASKED, 60))
        sent = [body for server in servers for path, body, _ in server.asked if path == "/v1/chat/completions"]
        assert [body.get("seed") for body in sent] == seeds
        assert {body["model"] for body in sent} == {"weights"}


async def test_a_publish_waits_for_answers_and_holds_calls_back_so_that_no_answer_has_two_versions(model, tmp_path):
    base, new = model("base", -1.0), model("new", -2.0, seed=1)
    async with fleet(base, tmp_path) as (weights, servers):
        for server in servers:
            server.hold = asyncio.Event()
        before = [asyncio.create_task(weights.answer(ASKED, 60)) for _ in range(2)]
        await until(servers[0].changed, lambda: sum(server.running for server in servers) == 2)
        publishing = asyncio.create_task(weights.publish(new, "senior@1"))
        await until(servers[0].changed, lambda: all(server.paused for server in servers))
        during = [asyncio.create_task(weights.answer(ASKED, 60)) for _ in range(2)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in (*before, *during, publishing))
        for server in servers:
            server.hold.set()
        done = await publishing
        answers = await asyncio.gather(*before, *during)
        found = [(answer_text(answer), version) for answer, version in answers]
        assert found == [("-1.0", "base@0")] * 2 + [("-2.0", "senior@1")] * 2
        for server in servers:
            assert [path for path, *_ in server.asked if path != "/v1/chat/completions"] == ROUTES
            assert {key for *_, key in server.asked} == {"Bearer a-key"}
        assert done.apart == [0.0, 0.0]
        assert list(done.seconds) == ["write", "pause", "reload", "cache", "version", "resume", "prove"]


async def test_a_replica_that_keeps_its_old_weights_is_found_by_the_probe_and_all_stay_at_the_old_ones(model, tmp_path):
    base, new = model("base", -1.0), model("new", -1.001, seed=1)
    async with fleet(base, tmp_path) as (weights, servers):
        servers[1].stuck = True
        with refused(ModelError, "base@0", "server 2", 0.001, 0.0001):
            await weights.publish(new, "senior@1")
        assert weights.version == "base@0"
        answers = await asyncio.gather(*(weights.answer(ASKED, 60) for _ in range(4)))
        assert {(answer_text(answer), version) for answer, version in answers} == {("-1.0", "base@0")}


async def test_nothing_is_answered_when_neither_new_nor_old_weights_can_be_loaded(model, tmp_path):
    async with fleet(model("base", -1.0), tmp_path) as (weights, servers):
        servers[0].refuses = "/collective_rpc"
        with refused(ModelError, "base@0", "server 1", 500, "/collective_rpc", "scripted refusal"):
            await weights.publish(model("new", -2.0), "senior@1")
        with refused(ModelError, "senior", "server 1", "/collective_rpc", "--resume"):
            await weights.answer(ASKED, 60)


async def test_bfloat16_is_given_the_room_of_its_eight_bits_and_no_more(model, tmp_path):
    async with fleet(model("base", -1.0), tmp_path, count=1, dtype="bfloat16") as (weights, servers):
        servers[0].stuck = True
        await weights.publish(model("near", -1.04), "senior@1")
        with refused(ModelError, "senior@1", "server 1", 0.06, 0.05, "bfloat16"):
            await weights.publish(model("far", -1.06), "senior@2")


def test_a_tied_head_gets_a_file_of_its_own_and_nothing_else_is_copied(serving_model, tmp_path):
    from safetensors.torch import load_file

    source = serving_model(tied=True)
    folder = prepare(source, tmp_path / "served")
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    assert index["lm_head.weight"] == "lm_head.safetensors"
    tensors = {name: tensor for file in set(index.values()) for name, tensor in load_file(folder / file).items()}
    assert set(tensors) == set(index)
    assert (tensors["lm_head.weight"] == tensors["model.embed_tokens.weight"]).all()
    assert not json.loads((folder / "config.json").read_text())["tie_word_embeddings"]
    copied = {file.name for file in folder.iterdir() if not file.is_symlink()}
    assert copied == {"config.json", "lm_head.safetensors", "model.safetensors.index.json"}


def test_a_pickle_is_not_given_to_vllm(serving_model, tmp_path):
    folder = shutil.copytree(serving_model(), tmp_path / "model")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with refused(ConfigError, "pytorch_model.bin", "pickle", "safetensors"):
        prepare(folder, tmp_path / "served")


def slot(**settings):
    return ModelConfig.model_validate({"kind": "vllm", "python": PYTHON, **settings})


def test_slots_with_equal_servers_share_them_unless_they_learn():
    models = {"junior": slot(), "supervisor": slot(temperature=0.2), "senior": slot(), "refiner": slot(replicas=2)}
    assert share(models, ()) == [("junior", "supervisor", "senior"), ("refiner",)]
    assert share(models, {"senior"}) == [("junior", "supervisor"), ("senior",), ("refiner",)]


def test_a_slot_that_learns_shares_no_running_server_and_none_that_a_network_reaches():
    here = slot(python=None, urls=["http://127.0.0.1:8001"])
    with refused(
        ConfigError, "models.senior.urls", "models.junior.urls", "http://127.0.0.1:8001", "servers of its own"
    ):
        share({"junior": here, "senior": here}, {"senior"})
    with refused(ConfigError, "models.senior.urls", "http://lab.example:8001", "SSH tunnel", "models.senior.python"):
        share({"senior": slot(python=None, urls=["http://lab.example:8001"])}, {"senior"})
    assert share({"senior": slot(python=None, urls=["http://lab.example:8001"])}, ()) == [("senior",)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["models.junior.kind=vllm"], "needs either python"),
        ([*VLLM, "models.junior.urls=[http://x]"], "needs either"),
        ([*VLLM, "models.junior.gpus=['0', '1']"], "2 places"),
        ([*VLLM, "models.junior.sleep=true"], ("sleep", "gpus")),
        (["models.junior.replicas=2"], ("models.junior.replicas", "remove it")),
        (["models.junior.sleep=true"], ("models.junior.sleep", "remove it")),
        (["models.junior.adapter_rank=8"], ("models.junior.adapter_rank", "remove it")),
        ([*REFINER, "models.refiner.adapter_rank=8"], ("models.refiner.adapter_rank", "no phase", "LoRA")),
        ([*REFINER, "models.refiner.adapter_rank=513", "ppo.lora_rank=8"], "512"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_in_a_sentence(settings, message):
    with refused(ConfigError, message):
        load_config(None, settings)


def test_a_python_that_is_none_is_refused_before_anything_starts(tmp_path):
    models = {"senior": slot(python=str(tmp_path / "bin" / "python"))}
    with refused(ConfigError, "models.senior.python=", "bin/python", "absolute path"):
        check_models(models, {})


def test_slots_inherit_servers_and_only_those_that_learn_have_their_own():
    config = load_config(None, VLLM)
    served = [name for name, one in config.models.items() if one.kind == "vllm"]
    assert set(served) == {"junior", "supervisor", "senior", "refiner"}
    assert config.learning() == {"junior", "senior", "refiner"}
    assert load_config().learning() == set()


def test_weights_behind_vllm_are_weights_that_phases_may_train():
    from chimera.data.tasks import load
    from training.phases import make_phases

    config = load_config(None, [*VLLM, "data.size=400"])
    phases = make_phases(tuple(config.pipeline), config, load(config.data))
    assert [phase.name for phase in phases if phase.learns] == ["sft", "ppo", "design", "bandit"]
    halved = load_config(None, [*VLLM, "models.junior.dtype=bfloat16"])
    with refused(ConfigError, "models.refiner.dtype=bfloat16", "ppo", "set it to float32", "rejection"):
        make_phases(("gather", "ppo"), halved, load(config.data))


def test_the_servers_command_holds_no_key_and_ends_with_the_users_own_arguments(serving_model, tmp_path):
    folder = prepare(serving_model(context=512), tmp_path / "served")
    model = slot(replicas=1, gpus=["4,5"], cache_gib=0.5, args=["--seed", "1"])
    made = arguments(model, ServingConfig(slots=4), folder, Path("/tmp/s/0"), "4,5")
    given = dict(pairwise(made))
    assert given["--uds"] == "/tmp/s/0"
    assert given["--tensor-parallel-size"] == "2"
    assert given["--max-model-len"] == "512"
    assert given["--kv-cache-memory-bytes"] == str(2**29)
    assert made[-2:] == ["--seed", "1"]
    assert not {"--port", "--host", "--api-key", "--enforce-eager"} & set(made)
