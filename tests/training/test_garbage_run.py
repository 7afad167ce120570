"""`python -m chimera.train` against endpoints that answer garbage: every rollout fails, in words, and the run ends."""

import itertools
import json
import os
import subprocess
import sys

import psutil
import pytest
from web_kit import answering

from chimera.run.jsonl import read_lines

pytestmark = pytest.mark.whole

PATIENCE_S = 600.0
MESSAGE = {"role": "assistant", "content": "no idea"}
COMPLETION = {"id": "a", "object": "chat.completion", "created": 1, "model": "m"}
ANSWERS = [
    b"<html>Welcome</html>",
    b"null",
    b"7",
    b"[]",
    b"",
    b'{"choices": ' + b"[" * 5000,
    b'{"choices": "\xff"}',
    json.dumps({**COMPLETION, "choices": "yes"}).encode(),
    json.dumps({**COMPLETION, "choices": [{"index": 0, "message": None, "finish_reason": "stop"}]}).encode(),
    json.dumps({**COMPLETION, "choices": [{"index": 0, "message": {**MESSAGE, "content": "\ud800"}}]}).encode(),
    json.dumps({**COMPLETION, "choices": [{"index": 0, "message": MESSAGE}], "usage": "many"}).encode(),
]


@pytest.fixture
def garbage():
    """A server that gives each request the next of `ANSWERS`; the address of its API."""
    answers = itertools.cycle(ANSWERS)
    with answering(lambda *_: (200, {"content-type": "application/json"}, next(answers))) as address:
        yield f"{address}/v1"


def test_a_run_against_garbage_ends_with_a_sentence_and_every_rollout_is_recorded(garbage, tmp_path):
    endpoint = {"kind": "endpoint", "base_url": garbage, "model": "garbage", "timeout_s": PATIENCE_S}
    models = [f"models.{name}.{key}={value}" for name in ("junior", "senior") for key, value in endpoint.items()]
    settings = ["gather.tasks=4", "data.size=50", "rollouts.concurrency=2", "society.node_retries=0"]
    command = [sys.executable, "-m", "chimera.train", "--name", "garbage", "--phases", "gather", f"runs_dir={tmp_path}"]
    process = subprocess.Popen(
        [*command, *models, *settings, "wandb.mode=disabled"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    started = "".join(process.stdout.readline() for _ in range(3))
    processes = psutil.Process(process.pid).children(recursive=True)
    output, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 6, started + output + errors
    assert errors.strip().splitlines()[-1].startswith("error: all 4 rollouts failed; the first: ")
    assert "Traceback" not in output + errors
    records = list(read_lines(tmp_path / "garbage" / "rollouts" / "gather.jsonl"))
    assert [record["status"] for record in records] == ["failed"] * 4
    for record in records:
        assert "model 'junior'" in record["error"]
        assert "\n" not in record["error"]
        assert len(record["error"]) < 1500, record["error"]
    assert psutil.wait_procs(processes, timeout=PATIENCE_S)[1] == []
