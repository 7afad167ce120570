"""A run that W&B mirrors, and what of it is read again."""

import json
import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import psutil
import pytest
from message_kit import PROTOCOL
from record_kit import scored

from chimera.config.tree import Config
from chimera.run.policies import Policy
from training.watch.metrics import Metrics
from training.watch.wandb.mirror import wandb_mirror

KEY = "0123456789abcdef" * 2 + "01234567"
WAIT_SECONDS = 600.0
POLICY = Policy("weights", "junior", "junior@sft", "models/junior/sft")
AMENDMENTS = ["report harms", "blind the raters"]
PATIENCE = dict.fromkeys(("WANDB_INIT_TIMEOUT", "WANDB_FINISH_TIMEOUT", "WANDB__SERVICE_WAIT"), str(WAIT_SECONDS))


def rollout(number, *, reward=0.5, phase="gather"):
    parts, outputs = {}, {}
    if reward is not None:
        parts = {"alignment": reward / 2, "novelty": reward / 2}
        outputs = {
            "research_goal": f"Does drug{number} work?",
            "final_protocol": {**PROTOCOL, "amendments": AMENDMENTS},
        }
    return scored(f"r{number}", f"t{number}", reward, phase=phase, parts=parts, outputs=outputs, seconds=1.0)


def config_for(folder, **wandb):
    return Config.model_validate({"runs_dir": folder, "wandb": wandb})


def log_a_run(run, metrics):
    """Two phases with steps, one without, rollouts, a table and an artifact."""
    for number, reward in enumerate((0.5, None, 0.75)):
        record = rollout(number, reward=reward)
        run.append_rollout(record.dump(), phase="gather")
        metrics.rollout(record)
    metrics.log("gather", None, {"reward": 0.625, "parts": {"novelty": 0.25}})
    metrics.protocols("gather", [])
    for step in range(1, 4):
        metrics.log("sft", 10 * step, {"loss": 1 / step})
    metrics.log("ppo", 1, {"actor/pg_loss": float("nan"), "actor/entropy": 2.0})
    metrics.log("sft", None, {"conversations": 12})
    weights = run.path / POLICY.folder / "model.safetensors"
    weights.parent.mkdir(parents=True, exist_ok=True)
    weights.write_bytes(b"weights" * 1000)
    metrics.artifact(POLICY)
    for stage in ("sft", "ppo"):
        metrics.log("gate", None, {"stage": stage})
    for stage, reward in (("base", 0.75), ("sft", 1.25)):
        metrics.log(f"gate-{stage}", None, {"reward": reward, "alignment_rate": 0.5})


EXPECTED = [
    {"rollout/index": 1, "rollout/reward": 0.5, "rollout/parts/alignment": 0.25, "rollout/failed": 0},
    {"rollout/index": 2, "rollout/failed": 1},
    {"rollout/index": 3, "rollout/reward": 0.75, "rollout/of": "gather"},
    {"gather/step": 0, "gather/reward": 0.625, "gather/parts/novelty": 0.25},
    {"protocols/gather/_type": "table-file", "protocols/gather/nrows": 2},
    {"sft/step": 10, "sft/loss": 1.0},
    {"sft/step": 20, "sft/loss": 0.5},
    {"sft/step": 30, "sft/loss": 1 / 3},
    {"ppo/step": 1, "ppo/actor/entropy": 2.0},
    {"sft/step": 30, "sft/conversations": 12},
    None,
    {"gate/step": 0, "gate/stage": "sft"},
    {"gate/step": 1, "gate/stage": "ppo"},
    {"gate-base/step": 0, "gate-base/reward": 0.75},
    {"gate-sft/step": 0, "gate-sft/reward": 1.25},
]
"""What W&B's history has for each line of metrics.jsonl, in part; an artifact is no row."""


def assert_rows(rows):
    """`rows` are W&B's history by step: every expected one, once, and no other."""
    assert sorted(rows) == [number for number, row in enumerate(EXPECTED) if row is not None]
    for number, row in rows.items():
        for key, value in EXPECTED[number].items():
            assert row.get(key) == pytest.approx(value), (number, key, row)
    assert "rollout/reward" not in rows[1]
    assert "ppo/actor/pg_loss" not in rows[8]


def read_offline(file):
    """The records of a .wandb file: history by step, and the other kinds as lists."""
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    store = DataStore()
    store.open_for_scan(str(file))
    found = SimpleNamespace(history={}, artifact=[], metric=[], run=[], exit=[])
    while (data := store.scan_data()) is not None:
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "history":
            row = {(item.key or "/".join(item.nested_key)): json.loads(item.value_json) for item in record.history.item}
            assert row["_step"] not in found.history
            found.history[row["_step"]] = row
        elif hasattr(found, kind):
            getattr(found, kind).append(getattr(record, kind))
    return found


def offline_files(run):
    return sorted((run.path / "wandb").glob("offline-run-*/*.wandb"))


def mirrored(run, config, secrets, notes, log=log_a_run):
    """Log a run while W&B follows it; not ended before W&B has said something, which a short run is otherwise."""
    before = len(notes)
    with wandb_mirror(run, config, secrets, notes.append):
        log(run, Metrics(run))
        wait_for(lambda: len(notes) > before)


def wandb_sync(run):
    """What the user is told to type; what it says."""
    command = [sys.executable, "-m", "wandb", "sync", str(run.path / "wandb")]
    environment = {**os.environ, "WANDB_API_KEY": KEY, "WANDB_SILENT": "false"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=run.path)
    assert done.returncode == 0, done.stderr
    return done.stderr


def wait_for(condition):
    """Until `condition` holds that another process or thread brings about."""
    pause = threading.Event()
    while not condition():
        pause.wait(0.02)


def wandb_processes():
    """W&B's own processes below this one."""
    return [process for process in psutil.Process().children(recursive=True) if process.name().startswith("wandb")]
