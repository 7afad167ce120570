"""The real server of llama.cpp; skipped unless CHIMERA_LLAMA_SERVER names it and CHIMERA_LLAMA_MODEL a GGUF file.

CHIMERA_LLAMA_SERVER=/path/llama-server CHIMERA_LLAMA_MODEL=nano.gguf python -m pytest tests/training/test_real_llama.py
"""

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from chimera.core.machine import free_port
from chimera.processes.children import stop
from chimera.processes.programs import Program
from chimera.run.directory import Run
from evaluation.records.rollouts import RolloutRecord

SERVER = os.environ.get("CHIMERA_LLAMA_SERVER", "")
MODEL = os.environ.get("CHIMERA_LLAMA_MODEL", "")
REPOSITORY = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.skipif(not (SERVER and MODEL), reason="CHIMERA_LLAMA_SERVER and CHIMERA_LLAMA_MODEL name no server"),
    pytest.mark.timeout(1800),
]


def ready(port):
    with suppress(httpx.ConnectError):
        return httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).status_code == 200
    return False


@pytest.fixture
def url(tmp_path):
    port = free_port()
    place = ["--host", "127.0.0.1", "--port", str(port), "--alias", "nano", "--jinja", "-c", "8192", "-np", "4"]
    program = Program("llama.cpp", [SERVER, "-m", MODEL, *place], tmp_path / "llama.log", os.environ)
    try:
        while not ready(port):
            assert program.alive(), (tmp_path / "llama.log").read_text()[-2000:]
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        stop([program], seconds=10)


def command(folder, url, module, *arguments):
    config = folder / "llama.yaml"
    config.write_text(
        f"models: {{junior: {{kind: endpoint, base_url: '{url}', model: nano, api_key_env: null, timeout_s: 600}}}}\n"
        "rollouts: {concurrency: 4, timeout_s: 3600}\nwandb: {mode: disabled}\n"
    )
    words = [sys.executable, "-m", module, "--config", str(config), *arguments]
    return subprocess.run(words, capture_output=True, text=True, cwd=REPOSITORY, check=False)


def test_doctor_says_what_the_server_can_do(url, tmp_path):
    said = command(tmp_path, url, "chimera.doctor").stdout
    for finding in (
        "ok       models.junior: JSON schema  an answer of Geneticist follows it",
        "ok       models.junior: tools  Geneticist: without a JSON schema it calls a tool; beside one it calls none",
        "ok       models.junior: context  2,048 tokens",
        "note     models.junior: token ids  not told",
        "python -m chimera.train --phases gather,bandit can run",
    ):
        assert finding in said


def test_the_society_searches_answers_and_learns_what_needs_no_weights(url, tmp_path):
    phases = ("--name", "llama", "--phases", "gather,bandit", "gather.tasks=12", "gate.tasks=8")
    done = command(tmp_path, url, "chimera.train", *phases, f"runs_dir={tmp_path}")
    assert done.returncode == 0, done.stdout + done.stderr
    records = [RolloutRecord.load(data) for data in Run(tmp_path / "llama").rollouts("gather")]
    calls = sum(sum(record.tool_calls.values()) for record in records) / len(records)
    failed = [record.error for record in records if record.error]
    print(f"{len(records)} rollouts, {calls:.2f} tool calls a rollout, {len(failed)} failed: {failed}")
    assert calls >= 2
    assert len(failed) <= 1
