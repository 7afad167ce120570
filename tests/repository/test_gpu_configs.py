"""The configurations and Dockerfiles for GPUs, as far as a processor can tell: whole, fitting, and as pinned."""

import json
import re
from pathlib import Path

import pytest

from chimera.config.tree import load_config
from chimera.data.tasks import load
from training.learning.plans import make_phases
from training.planning.machine import Machine
from training.planning.plan import Lengths, plan_run

ROOT = Path(__file__).parents[2]
GB = 2**30
# The sizes in the models' own config.json.
QWEN3_8B = {
    **{"model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36},
    **{"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936},
    **{"tie_word_embeddings": False, "max_position_embeddings": 40960},
}
QWEN25_05B = {
    **{"model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24},
    **{"num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936},
    **{"tie_word_embeddings": True, "max_position_embeddings": 32768},
}
CASES = [("one_gpu", QWEN25_05B, 1), ("eight_gpus", QWEN3_8B, 8)]


def machine(gpus, size=79 * GB):
    return Machine(64, 500 * GB, 2000 * GB, (("H100", size),) * gpus, 30e12, 2e12)


def settings(name, folder):
    return load_config(ROOT / "configs" / f"{name}.yaml", [f"models.junior.path={folder}", "data.path=generated"])


@pytest.fixture
def sized(tmp_path):
    def make(sizes):
        (tmp_path / "config.json").write_text(json.dumps(sizes))
        return tmp_path

    return make


@pytest.mark.parametrize(("name", "sizes", "gpus"), CASES)
def test_it_loads_without_a_warning_and_its_phases_can_run_with_nano_in_place(name, sizes, gpus, capsys):
    config = settings(name, "nano")
    assert capsys.readouterr().err == ""
    make_phases(tuple(config.pipeline), config, load(config.data))
    assert {one.kind for slot, one in config.used().items() if slot in config.learning()} == {"vllm"}


@pytest.mark.parametrize(("name", "sizes", "gpus"), CASES)
def test_it_fits_on_the_gpus_that_it_names_and_not_on_fewer_or_smaller_ones(name, sizes, gpus, sized):
    config = settings(name, sized(sizes))
    for room in plan_run(config, machine(gpus), Lengths(1500, 300)):
        assert room.faults == (), (room.phase, room.needs)
    smaller = [plan_run(config, one, Lengths(1500, 300)) for one in (machine(gpus - 1), machine(gpus, 20 * GB))]
    for rooms in smaller:
        assert any(room.faults for room in rooms)


def test_a_cache_without_room_for_one_request_is_told_with_its_tokens(sized):
    config = settings("one_gpu", sized(QWEN25_05B)).model_copy()
    small = load_config(
        ROOT / "configs" / "one_gpu.yaml",
        [f"models.junior.path={sized(QWEN25_05B)}", "data.path=generated", "models.junior.cache_gib=0.05"],
    )
    assert not any(
        "a cache for" in fault for room in plan_run(config, machine(1), Lengths(9, 9)) for fault in room.faults
    )
    faults = [fault for room in plan_run(small, machine(1), Lengths(9, 9)) for fault in room.faults]
    # 24 layers x 2 heads of 64 x keys and values x 4 bytes = 24,576 bytes a token.
    assert "a cache for 4,096 tokens (serving.context_length), and models.junior.cache_gib=0.05 holds 2,184" in faults


def test_the_dockerfiles_copy_what_there_is_and_install_what_is_pinned():
    gpu, vllm = ((ROOT / "recipes" / "docker" / f"{name}.Dockerfile").read_text() for name in ("gpu", "vllm"))
    for line in re.findall(r"^COPY (.*)$", gpu, re.MULTILINE):
        *sources, _ = line.split()
        assert all((ROOT / source).exists() for source in sources)
    assert "-c constraints-gpu.txt -e .[gpu]" in gpu
    assert "vllm==0.32.0" in vllm
    for name in ("one_gpu", "eight_gpus"):
        text = (ROOT / "configs" / f"{name}.yaml").read_text()
        assert "/opt/vllm/bin/python" in text
        assert "NOT YET RUN" in text
    assert "/opt/vllm" in vllm
