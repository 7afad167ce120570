"""Weights that are sent to vLLM's workers in place of files: equal bytes, failures in words, and settings."""

import ast
import asyncio
import json
import re
import shutil
import sys
import threading
import time
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from types import SimpleNamespace

import psutil
import pytest
import torch
from transfer_kit import ReceivingVllm, load_whole, scripted_worker, total_of
from vllm_kit import scripted_replicas, until

from chimera.config.sections.models import ModelConfig, ServingConfig
from chimera.config.tree import load_config
from chimera.core.errors import ConfigError, ModelError
from chimera.core.ports import free_port
from chimera.serving.process import check_models
from chimera.serving.vllm import broadcast
from chimera.serving.vllm.broadcast import Broadcast, transfer_of
from chimera.serving.vllm.engine import RECEIVER, arguments
from chimera.serving.vllm.publish import Loaded, ServedWeights
from chimera.serving.vllm.receiver import chimera_receiver
from chimera.serving.vllm.receiver.chimera_receiver import WeightReceiver
from chimera.serving.vllm.sending import free_gpu, manifest, sending_device
from chimera.serving.vllm.transfer import FILES
from chimera.serving.vllm.weights import prepare

ASKED = {"model": "senior", "messages": [{"role": "user", "content": "q"}]}
PAUSE = "/pause?mode=wait"
SETTING = "models.senior.transfer"
RECEIVING = partial(ReceivingVllm, receiver=WeightReceiver)


@asynccontextmanager
async def fleet(base, tmp_path, make=RECEIVING, count=2):
    """Servers of `base`, and one set of weights behind them that is sent by gloo."""
    prepared = prepare(base, tmp_path / "served" / "0")
    async with scripted_replicas(prepared, tmp_path, count, make=make) as (servers, replicas):
        first = Loaded("base@0", base, prepared)
        transfer = Broadcast("gloo", SETTING)
        weights = ServedWeights("senior", replicas, first, "float32", tmp_path / "served", total_of, transfer=transfer)
        yield weights, servers


def equal(got, folder):
    """True if tensors are those of the model in `folder`, bit by bit and in type."""
    whole = load_whole(folder)
    return set(got) == set(whole) and all(
        got[name].dtype == tensor.dtype and torch.equal(got[name].view(torch.uint8), tensor.view(torch.uint8))
        for name, tensor in whole.items()
    )


async def versions(weights):
    answers = await asyncio.gather(*(weights.answer(ASKED, 60) for _ in range(4)))
    return {(float(json.loads(one.content)["choices"][0]["message"]["content"]), version) for one, version in answers}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
async def test_all_workers_of_all_replicas_get_every_byte_and_no_path(serving_model, tmp_path, monkeypatch, dtype):
    from safetensors.torch import load_file, save_file

    monkeypatch.setattr(chimera_receiver, "PIECE", 1000)  # So that most tensors come in pieces.
    new = shutil.copytree(serving_model(seed=1, tied=True), tmp_path / "new")
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(new / "model.safetensors").items()}
    save_file(tensors, new / "model.safetensors", {"format": "pt"})
    async with fleet(serving_model(), tmp_path, partial(RECEIVING, count=2)) as (weights, servers):
        done = await weights.publish(new, "senior@1")
        for server in servers:
            assert all(equal(worker.got, new) for worker in server.workers)
            asked = [path for path, *_ in server.asked]
            assert asked == [
                *(PAUSE, "/collective_rpc", "/collective_rpc", "/reset_prefix_cache"),
                *("/update_weight_version", "/resume", "/v1/completions"),
            ]
            assert str(tmp_path) not in json.dumps(server.asked)
        assert await versions(weights) == {(total_of(new, [0, 0], "")[0], "senior@1")}
        assert (done.transfer, done.apart) == ("gloo", [0.0, 0.0])
        assert list(done.seconds) == ["write", "pause", "reload", "cache", "version", "resume", "prove"]


async def test_one_publish_after_another_is_sent_and_all_ends_listen_on_loopback_only(serving_model, tmp_path):
    seen = set()

    def look(number):
        connections = psutil.Process().net_connections(kind="inet")
        seen.update(one.laddr.ip for one in connections if one.status == psutil.CONN_LISTEN)

    async with fleet(serving_model(), tmp_path) as (weights, servers):
        servers[0].workers[0].on_tensor = look
        for number in (1, 2, 1):
            folder = serving_model(seed=number)
            await weights.publish(folder, f"senior@{number}")
            assert all(equal(server.workers[0].got, folder) for server in servers)
    assert seen == {"127.0.0.1"}


async def test_weights_that_a_server_refuses_leave_the_old_ones_live_on_all(serving_model, tmp_path):
    base = serving_model()
    async with fleet(base, tmp_path, partial(RECEIVING, count=2)) as (weights, servers):

        def refuse(number):
            if number == 3:
                worker.on_tensor = lambda number: None
                raise ValueError("shapes differ")

        worker = servers[1].workers[1]
        worker.on_tensor = refuse
        sentence = r"senior stays at base@0: server 2 refused the weights that came by gloo: ValueError: shapes differ"
        with pytest.raises(ModelError, match=sentence):
            await weights.publish(serving_model(seed=1), "senior@1")
        assert all(equal(one.got, base) for server in servers for one in server.workers)
        assert await versions(weights) == {(total_of(base, [0, 0], "")[0], "base@0")}


async def test_a_worker_that_hangs_ends_the_transfer_in_words_and_the_old_weights_are_sent_again(
    serving_model, tmp_path, monkeypatch
):
    base, skipped, hangs = serving_model(), [0.0], threading.Event()
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + skipped[0], sleep=time.sleep)
    monkeypatch.setattr(chimera_receiver, "time", clock)
    made = chimera_receiver._group

    def group(*given):  # Closing the group that hangs takes as long as gloo itself waits.
        return made(*given[:-1], given[-1] if skipped[0] else timedelta(seconds=6))

    monkeypatch.setattr(chimera_receiver, "_group", group)
    monkeypatch.setattr(broadcast, "END_S", 4)  # More than server 1 needs to answer on a busy machine.
    async with fleet(base, tmp_path) as (weights, servers):
        worker = servers[1].workers[0]

        def hang(number):
            if number == 3:
                worker.on_tensor = lambda number: None
                skipped[0] += 10_000
                hangs.wait()

        worker.on_tensor = hang
        publishing = asyncio.create_task(weights.publish(serving_model(seed=1), "senior@1"))
        # It goes on when the old weights are about to be sent again.
        await until(servers[1].changed, lambda: len([path for path, *_ in servers[1].asked if path == PAUSE]) == 2)
        hangs.set()
        sentence = (
            r"senior stays at base@0: sending weights by gloo ended early \(models\.senior\.transfer\): .*nothing went "
            "on for 120 s.*; no answer from server 2"
        )
        with pytest.raises(ModelError, match=sentence):
            await publishing
        assert all(equal(server.workers[0].got, base) for server in servers)
        assert await versions(weights) == {(total_of(base, [0, 0], "")[0], "base@0")}


async def test_the_end_that_gives_up_explains_the_connections_that_the_others_lose(serving_model, tmp_path):
    async with fleet(serving_model(), tmp_path) as (weights, servers):

        def give_up(number):
            if number == 3:
                worker.on_tensor = lambda number: None
                raise chimera_receiver.TransferSilent("nothing went on for 120 s")

        worker = servers[1].workers[0]
        worker.on_tensor = give_up
        sentence = r"senior stays at base@0: .* ended early \(models\.senior\.transfer\): server 2: nothing went on for"
        with pytest.raises(ModelError, match=sentence):
            await weights.publish(serving_model(seed=1), "senior@1")


async def test_a_server_without_the_receiver_is_a_sentence_with_the_remedy_and_keeps_its_weights(
    serving_model, tmp_path
):
    async with scripted_replicas(serving_model(), tmp_path, 1) as (_, replicas):
        sentence = (
            r"server 1 cannot take weights by gloo \(it answered 500 to /collective_rpc: Method 'chimera_place' is not "
            rf"implemented\.\): start it with VLLM_SERVER_DEV_MODE=1, PYTHONPATH={re.escape(str(RECEIVER))} and "
            r"--worker-extension-cls chimera_receiver\.WeightReceiver, or set models\.senior\.transfer=files"
        )
        with pytest.raises(ConfigError, match=sentence):
            await Broadcast("gloo", SETTING).check(replicas)
        await FILES.check(replicas)


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ({"format": 0}, "server 1 has a receiver of another version: give it the run's own"),
        ({"ranks": 2}, "server 1 tells 1 of its 2 workers, as data-parallel servers do: use several servers"),
        ({"device": "cpu"}, r"server 1 computes on cpu, not on a GPU: set models\.senior\.transfer=gloo"),
    ],
)
async def test_servers_that_cannot_receive_say_why(serving_model, tmp_path, place, sentence):
    async with scripted_replicas(serving_model(), tmp_path, 1, make=RECEIVING) as (servers, replicas):
        (worker,) = servers[0].workers
        told = {**worker.chimera_place(), **place}
        worker.chimera_place = lambda: told
        with pytest.raises(ConfigError, match=sentence):
            await Broadcast("nccl", SETTING).check(replicas)


async def test_a_server_that_does_not_reach_the_run_names_the_setting(serving_model, tmp_path):
    prepared = prepare(serving_model(), tmp_path / "served")
    async with scripted_replicas(prepared, tmp_path, 1, make=RECEIVING) as (servers, replicas):
        (worker,) = servers[0].workers
        receive, elsewhere = worker.receive_chimera_weights, free_port()
        worker.receive_chimera_weights = lambda port, **given: receive(port=elsewhere, **given)
        servers[0].paused = True
        sentence = r"server 1 does not reach the run at 127.0.0.1:\d+ \(.*refused\): cluster\.host must be an address"
        with pytest.raises(ModelError, match=sentence):
            await Broadcast("gloo", SETTING).load(prepared, replicas)


async def test_an_address_that_is_not_of_this_machine_is_refused_before_weights_are_to_be_sent(serving_model, tmp_path):
    prepared = prepare(serving_model(), tmp_path / "served")
    async with scripted_replicas(prepared, tmp_path, 1, make=RECEIVING) as (servers, replicas):
        elsewhere, servers[0].paused = Broadcast("gloo", SETTING, host="192.0.2.1"), True
        sentence = r"no port of 192\.0\.2\.1 can be opened \(.*\): set cluster\.host to an address of this machine"
        with pytest.raises(ConfigError, match=sentence):
            await elsewhere.check(replicas)
        with pytest.raises(ModelError, match=sentence):
            await elsewhere.load(prepared, replicas)


def test_a_tensor_of_a_type_that_is_not_sent_is_named(serving_model, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(serving_model(), tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.float8_e4m3fn)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"the tensor model\.norm\.weight in .* is of type F8_E4M3, which is not sent"):
        manifest(prepare(folder, tmp_path / "served"))


def test_what_vllm_loads_imports_torch_and_nothing_else_that_python_lacks():
    tree = ast.parse((RECEIVER / "chimera_receiver.py").read_text())
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported - set(sys.stdlib_module_names) == {"torch"}
    assert not {"pickle", "marshal", "shelve"} & imported
    assert {file.name for file in RECEIVER.glob("*.py")} == {"__init__.py", "chimera_receiver.py"}


def test_the_receiver_adds_no_more_than_its_two_methods_to_vllms_worker_class():
    assert {name for name in dir(WeightReceiver) if not name.startswith("__")} == {
        "chimera_place",
        "receive_chimera_weights",
    }
    worker = scripted_worker(WeightReceiver, 1, 2)
    assert worker.chimera_place() == {"format": chimera_receiver.FORMAT, "rank": 1, "ranks": 2, "device": "cpu"}


# --- configuration


def slot(**settings):
    return ModelConfig.model_validate({"kind": "vllm", "python": "/vllm/bin/python", **settings})


def test_only_servers_that_get_weights_sent_load_the_receiver(serving_model, tmp_path):
    folder = prepare(serving_model(), tmp_path / "served")
    for kind in ("files", "gloo"):
        made = arguments(slot(transfer=kind), ServingConfig(), folder, tmp_path / "socket", "")
        assert ("--worker-extension-cls" in made) is (kind == "gloo")


def test_the_run_is_found_on_loopback_except_by_servers_that_it_did_not_start():
    own = transfer_of(slot(transfer="gloo"), "senior", "10.0.0.1")
    other = transfer_of(slot(transfer="gloo", python=None, urls=["http://127.0.0.1:8001"]), "senior", "10.0.0.1")
    assert [one._host for one in (own, other)] == ["127.0.0.1", "10.0.0.1"]
    assert transfer_of(slot(), "senior", "10.0.0.1") is FILES


VLLM = ["models.junior.kind=vllm", "models.junior.python=/vllm/bin/python"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ([*VLLM, "models.junior.transfer=nccl"], "transfer 'nccl' needs gpus: servers on a processor take weights by"),
        (
            [*VLLM, "models.junior.transfer=gloo", "models.junior.adapter_rank=4"],
            "transfer 'gloo' sends whole weights, and adapter_rank=4 asks for adapters alone",
        ),
        (["models.junior.transfer=gloo"], r"models\.junior\.transfer on the command line has no effect"),
        ([*VLLM, "models.junior.transfer=smoke"], "files"),
        (
            ["models.board.kind=vllm", "models.board.python=/p", "models.board.transfer=gloo"],
            r"models\.board\.transfer on the command line has no effect because no phase trains these weights",
        ),
    ],
)
def test_transfers_that_cannot_work_are_refused_in_a_sentence(settings, message):
    with pytest.raises(ConfigError, match=message):
        load_config(None, settings)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_nccl_without_a_gpu_of_the_runs_own_is_refused_before_anything_starts():
    models = {"senior": slot(python=sys.executable, transfer="nccl", gpus=["0"])}
    with pytest.raises(ConfigError, match=r"models\.senior\.transfer=nccl: the run's own torch has no GPU or no NCCL"):
        check_models(models, {}, learning={"senior"})
    check_models(models, {})
    assert sending_device("gloo", SETTING, {"0"}) == "cpu"


@pytest.mark.parametrize(
    ("visible", "count", "taken", "found"),
    [
        (None, 2, {"1"}, 0),
        (None, 2, {"0"}, 1),
        (None, 1, {"0"}, None),
        ("4,5,6", 3, {"4", "5"}, 2),
        ("4, 5", 2, {"4"}, 1),
        (None, 0, set(), None),
    ],
)
def test_weights_are_sent_from_a_gpu_that_no_server_has(visible, count, taken, found):
    assert free_gpu(visible, count, taken) == found
