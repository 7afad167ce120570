"""What a run will need: beside what it uses, and what to change where it does not fit."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from message_kit import refused

from chimera.config.sections.bundled import NANO
from chimera.config.sections.models import ModelConfig
from chimera.core.errors import ConfigError
from chimera.plan import main
from chimera.serving.embedded.checkpoint import load_checkpoint
from training.configuration import load_config
from training.planning import RANK, Architecture, Machine, checkpoint_bytes, plan_run
from training.ppo.verl.settings import PpoSettings

GB = 2**30
ROOT = Path(__file__).parents[2]
FACTOR = 2.0
"""How far the peak memory of an update may be from what was computed, either way."""


def machine(memory=64 * GB, gpus=(), disk=100 * GB):
    return Machine(memory, tuple(gpus), disk, 8)


def phase(name, here, *overrides):
    (room,) = [room for room in plan_run(load_config(None, overrides), here) if room.phase == name]
    return room


def learner(room):
    return room.needs[-1]


def model_of(folder):
    return Architecture.of(ModelConfig(path=str(folder)))


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
    from training.ppo.verl.settings import PpoSettings
    from training.ppo.engine.batch import Sample
    from training.ppo.engine.update import PpoEngine
    from training.ppo.verl.runtime import load_verl
    load_verl("cpu")
    import training.ppo.verl.patches, verl.workers.engine_workers, verl.workers.utils.losses
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
@pytest.mark.parametrize(
    "options", [{}, {"adv_estimator": "gae", "verl": {"actor": {"use_kl_loss": True}}, "critic_warmup": 0}]
)
def test_the_memory_and_checkpoint_of_an_update_are_as_computed(tmp_path, options):
    """Four calls of 256 tokens fill one micro-batch, with a model whose numbers outweigh what libraries take."""
    settings = {"ppo_max_token_len_per_gpu": 1024, "ppo_mini_batch_size": 4, **options}
    used = measured(tmp_path, settings)
    overrides = [f"ppo.{key}={value}" for key, value in settings.items()]
    need = learner(phase("ppo", machine(), f"models.junior.path={tmp_path / 'model'}", *overrides))
    expected = need.each - need.parts["process"]
    assert expected / FACTOR < used["growth"] < expected * FACTOR, (used, need.parts)
    assert RANK / FACTOR < used["before"] < RANK * FACTOR
    stored = checkpoint_bytes(model_of(tmp_path / "model"), PpoSettings(**settings))
    assert used["stored"] == pytest.approx(stored, rel=0.01)


def test_the_default_run_fits_on_a_small_machine_and_each_phase_is_told():
    rooms = plan_run(load_config(None, []), machine(memory=6 * GB))
    assert [room.phase for room in rooms] == ["sft", "ppo", "design"]
    assert not any(room.faults or room.changes for room in rooms)


def test_fsdp_splits_what_is_split_and_lora_trains_little():
    whole = learner(phase("ppo", machine())).parts
    copies, split = (learner(phase("ppo", machine(), "ppo.ranks=4", f"ppo.shards={one}")) for one in ("copy", "fsdp"))
    assert copies.count == split.count == 4
    assert copies.parts == whole
    for name in ("weights", "gradients", "optimiser"):
        assert split.parts[name] == pytest.approx(whole[name] / 4, abs=1)
    lora = learner(phase("ppo", machine(), "ppo.lora_rank=8")).parts
    assert lora["optimiser"] == 8 * model_of(NANO).adapters(8) < whole["optimiser"] / 5


@given(st.floats(1.5, 6.0), st.integers(0, 3), st.floats(0.3, 2.0))
def test_with_the_changes_that_are_named_it_fits(memory, gpus, each):
    """The changes are overrides of the command line; what is told with them is that it fits."""
    here = machine(int(memory * GB), [int(each * GB)] * gpus)
    for room in plan_run(load_config(None, []), here):
        if room.changes:
            assert room.faults
            assert not phase(room.phase, here, *room.changes).faults, room.changes


@pytest.mark.parametrize(
    ("overrides", "here", "said"),
    [
        ([], machine(memory=1 * GB), ["of memory", "1.0 GB"]),
        (["ppo.ranks=3"], machine(gpus=[80 * GB]), ["GPU 1, 2 for each rank", "there are 1"]),
        (["ppo.ranks=20"], machine(memory=9 * GB), ["of memory", "9.0 GB"]),
        ([], machine(gpus=[1 << 28]), ["GPU 0 for PPO", "0.8 GB", "0.2 GB"]),
        ([], machine(disk=1000), ["on disk", "0.1 GB", "0.0 GB"]),
    ],
)
def test_what_does_not_fit_is_said_with_figures(overrides, here, said):
    faults = phase("ppo", here, *overrides).faults
    assert any(all(part in fault for part in said) for fault in faults), faults


def test_servers_that_sleep_and_a_learner_that_leaves_share_a_gpu_by_turns():
    """They do not fit beside each other, and fit one after the other; what rests is in the main memory."""
    gpu = [f"models.junior.{setting}" for setting in ("kind=vllm", "python=/v/python", "gpus=['0']")]
    given, here = [*gpu, "models.junior.cache_gib=0.2"], machine(gpus=[int(1.2 * GB)])
    offload = "ppo.verl.engine={param_offload: true, optimizer_offload: true}"

    assert any("GPU 0 for each vLLM server" in fault for fault in phase("ppo", here, *given).faults)
    by_turns = phase("ppo", here, *given, "models.junior.sleep=true", offload)
    assert not by_turns.faults
    asleep = [need for need in by_turns.needs if "vLLM server" in need.who]
    assert all(need.aside == need.parts["weights"] for need in asleep)


def test_ranks_of_fine_tuning_are_counted_and_fewer_of_them_are_proposed():
    here = machine(memory=6 * GB)
    room = phase("sft", here, "sft.ranks=6")
    several, alone = learner(room), learner(phase("sft", here))
    assert (several.count, alone.count) == (6, 1)
    assert several.parts == alone.parts | {"gradients": 2 * alone.parts["gradients"]}
    assert room.faults
    assert room.changes == ("pipeline.sft.ranks=1",)


TINY = {
    "vocab_size": 300, "hidden_size": 32, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("qwen2", {"tie_word_embeddings": True}),
        ("qwen2", {"tie_word_embeddings": False}),
        ("qwen3", {"tie_word_embeddings": False, "head_dim": 24}),
        ("llama", {"attention_bias": True}),
    ],
)
def test_each_known_family_is_counted_as_transformers_and_peft_build_it(tmp_path, family, more):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForTokenClassification

    config = AutoConfig.for_model(family, **TINY, **more)
    config.save_pretrained(tmp_path)
    model = model_of(tmp_path)
    with torch.device("meta"):
        actor = AutoModelForCausalLM.from_config(config)
        critic = AutoModelForTokenClassification.from_config(AutoConfig.for_model(family, **TINY, **more, num_labels=1))
        assert model.parameters == sum(one.numel() for one in actor.parameters())
        assert model.critic == sum(one.numel() for one in critic.parameters())
        adapted = get_peft_model(actor, LoraConfig(r=6, target_modules="all-linear", task_type="CAUSAL_LM"))
    assert model.adapters(6) == sum(one.numel() for one in adapted.parameters() if one.requires_grad)
    assert model.adapters(0) == 0


def test_the_cache_is_that_of_the_embedded_server():
    from chimera.serving.embedded.decoding.engine import cache_bytes_per_row

    nano = load_checkpoint("nano")
    for number in (2, 4):
        assert model_of(NANO).cache(101, number) == cache_bytes_per_row(nano.shape, 100, number)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({**TINY, "model_type": "mistral"}, ["mistral", "Qwen3"]),
        ({"model_type": "qwen2"}, ["config.json", "vocab_size"]),
    ],
)
def test_a_model_whose_sizes_are_not_known_is_named(tmp_path, given, said):
    (tmp_path / "config.json").write_text(json.dumps(given))
    for kind in ([], ["models.junior.kind=vllm", "models.junior.python=/vllm/bin/python"]):
        with refused(ConfigError, tmp_path, *said, lines=None):
            plan_run(load_config(None, [f"models.junior.path={tmp_path}", *kind]), machine())


def hub_models(value):
    """The models of the hub that a configuration names."""
    for key, inner in value.items() if isinstance(value, dict) else ():
        if key == "path" and str(inner).count("/") == 1 and not (ROOT / str(inner)).exists():
            yield inner
        yield from hub_models(inner)


def test_the_sizes_of_all_hub_models_that_our_configurations_name_are_known():
    named = {one for file in (ROOT / "configs").glob("*.yaml") for one in hub_models(yaml.safe_load(file.read_text()))}
    assert named == {"Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen3-8B"}
    # As their cards say: 0.49 and 8.2 billion.
    assert [round(model_of(one).parameters / 1e9, 2) for one in sorted(named)] == [0.49, 8.19]


@pytest.mark.parametrize(
    ("name", "here", "fits"),
    [("eight_gpus", "8x80GB,1024GB", 0), ("eight_gpus", "8x80GB,8GB", 1), ("one_gpu", "64GB", 1)],
)
def test_a_recipe_for_gpus_is_compared_with_the_machine_that_is_named(name, here, fits, capsys, monkeypatch):
    """Without network, and without a GPU here. `test_gpu_configs` has fewer and smaller GPUs."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(["--config", str(ROOT / "configs" / f"{name}.yaml"), "--machine", here]) == fits
    assert ("does not fit" in capsys.readouterr().out) == bool(fits)


@pytest.mark.parametrize("text", ["8x80,1024", "", "8x80GB", "8x80GB, 1024GB", "x80GB,1GB", "99999x1GB,1GB", "64"])
def test_a_machine_that_is_written_in_another_way_is_refused_with_an_example(text):
    with refused(ConfigError, "--machine", repr(text), "8x80GB,1024GB", lines=None):
        main(["--machine", text])


def test_the_command_prints_each_phase_and_json(capsys):
    assert main(["ppo.steps=3"]) == 0
    assert capsys.readouterr().out.count("fits") == 3
    assert main(["--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["phase"] for one in found["phases"]] == ["sft", "ppo", "design"]
    assert found["machine"]["cores"] >= 1
