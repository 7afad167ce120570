"""Metrics out of W&B: the same lines that the mirror showed there, and errors that say what to do."""

import json
from types import SimpleNamespace

import pytest
import wandb
from message_kit import refused
from wandb_kit import FakeWandb

from chimera.core.errors import ConfigError, RunError
from training.watch.metrics import ARTIFACT, PROTOCOLS
from training.watch.wandb.history import lines_from, lines_of
from training.watch.wandb.rows import Rows

KEY = "fedcba9876543210" * 2 + "76543210"
PATH = "me/chimera/abc"
TIME = "2026-11-21T00:40:49.1814"


def line(phase, step, **values):
    return {"phase": phase, "step": step, **values}


LINES = [
    {"time": f"{TIME}{number:02d}+00:00", **one}
    for number, one in enumerate(
        [
            line("rollout", 1, of="gather", reward=0.5, parts={"alignment": 0.25, "novelty": 0.25}, failed=0),
            line("gather", None, rollouts=1, parts={"alignment": 0.25}, counts={"tool_calls": 3}),
            line("gate-base", None, reward=1.5),
            line("sft", 1, loss=0.5),
            line("sft", 2, loss=0.25),
            line("sft", 2, loss=0.125),
            line("sft", 3, loss=0.125),
            line("gate", None, **{"stage": "sft", "reward/mean": 0.125}),
            line("sft", None, selected_by_role={"Neurologist": 2}),
            line("ppo", 1, **{"actor/entropy": 2.0, "reward/mean": 1.0, "policy": "senior@ppo-1"}),
            line("bandit", 0, choices=160),
            line("bandit", 1, choices=200),
            line("bandit", None, choices=200),
        ],
        start=1,
    )
]


def shown(lines):
    """W&B's rows of `lines`."""
    rows = Rows(SimpleNamespace(define_metric=lambda *arguments, **options: None))
    kept = [(number, line) for number, line in enumerate(lines) if line["phase"] not in (PROTOCOLS, ARTIFACT)]
    return json.loads(json.dumps([{"_step": number, **rows.row(line)} for number, line in kept]))


def test_what_the_mirror_shows_comes_back_as_the_same_lines():
    assert lines_from(reversed(shown(LINES))) == LINES


def test_what_wandb_never_had_does_not_come_back():
    lines = [
        {**LINES[0], "reward": None, "parts": {"alignment": None, "novelty": 0.5}},
        {"time": LINES[0]["time"], "phase": ARTIFACT, "step": None, "version": "junior@sft"},
    ]
    rows = [*shown(lines), {"_step": 1, "_timestamp": 0.0, "protocols/gather": {"_type": "table-file"}}]
    rows[0] |= {"sft/step": None, "sft/loss": None}
    (found,) = lines_from(rows)
    assert found == {key: value for key, value in lines[0].items() if key != "reward"} | {"parts": {"novelty": 0.5}}


class HistoryWandb(FakeWandb):
    """As much of W&B's server as a public API needs to read one run."""

    def __init__(self, rows):
        super().__init__()
        self.rows = rows

    def data(self, operation, variables, query):
        viewer = {"id": "u", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}}
        name = variables.get("name") or variables.get("run") or variables.get("runName")
        run = None
        if name == "abc":
            texts = [json.dumps(row) for row in self.rows]
            last = self.rows[-1]["_step"] if self.rows else -1
            names = {"id": "UnVu", "name": name, "displayName": "shown", "state": "finished", "projectId": "1"}
            empty = dict.fromkeys(("config", "summaryMetrics", "systemMetrics"), "{}")
            history = {"historyKeys": {"lastStep": last, "keys": {}}, "historyLineCount": len(texts)}
            parquet = {"liveData": [], "parquetUrls": []}
            run = names | empty | history | {"history": texts, "parquetHistory": parquet, "tags": [], "user": viewer}
        return {"viewer": viewer, "project": {"id": "p", "run": run}, "serverInfo": {"features": []}}


@pytest.fixture
def server(monkeypatch, tmp_path):
    for name in ("CONFIG_DIR", "CACHE_DIR", "DATA_DIR"):
        monkeypatch.setenv(f"WANDB_{name}", str(tmp_path / name))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    fake = HistoryWandb(shown(LINES))
    monkeypatch.setenv("WANDB_BASE_URL", fake.url)
    wandb.teardown()
    yield fake
    wandb.teardown()
    fake.close()


def test_the_lines_are_read_through_wandbs_public_api_with_the_key_of_the_secrets(server, capfd):
    assert lines_of(f"/{PATH}", {"WANDB_API_KEY": KEY}) == LINES
    assert server.keys - {""} == {KEY}
    assert KEY not in "".join(capfd.readouterr())


def test_a_run_that_wandb_does_not_know_and_one_without_our_metrics_are_told(server):
    with refused(RunError, "me/chimera/other", "WANDB_API_KEY"):
        lines_of("me/chimera/other", {"WANDB_API_KEY": KEY})
    server.rows = [{"_step": 0, "_timestamp": 0.0, "loss": 1.0}]
    with refused(RunError, "me/chimera/abc", "no metrics"):
        lines_of(PATH, {"WANDB_API_KEY": KEY})


def test_a_refused_key_is_told(server):
    server.trouble = "refusing"
    with refused(RunError, "me/chimera/abc", "401", "WANDB_API_KEY") as caught:
        lines_of(PATH, {"WANDB_API_KEY": KEY})
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("path", ["abc", "chimera/abc", "me/chimera/abc/more", "me//abc", ""])
def test_a_path_of_other_than_three_parts_is_refused(path):
    with pytest.raises(ConfigError, match="entity/project/run"):
        lines_of(path, {"WANDB_API_KEY": KEY})


def test_without_a_key_nobody_is_asked_for_one():
    with refused(ConfigError, "me/chimera/abc", "WANDB_API_KEY", "--wandb"):
        lines_of(PATH, {})
