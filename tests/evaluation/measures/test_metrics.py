"""The feed of a run's figures: what is written, once each, whatever kind of number it is and whoever writes."""

import json
import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record_kit import answered

from chimera.config.tree import Config
from chimera.run.directory import Run
from chimera.run.policies import Policy
from training.watch.metrics import Metrics, plain, rollout_values

RECORD = answered("r0", "t0", reward=0.75, parts={"alignment": 0.5, "novelty": 0.25}, seconds=1.5)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(), st.floats(), st.floats(width=32).map(np.float32)
)
TREES = st.recursive(SCALARS, lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)))


@pytest.fixture
def run(tmp_path):
    with Run.create("run", Config.model_validate({"runs_dir": tmp_path})) as run:
        yield run


def lines(run):
    return [{key: value for key, value in line.items() if key != "time"} for line in run.metrics()]


def test_numbers_of_any_library_become_json_and_what_is_not_finite_becomes_null(run):
    Metrics(run).log(
        "ppo",
        3,
        {
            "actor/pg_loss": np.float32(0.5),
            "tokens": np.int64(7),
            "nan": float("nan"),
            "inf": np.float64("inf"),
            "interval": (np.float64(-1.0), 1),
            "by": {"role": "x", 1: True},
        },
    )
    assert lines(run) == [
        {
            "phase": "ppo",
            "step": 3,
            "actor/pg_loss": 0.5,
            "tokens": 7,
            "nan": None,
            "inf": None,
            "interval": [-1.0, 1],
            "by": {"role": "x", "1": True},
        }
    ]


@settings(max_examples=50)
@given(TREES)
def test_plain_data_is_strict_json_and_stays_as_it_is(tree):
    made = plain(tree)
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    assert plain(made) == made


def test_each_rollout_is_logged_once_in_numbered_order_also_by_a_resumed_run(run):
    first, second, third = (replace(RECORD, rollout_id=f"r{number}") for number in range(3))
    metrics = Metrics(run)
    for record in (first, second, first):
        metrics.rollout(record)
    resumed = Metrics(run)
    for record in (first, second, third):
        resumed.rollout(record)
    assert [(line["phase"], line["step"], line["rollout_id"]) for line in lines(run)] == [
        ("rollout", 1, "r0"),
        ("rollout", 2, "r1"),
        ("rollout", 3, "r2"),
    ]


def test_a_rollout_is_logged_with_its_reward_and_parts_and_a_failed_one_without():
    assert rollout_values(RECORD) == {
        "rollout_id": "r0",
        "of": "gather",
        "reward": 0.75,
        "parts": {"alignment": 0.5, "novelty": 0.25},
        "aligned": 1,
        "failed": 0,
        "seconds": 1.5,
    }
    failed = replace(
        RECORD, status="failed", error="no JSON", answer=None, decision=None, reward=None, parts={}, seconds=None
    )
    values = rollout_values(failed)
    assert (values["reward"], values["parts"], values["aligned"], values["failed"]) == (None, {}, None, 1)


def test_threads_log_whole_lines_and_number_rollouts_without_gap_or_double(run):
    metrics = Metrics(run)

    def work(thread):
        for number in range(20):
            metrics.rollout(replace(RECORD, rollout_id=f"{thread}-{number}"))
            metrics.rollout(replace(RECORD, rollout_id=f"shared-{number}"))
            metrics.log("sft", number, {"thread": thread})

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    written = lines(run)
    rollouts = [line for line in written if line["phase"] == "rollout"]
    assert [line["step"] for line in rollouts] == list(range(1, 4 * 20 + 20 + 1))
    assert len({line["rollout_id"] for line in rollouts}) == len(rollouts)
    assert len(written) - len(rollouts) == 80


def test_tables_and_artifacts_are_in_the_feed_too(run):
    metrics = Metrics(run)
    metrics.protocols("gate-sft", [RECORD, RECORD])
    metrics.artifact(Policy("weights", "junior", "junior@sft", "models/junior/sft"))
    assert lines(run) == [
        {"phase": "protocols", "step": None, "of": "gate-sft", "rollouts": 2},
        {
            "phase": "artifact",
            "step": None,
            "part": "weights",
            "target": "junior",
            "version": "junior@sft",
            "folder": "models/junior/sft",
        },
    ]
