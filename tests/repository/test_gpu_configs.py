"""The configurations and Dockerfiles for GPUs, as far as a processor can tell: whole, fitting, and as pinned."""

import re
from pathlib import Path

import pytest
from message_kit import refused

from chimera.core.errors import ConfigError
from chimera.data.tasks import load
from training.configuration import load_config
from training.phases import make_phases
from training.planning import Machine, plan_run

ROOT = Path(__file__).parents[2]
GB = 2**30
CASES = [("one_gpu", 1), ("eight_gpus", 8)]


def machine(gpus, size=79 * GB):
    return Machine(500 * GB, (size,) * gpus, 2000 * GB, 64)


def settings(name, *overrides):
    return load_config(ROOT / "configs" / f"{name}.yaml", ["data.path=generated", *overrides])


@pytest.mark.parametrize(("name", "gpus"), CASES)
def test_it_loads_without_a_warning_and_its_phases_can_run_with_nano_in_place(name, gpus, capsys):
    config = settings(name, "models.junior.path=nano")
    assert capsys.readouterr().err == ""
    make_phases(tuple(config.pipeline), config, load(config.data))
    assert {one.kind for slot, one in config.used().items() if slot in config.learning()} == {"vllm"}


@pytest.mark.parametrize(("name", "gpus"), CASES)
def test_it_fits_on_the_gpus_that_it_names_and_not_on_fewer_or_smaller_ones(name, gpus):
    config = settings(name)
    for room in plan_run(config, machine(gpus)):
        assert room.faults == (), (room.phase, room.needs)
    for smaller in (machine(gpus - 1), machine(gpus, 20 * GB)):
        assert any(room.faults for room in plan_run(config, smaller))


def test_a_cache_without_room_for_one_request_is_told_with_its_tokens():
    # 24 layers x 2 heads of 64 x keys and values x 4 bytes = 24,576 bytes a token.
    with refused(ConfigError, ("models.junior.cache_gib=0.05", "2,184", "4,096", "serving.context_length")):
        plan_run(settings("one_gpu", "models.junior.cache_gib=0.05"), machine(1))


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


def test_the_study_of_smollm2_names_settings_that_exist():
    text = (ROOT / "recipes" / "gpu" / "smollm2.sh").read_text()
    overrides = re.findall(r"\b[a-z]+\.\w+=\S+", text.split("exec", 1)[1])
    config = settings("smollm2", "models.junior.path=nano", *overrides)
    assert len(overrides) >= 10
    assert config.evaluation.labels
    make_phases(tuple(config.pipeline), config, load(config.data))
