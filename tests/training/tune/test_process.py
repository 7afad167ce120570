"""The process of fine-tuning: how it ends, what it is told, and when unsloth loads its model."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import psutil
import pytest
import torch
from message_kit import refused

from chimera.config.sections.bundled import NANO
from chimera.core.errors import RunError
from training.tune import child as sft_child
from training.tune.child import Spec
from training.tune.process import TuningProcess, tuning_environment

pytestmark = pytest.mark.whole


async def drain(process, spec):
    return [report async for report in process.train(spec)]


@pytest.fixture
def spec(tmp_path):
    return Spec(
        dataset="", model="", out="", seed=0, epochs=1, batch_size=1, micro_batch_size=1, lr=1, warmup_ratio=0,
        max_length=32, lora_rank=0, lora_alpha=1, unsloth="never",
    )  # fmt: skip


async def test_a_crash_is_reported_with_exit_code_and_last_words(tmp_path, spec):
    log = tmp_path / "logs" / "sft.log"
    async with TuningProcess(log, "never") as first:
        os.kill(first.pids[0], signal.SIGKILL)
        with refused(RunError, f"process {first.pids[0]}", "SIGKILL", lines=None):
            await drain(first, spec)
    log.write_text("an older error\n")
    async with TuningProcess(log, "whenever") as second:  # pyright: ignore[reportArgumentType]
        with refused(RunError, "exit code 2", "'whenever'", lines=None) as caught:
            await drain(second, spec)
    assert "an older error" not in str(caught.value)
    assert str(log) in str(caught.value)


async def test_a_rank_that_is_killed_is_named_and_ends_the_others(tmp_path, spec):
    async with TuningProcess(tmp_path / "sft.log", "never", ranks=2) as process:
        os.kill(process.pids[1], signal.SIGKILL)
        message = ("rank 1", f"process {process.pids[1]}", "SIGKILL")
        with refused(RunError, message, lines=None):
            await drain(process, spec)


async def test_an_error_of_ours_is_told_without_the_libraries_noise(tmp_path, spec):
    """Here a model whose weights are a pickle: the child never reads it."""
    (tmp_path / "pytorch_model.bin").write_bytes(b"a pickle")
    async with TuningProcess(tmp_path / "sft.log", "never") as process:
        with refused(RunError, "exit code 2", tmp_path, "*.safetensors", "pytorch_model.bin", lines=None):
            await drain(process, replace(spec, model=str(tmp_path)))


async def test_a_cancelled_phase_leaves_no_process(tmp_path, spec):
    started = asyncio.get_running_loop().create_future()

    async def phase():
        async with TuningProcess(tmp_path / "sft.log", "never") as process:
            started.set_result(process.pids[0])
            await drain(process, spec)

    task = asyncio.create_task(phase())
    pid = await started
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not psutil.pid_exists(pid)


def test_the_process_ends_with_its_parent_however_that_ends(tmp_path):
    script = (
        "import asyncio, sys; from pathlib import Path; from training.tune.process import TuningProcess\n"
        "async def main():\n"
        "    async with TuningProcess(Path(sys.argv[1]), 'never') as process:\n"
        "        print(process.pids[0], flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "sft.log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    while alive(child):
        threading.Event().wait(0.05)


def alive(process):
    """True until the process has ended; one that nobody reaps counts as ended."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_loss_that_is_no_number_is_an_error():
    logs = {"loss": float("nan"), "epoch": 0.5}
    with refused(RunError, "nan", "epoch 0.50", "lower the phase's lr"):
        sft_child.step_figures(logs)


def test_the_child_is_told_to_stay_offline_and_on_one_gpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,4")
    environment = tuning_environment()
    assert environment["CUDA_VISIBLE_DEVICES"] == "3"
    assert environment["HF_HUB_OFFLINE"] == environment["HF_HUB_DISABLE_TELEMETRY"] == "1"
    assert int(environment["OMP_NUM_THREADS"]) >= 1


@pytest.mark.parametrize("rank", [0, 8])
def test_unsloth_loads_the_model_when_it_is_there_with_a_gpu(rank, spec, monkeypatch):
    asked = []

    class FastLanguageModel:
        @staticmethod
        def from_pretrained(**options):
            asked.append(options)
            return "a model", "a tokenizer"

        @staticmethod
        def get_peft_model(model, **options):
            asked.append(options)
            return f"{model} with adapters"

    unsloth = ModuleType("unsloth")
    unsloth.FastLanguageModel = FastLanguageModel
    monkeypatch.setitem(sys.modules, "unsloth", unsloth)
    unsloth.__spec__ = SimpleNamespace(name="unsloth")
    spec = replace(spec, model=str(NANO), unsloth="auto", lora_rank=rank, max_length=99)
    assert not sft_child.uses_unsloth("auto")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert not sft_child.uses_unsloth("never")
    model, tokenizer = sft_child.load_model(spec)
    assert (model, tokenizer) == ("a model with adapters" if rank else "a model", "a tokenizer")
    assert asked[0]["model_name"] == str(NANO)
    assert asked[0]["max_seq_length"] == 99
    assert asked[0]["full_finetuning"] is asked[0]["float32_mixed_precision"] is (rank == 0)
    assert [options["r"] for options in asked[1:]] == [8] * bool(rank)
