"""What a run will need: beside what it uses, and what to change where it does not fit."""

import json
import os
import subprocess
import sys
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.config.tree import load_config
from chimera.core.errors import ConfigError
from chimera.plan import main
from chimera.serving.embedded.checkpoint import NANO
from training.algorithms.ppo.settings import PpoSettings
from training.planning.machine import Machine
from training.planning.needs import BARE_RANK, checkpoint_bytes, ppo_need
from training.planning.plan import Lengths, plan_run
from training.planning.sizes import Architecture

GB = 2**30
LENGTHS = Lengths(600, 120)
FACTOR = 2.0
"""How far the peak memory of an update may be from what was computed, either way."""


def machine(memory=64 * GB, gpus=(), disk=100 * GB):
    return Machine(8, memory, disk, tuple(gpus), 30e9, 10e9)


MEASURE = """
    import json, sys
    from pathlib import Path
    import numpy as np
    import psutil, torch
    from transformers import AutoConfig, AutoModelForCausalLM

    folder, settings = Path(sys.argv[1]), json.loads(sys.argv[2])
    sizes = dict(vocab_size=4000, hidden_size=384, intermediate_size=1024, num_hidden_layers=5, num_attention_heads=6,
                 num_key_value_heads=2, tie_word_embeddings=True)
    AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen2", **sizes)).save_pretrained(folder / "model")
    from training.algorithms.ppo.settings import PpoSettings
    from training.engines.local import PpoEngine, Sample
    from training.engines.verl_runtime import load_verl
    load_verl("cpu")
    import training.engines.verl_tree, verl.workers.engine_workers, verl.workers.utils.losses
    before = psutil.Process().memory_info().rss
    engine = PpoEngine(folder / "model", PpoSettings(**settings), seed=0, total_steps=3, device="cpu")
    ids = lambda number, length: tuple(np.random.default_rng(number).integers(0, 4000, length).tolist())
    samples = [Sample(ids(n, 128), ids(99 + n, 128), float(n % 2), "g", "t") for n in range(4)]
    for step in range(2):
        engine.update(samples, step)
    # Not ru_maxrss, which is at least what the parent had when it started this process.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    peak = 1024 * int(status["VmHWM"].split()[0])
    engine.save(folder / "checkpoint")
    stored = sum(file.stat().st_size for file in (folder / "checkpoint").iterdir())
    print(json.dumps({"before": before, "growth": peak - before, "stored": stored}))
"""


def measured(folder, settings):
    """Bytes of a process before and while it computes an update, and of its checkpoint."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(MEASURE), str(folder), json.dumps(settings)],
        env={**os.environ, "PYTHONPATH": os.getcwd()}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.whole
@pytest.mark.parametrize("options", [{}, {"adv_estimator": "gae", "use_kl_loss": True, "critic_warmup": 0}])
def test_the_memory_and_checkpoint_of_an_update_are_as_computed(tmp_path, options):
    """Four calls of 256 tokens fill one micro-batch, with a model whose numbers outweigh what libraries take."""
    settings = {"ppo_max_token_len_per_gpu": 1024, "ppo_mini_batch_size": 4, **options}
    used, model = measured(tmp_path, settings), Architecture.read(tmp_path / "model")
    given_settings = PpoSettings(**settings)
    need = ppo_need(model, given_settings, "it")
    expected = need.each - need.parts["process"]
    assert expected / FACTOR < used["growth"] < expected * FACTOR, (used, need.parts)
    assert BARE_RANK / FACTOR < used["before"] < BARE_RANK * FACTOR
    assert used["stored"] == pytest.approx(checkpoint_bytes(model, given_settings), rel=0.01)


def test_the_default_run_fits_on_a_small_machine_and_each_phase_is_told():
    rooms = plan_run(load_config(None, []), machine(memory=6 * GB), LENGTHS)
    assert [room.phase for room in rooms] == ["sft", "ppo", "design"]
    assert not any(room.faults or room.changes for room in rooms)
    pace = rooms[1].pace
    assert (pace.calls, pace.steps, pace.tokens) == (256, 6, 32 * 600 + 256 * 120)
    assert pace.needed == pytest.approx(256 * 120 / pace.update_s)


def test_fsdp_splits_what_is_split_and_lora_trains_little():
    model = Architecture.read(NANO)
    whole = ppo_need(model, PpoSettings(), "it").parts
    copies, split = (ppo_need(model, PpoSettings(ranks=4, shards=shards), "it") for shards in ("copy", "fsdp"))
    assert copies.count == split.count == 4
    assert copies.parts == whole
    for name in ("weights", "gradients", "optimiser"):
        assert split.parts[name] == pytest.approx(whole[name] / 4, abs=1)
    lora = ppo_need(model, PpoSettings(lora_rank=8), "it").parts
    assert lora["optimiser"] == 8 * model.adapter_parameters(8) < whole["optimiser"] / 5


@given(st.floats(1.5, 6.0), st.integers(0, 3), st.floats(0.3, 2.0))
def test_with_the_changes_that_are_named_it_fits(memory, gpus, each):
    """The changes are overrides of the command line; what is told with them is that it fits."""
    here = machine(int(memory * GB), [(f"GPU {number}", int(each * GB)) for number in range(gpus)])
    for room in plan_run(load_config(None, []), here, LENGTHS):
        if room.changes:
            assert room.faults
            changed = load_config(None, [one.strip("'") for one in room.changes])
            (again,) = [other for other in plan_run(changed, here, LENGTHS) if other.phase == room.phase]
            assert not again.faults, room.changes


@pytest.mark.parametrize(
    ("overrides", "here", "said"),
    [
        ([], machine(memory=1 * GB), "of memory, of which 1.0 GB are free"),
        (["ppo.ranks=3"], machine(gpus=[("H", 80 * GB)]), "3 GPUs, of which there are 1"),
        (["ppo.ranks=20"], machine(memory=9 * GB), "of memory, of which 9.0 GB are free"),
        ([], machine(gpus=[("H", 1 << 28)]), "of GPU memory for"),
        ([], machine(disk=1000), "on disk, of which 0.0 GB are free"),
    ],
)
def test_what_does_not_fit_is_said_with_figures(overrides, here, said):
    (room,) = [one for one in plan_run(load_config(None, overrides), here, LENGTHS) if one.phase == "ppo"]
    assert any(said in fault for fault in room.faults), room.faults


def test_servers_that_sleep_and_a_learner_that_leaves_share_a_gpu_by_turns():
    """They do not fit beside each other, and fit one after the other; what rests is in the main memory."""
    gpu = [
        f"models.junior.{key}={value}" for key, value in {"kind": "vllm", "python": "/v/python", "gpus": ["0"]}.items()
    ]
    given, here = [*gpu, "models.junior.cache_gib=0.2"], machine(gpus=[("H", int(1.2 * GB))])
    offload = "ppo.verl.engine={param_offload: true, optimizer_offload: true}"

    def of_ppo(*more):
        (room,) = [one for one in plan_run(load_config(None, [*given, *more]), here, LENGTHS) if one.phase == "ppo"]
        return room

    assert any("on GPU 0 for each vLLM server" in fault for fault in of_ppo().faults)
    by_turns = of_ppo("models.junior.sleep=true", offload)
    assert not by_turns.faults
    asleep = [need for need in by_turns.needs if "vLLM server" in need.who]
    assert all(need.aside == need.parts["weights"] for need in asleep)


def test_ranks_of_fine_tuning_are_counted_and_fewer_of_them_are_proposed():
    config, here = load_config(None, ["sft.ranks=6"]), machine(memory=6 * GB)
    room, *_ = plan_run(config, here, LENGTHS)
    (rank,) = [need for need in room.needs if need.who == "each rank of fine-tuning"]
    (alone,) = [need for need in plan_run(load_config(None, []), here, LENGTHS)[0].needs if need.who == "fine-tuning"]
    assert (rank.count, alone.count) == (6, 1)
    assert rank.parts == alone.parts | {"gradients": 2 * alone.parts["gradients"]}
    assert room.faults
    assert room.changes == ("pipeline.sft.ranks=1",)


def test_a_model_that_the_embedded_server_refuses_is_refused_and_counted_behind_vllm(tmp_path):
    sizes = {"vocab_size": 300, "hidden_size": 32, "intermediate_size": 80, "num_hidden_layers": 3}
    (tmp_path / "config.json").write_text(json.dumps({**sizes, "num_attention_heads": 4, "model_type": "mistral"}))
    given = [f"models.junior.path={tmp_path}"]
    with pytest.raises(ConfigError, match=r"runs Llama, Qwen2, Qwen3 models, and .* holds model_type 'mistral': serve"):
        plan_run(load_config(None, given), machine(), LENGTHS)
    behind = load_config(None, [*given, "models.junior.kind=vllm", "models.junior.python=/vllm/bin/python"])
    assert plan_run(behind, machine(), LENGTHS)[0].needs


def test_the_command_prints_each_phase_and_json(capsys):
    assert main(["ppo.steps=3"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("fits") == 3
    assert "3 steps of 256 calls" in shown
    assert main(["--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["phase"] for one in found["phases"]] == ["sft", "ppo", "design"]
    assert found["machine"]["cores"] >= 1
