"""The real vLLM on a processor; skipped unless CHIMERA_VLLM_PYTHON names the Python of an environment with it.

CHIMERA_VLLM_PYTHON=/path/to/bin/python python -m pytest tests/training/test_real_vllm.py
"""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest

from chimera.config.sections.bundled import NANO
from chimera.config.sections.rollouts import RewardConfig
from chimera.core.machine import free_port
from chimera.processes.children import stop
from chimera.processes.programs import Program
from chimera.run.directory import Run
from chimera.run.jsonl import read_lines
from chimera.serving.vllm.engine import USUAL
from chimera.serving.vllm.replicas import Replica, wait_for
from evaluation.records.rollouts import RolloutRecord
from training.learning.adapter import HierarchicalTraceAdapter
from training.learning.episodes import Episode

PYTHON = os.environ.get("CHIMERA_VLLM_PYTHON", "")
KEY = "a-key-of-this-test-only"
REPOSITORY = Path(__file__).parents[2]
PATIENT = """
data: {size: 80}
rollouts: {concurrency: 2, timeout_s: 6000}
gate: {tasks: 0}
wandb: {mode: disabled}
"""
SETTINGS = f"""{PATIENT}
models:
  refiner: {{like: senior, kind: vllm, python: "{PYTHON}", max_tokens: 256, timeout_s: 600}}
pipeline:
  gather: {{tasks: 8}}
  ppo: {{roles: [HypothesisRefiner], states: 6, n: 4, steps: 1, reward: {{alignment: 1.0}}}}
  again: {{algorithm: gather, tasks: 4}}
"""
OF_ADAPTERS = (
    SETTINGS.replace("max_tokens: 256", "max_tokens: 256, temperature: 1.3, adapter_rank: 4")
    .replace("tasks: 8", "tasks: 16")
    .replace("tasks: 4", "tasks: 16")
    .replace("concurrency: 2", "concurrency: 4")
    .replace(
        "states: 6, n: 4, steps: 1, reward: {alignment: 1.0}", "states: 16, n: 6, steps: 2, lora_rank: 4, lr: 3.0e-3"
    )
)
"""So much that both steps find something to learn from, and that two servers have calls at a time."""

pytestmark = [
    pytest.mark.skipif(not PYTHON, reason="CHIMERA_VLLM_PYTHON names no Python with vLLM"),
    pytest.mark.timeout(3600),
]


RUNNING = """
models:
  refiner: {{like: senior, kind: vllm, path: "{folder}", urls: ["{url}"], api_key_env: OPENAI_API_KEY, sleep: true,
    max_tokens: 256, timeout_s: 600}}
pipeline:
  gather: {{tasks: 16}}
  ppo: {{roles: [HypothesisRefiner], start: null, states: 12, n: 6, steps: 1, reward: {{alignment: 1.0}}}}
  tuned: {{algorithm: rejection, roles: [HypothesisRefiner], tasks: 12, answers: 2, min_examples: 1, epochs: 1}}
  again: {{algorithm: gather, tasks: 4}}
"""


def versions_of_role(run, role):
    """How many answers of a role each version of weights gave, by phase; None counts answers without a version."""
    found = {}
    for phase in ("gather", "again"):
        for record in run.rollouts(phase):
            episode = Episode(RolloutRecord.load(record), None, run.path, HierarchicalTraceAdapter(RewardConfig()))
            for call in episode.calls([role]):
                found.setdefault(phase, Counter())[call.weights_version] += 1
    return found


def train(tmp_path, config, *arguments):
    """The run that the command made with a configuration file, or with the text of one."""
    if not isinstance(config, Path):
        (tmp_path / "vllm.yaml").write_text(config)
        config = tmp_path / "vllm.yaml"
    done = subprocess.run(
        [sys.executable, "-m", "chimera.train", "--config", str(config), "--name", "vllm", f"runs_dir={tmp_path}",
         *arguments],
        capture_output=True, text=True, cwd=REPOSITORY, env={**os.environ, "OPENAI_API_KEY": KEY}, check=False,
    )  # fmt: skip
    logs = "".join(log.read_text()[-2000:] for log in (tmp_path / "vllm").glob("logs/vllm.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    return Run(tmp_path / "vllm")


def published(run):
    """What a run's publishes did, or its servers' sleep."""
    return [json.loads(line) for line in (run.path / "logs" / "vllm-publishes.jsonl").read_text().splitlines()]


def played(tmp_path, settings):
    """The run that was made with `settings`, the version that it learned, and what its publishes did.

    All answers are by the version that they should be by: before the phase, in each of its steps, and after it.
    """
    run = train(tmp_path, settings)
    found = versions_of_role(run, "HypothesisRefiner")
    (learned,) = (event["policy"]["version"] for event in run.events() if event["event"] == "phase_learned")
    assert set(found["gather"]) == {"nano@0"}
    assert set(found["again"]) == {learned}
    calls = list(read_lines(run.path / "phases" / "ppo" / "calls.jsonl"))
    answers = Counter(call["response"]["weights_version"] for call in calls)
    assert answers
    assert all(call["version"] == call["response"]["weights_version"] for call in calls)
    publishes = published(run)
    assert publishes[-1]["version"] == learned
    assert max(max(one["apart"]) for one in publishes) < 1e-4
    print(json.dumps({"versions": found, "branches": answers, "publishes": publishes}, indent=1))
    return run, learned, publishes


def test_gather_one_ppo_step_and_a_publish_behind_vllm_leave_no_answer_with_an_unknown_or_mixed_version(tmp_path):
    played(tmp_path, SETTINGS)


@pytest.mark.parametrize("replicas", [1, 2])
def test_adapters_are_published_alone_and_leave_no_answer_with_an_unknown_or_mixed_version(tmp_path, replicas):
    settings = f"replicas: {replicas}, args: [--enable-log-requests], adapter_rank"
    run, learned, publishes = played(tmp_path, OF_ADAPTERS.replace("adapter_rank", settings))
    # The phase begins with a copy of another slot's weights. Its first adapter is one of those weights themselves.
    assert [one["version"].rpartition("-")[2] for one in publishes] == ["0", "1", "2"]
    assert [sorted({"reload", "load"} & set(one["seconds"])) for one in publishes] == [
        ["reload"],
        ["load", "reload"],
        ["load"],
    ]
    folder = run.path / "models" / "refiner" / learned.partition("@")[2]
    assert {file.name for file in (folder / "adapter").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    # Each replica has proven each publish, and has answered with the first adapter and the last.
    assert {len(one["apart"]) for one in publishes} == {replicas}
    asked = [asked_of(log) for log in sorted((run.path / "logs").glob("vllm-*-[0-9].log"))]
    assert len(asked) == replicas
    print(json.dumps(asked, indent=1))
    for of_replica in asked:
        assert all(of_replica[one["version"]] > 1 for one in publishes[1:]), "a probe is one request"


def asked_of(log):
    """How many requests a server was sent, by the version of the adapter that they named; None: they named none."""
    named = re.findall(
        r"Received request .*lora_request: (?:None|LoRARequest\(lora_name='(.*)-[0-9a-f]{8}')", log.read_text()
    )
    return Counter(name or None for name in named)


def untied(folder):
    """The bundled model with its head in a tensor of its own."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(NANO, folder)
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    return folder


@contextmanager
def running_server(folder, log_file):
    """A vLLM server of the weights in `folder`, as a user would start it; its address."""
    port = free_port()
    environment = {**os.environ, "VLLM_API_KEY": KEY, "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    environment |= {"VLLM_SERVER_DEV_MODE": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    openmp = Path(PYTHON).parent.parent / "lib" / "libiomp5.so"
    environment |= {"LD_PRELOAD": str(openmp)} if openmp.exists() else {}
    command = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    command += ["--served-model-name", "nano"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager", *USUAL]
    command += ["--max-model-len", "2048", "--kv-cache-memory-bytes", str(2**30)]
    server = Program("vLLM", command, log_file, environment)
    url = f"http://127.0.0.1:{port}"
    try:
        asyncio.run(wait_for(Replica("vLLM", url, KEY, program=server), time.monotonic() + 1800))
        yield url
    finally:
        stop([server], seconds=10)


def test_a_server_that_runs_already_sleeps_during_updates_and_answers_by_each_version(tmp_path):
    """vLLM on a processor keeps its memory when it is told to sleep, and answers the same routes as on a GPU."""
    folder = untied(tmp_path / "nano")
    with running_server(folder, tmp_path / "server.log") as url:
        run = train(tmp_path, PATIENT + RUNNING.format(folder=folder, url=url))
    found = versions_of_role(run, "HypothesisRefiner")
    learned = [event["policy"]["version"] for event in run.events() if event["event"] == "phase_learned"]
    assert set(found["gather"]) == {"nano@0"}
    assert set(found["again"]) == {learned[-1]}
    noted = published(run)
    folders = [NANO, *(run.path / "models" / "refiner" / one.partition("@")[2] for one in learned)]
    assert len({(one / "model.safetensors").read_bytes() for one in folders}) == 3
    stages = [next(iter({"sleep", "wake", "reload"} & set(one["seconds"]))) for one in noted]
    assert stages == ["sleep", "wake", "reload"] * len(learned)
    said = (tmp_path / "server.log").read_text()
    assert said.count("sleep mode is not supported on CPU") >= 2 * len(learned)
    print(json.dumps({"versions": found, "noted": noted}, indent=1))


def test_the_shipped_endpoint_file_gathers_with_tool_calls_from_a_vllm_server(tmp_path):
    with running_server(NANO, tmp_path / "vllm.log") as url:
        # vLLM 0.32 on a processor ends when it decodes several requests with seeds together.
        served = (f"base_url={url}/v1", "model=nano", "api_key_env=OPENAI_API_KEY", "extra_body={seed: null}")
        run = train(
            tmp_path,
            REPOSITORY / "configs" / "endpoint.yaml",
            *("--phases", "gather", "wandb.mode=disabled", "data.size=60", "gather.tasks=8", "rollouts.timeout_s=6000"),
            *(f"models.{slot}.{setting}" for slot in ("junior", "senior") for setting in served),
            *(f"models.{slot}.kind=rubric" for slot in ("board", "principal", "judge")),
            *("models.junior.timeout_s=900", "models.junior.max_tokens=768"),
        )
    records = [RolloutRecord.load(data) for data in run.rollouts("gather")]
    calls = sum(sum(record.tool_calls.values()) for record in records) / len(records)
    failed = [record.error for record in records if record.error]
    print(f"{len(records)} rollouts, {calls:.2f} tool calls a rollout, {len(failed)} failed: {failed}")
    assert calls >= 2
    assert len(failed) <= 1
