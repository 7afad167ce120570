"""Children get the environment variables that they need: planted secrets are in none, and what is needed arrives."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from chimera.processes.child_environment import child_environment
from chimera.processes.study_children import run_child

ROOT = Path(__file__).parents[3]
PLANTED = {
    "AWS_SECRET_ACCESS_KEY": "planted",
    "GITHUB_TOKEN": "planted",
    "DATABASE_URL": "postgres://user:planted@host",
    "HF_TOKEN": "hf-planted",
    "OPENAI_API_KEY": "sk-planted",
    "CHIMERA_OTHER_KEY": "planted",
    "PYTEST_CURRENT_TEST": "x",
    "COVERAGE_PROCESS_START": "x",
}
WANTED = {"LC_ALL": "C.UTF-8", "HF_HOME": "/tmp/hf", "CUDA_VISIBLE_DEVICES": "", "https_proxy": "http://127.0.0.1:9"}


@pytest.fixture
def planted(monkeypatch):
    for name, value in {**PLANTED, **WANTED, "WANDB_API_KEY": "planted", "MY_KEY": "mine"}.items():
        monkeypatch.setenv(name, value)


def test_a_child_gets_settings_and_no_secret(planted):
    given = child_environment()
    assert set(given) & {*PLANTED, "WANDB_API_KEY", "MY_KEY", "https_proxy"} == set()
    assert {"PATH", "HOME", "LC_ALL", "HF_HOME", "CUDA_VISIBLE_DEVICES"} <= set(given)
    assert all(os.environ[name] == value for name, value in given.items())


def test_what_is_asked_for_by_name_is_given_even_a_secret(planted):
    given = child_environment("WANDB_*", "MY_KEY", network=True)
    assert {"WANDB_API_KEY", "MY_KEY", "https_proxy"} <= set(given)
    assert set(given) & set(PLANTED) == set()


def test_a_studys_commands_get_the_keys_that_commands_read_and_that_the_configuration_names(
    planted, tmp_path, monkeypatch
):
    (tmp_path / "teller.py").write_text("import json, os\ndef main(argv): print(json.dumps(dict(os.environ)))\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    run_child("teller", [], tmp_path / "log", what="telling", keys=("MY_KEY",))
    given = json.loads((tmp_path / "log").read_text().splitlines()[-1])
    assert set(given) & set(PLANTED) == {"HF_TOKEN", "OPENAI_API_KEY"}
    assert {"MY_KEY", "WANDB_API_KEY", *WANTED} <= set(given)


SCRIPT = """
import asyncio, json, sys
from pathlib import Path

from chimera.config.sections.models import ModelConfig, SLOTS, ServingConfig
from chimera.config.tree import Config
from chimera.run.directory import Run
from chimera.serving.process import serve
from training.tune.process import TuningProcess
from training.watch.wandb.mirror import wandb_mirror

folder = Path(sys.argv[1])
found = {}


def note(name, pid):
    while not (written := Path(f"/proc/{pid}/environ").read_bytes()):
        pass  # The kernel shows it only a moment after the program was started.
    found[name] = dict(entry.decode().split("=", 1) for entry in written.split(b"\\0") if entry)


async def fine_tuning():
    async with TuningProcess(folder / "sft.log", "never") as process:
        note("fine-tuning", process.pids[0])


def main():
    rubrics = dict.fromkeys(SLOTS, ModelConfig(kind="rubric"))
    with serve(rubrics, ServingConfig(), {}, log_file=folder / "models.log") as servers:
        note("model server", servers.pid)
    asyncio.run(fine_tuning())
    config = Config.model_validate({"runs_dir": folder, "wandb": {"mode": "offline"}})
    with Run.create("shown", config) as run:
        with wandb_mirror(run, config, {}, lambda text: told.append(text)) as mirror:
            while not told:
                pass
            note("W&B's service", mirror.pid)
    print(json.dumps(found))


told = []
if __name__ == "__main__":
    main()
"""


@pytest.mark.whole
def test_no_process_of_a_run_has_a_planted_secret(tmp_path):
    """Read from /proc, where every process of the same user can read it."""
    script = tmp_path / "main.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, **PLANTED, **WANTED, "WANDB_MODE": "offline", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found) == {"model server", "fine-tuning", "W&B's service"}
    for name, given in found.items():
        assert set(given) & set(PLANTED) == set(), name
        assert {"PATH", "HOME", "LC_ALL", "HF_HOME"} <= set(given), name
    assert "https_proxy" in found["W&B's service"]
    assert "https_proxy" not in found["model server"]
    assert found["model server"]["HF_HUB_OFFLINE"] == "1"


def test_every_process_is_started_with_an_environment_of_its_own():
    """Whoever adds a child says what it gets."""
    starters = {"subprocess.Popen", "subprocess.run", "asyncio.create_subprocess_exec"}
    for package in ("chimera", "agents", "training", "evaluation"):
        for file in (ROOT / package).rglob("*.py"):
            text = file.read_text()
            for node in ast.walk(ast.parse(text)) if "subprocess" in text else ():
                if isinstance(node, ast.Call) and ast.unparse(node.func) in starters:
                    assert "env" in {keyword.arg for keyword in node.keywords}, f"{file}:{node.lineno}"
