"""W&B online, with no server that answers, and after a kill."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from mirror_kit import (
    EXPECTED,
    KEY,
    WAIT_SECONDS,
    assert_rows,
    config_for,
    log_a_run,
    mirrored,
    offline_files,
    read_offline,
    wait_for,
    wandb_processes,
    wandb_sync,
)

from chimera.run.directory import Run
from training.watch.metrics import Metrics
from training.watch.wandb.mirror import run_id, wandb_mirror

pytestmark = pytest.mark.whole

WITH_KEY = {"WANDB_API_KEY": KEY}


class Show:
    """Shows a run in W&B while `log` writes it; `notes` are what all of its starts told."""

    def __init__(self, folder):
        self.config, self.notes = config_for(folder), []

    def __call__(self, log, secrets=WITH_KEY, *, resume=False):
        with Run.create("shown", self.config, resume=resume) as run:
            mirrored(run, self.config, secrets, self.notes, log)
        return run

    def log_until_told_twice(self, run, metrics):
        log_a_run(run, metrics)
        wait_for(lambda: len(self.notes) > 1)


@pytest.fixture
def show(tmp_path):
    return Show(tmp_path)


def test_online_rows_arrive_once_each_also_those_of_a_time_without_wandb(server, show):
    def steps(first, last):
        return lambda run, metrics: [metrics.log("sft", step, {"loss": step / 8}) for step in range(first, last)]

    show(steps(0, 3))
    assert sorted(server.rows) == [0, 1, 2]
    with Run.create("shown", show.config, resume=True) as run:
        steps(3, 5)(run, Metrics(run))
    run = show(steps(5, 7), resume=True)
    assert server.refused == 0
    assert {step: row["sft/loss"] for step, row in server.rows.items()} == {step: step / 8 for step in range(7)}
    assert show.notes == [f"W&B: {server.url}/me/chimera/runs/{run_id(run)}"] * 2
    assert server.keys - {""} == {KEY}
    files = [path for path in run.path.rglob("*") if path.is_file()]
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []


@pytest.mark.parametrize("trouble", ["closed", "down", "refusing", "silent"])
def test_without_a_server_that_answers_the_run_is_written_offline(trouble, server, show, monkeypatch):
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "1")
    server.trouble = trouble
    if trouble == "closed":
        server.close()
    run, notes = show(show.log_until_told_twice), show.notes
    assert notes[0].startswith("W&B cannot be used online: CommError")
    assert notes[1].startswith("W&B is offline: watch live with: wandb leet")
    assert len(notes) == 3
    assert_rows(read_offline(*offline_files(run)).history)
    assert len(list(run.metrics())) == len(EXPECTED)


def test_online_without_a_key_is_written_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    notes: list[str] = []
    config = config_for(tmp_path, mode="online")
    with Run.create("shown", config) as run:
        mirrored(run, config, {}, notes, lambda run, metrics: wait_for(lambda: len(notes) > 1))
    assert "API key" in notes[0]
    assert notes[1].startswith("W&B is offline")


def test_an_interrupted_run_does_not_wait_for_a_silent_server(server, show, tmp_path):
    server.trouble = "silent"

    def log(run, metrics):
        assert server.asked.wait(WAIT_SECONDS)
        processes.extend(wandb_processes())
        raise KeyboardInterrupt

    processes: list[psutil.Process] = []
    with pytest.raises(KeyboardInterrupt):
        show(log)
    assert processes
    assert psutil.wait_procs(processes, timeout=WAIT_SECONDS)[1] == []
    (note,) = show.notes
    assert note.startswith("W&B was not done in time")
    folder = tmp_path / "shown"
    assert all(part in note for part in (str(folder / "metrics.jsonl"), "--resume", str(folder / "wandb")))


def test_without_wandb_a_run_says_so_and_goes_on(show, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    run = show(show.log_until_told_twice)
    modes = [note.partition(":")[0] for note in show.notes]
    assert modes == ["W&B cannot be used online", "W&B cannot be used offline"]
    assert len(list(run.metrics())) == len(EXPECTED)


def test_a_server_that_dies_midway_costs_the_run_nothing_and_gets_the_rest_at_the_next_start(server, show, monkeypatch):
    monkeypatch.setenv("WANDB_FINISH_TIMEOUT", "1")

    def dies(run, metrics):
        metrics.log("sft", 1, {"loss": 0.5})
        wait_for(lambda: show.notes)  # W&B asks its server more than once before it has started.
        server.trouble = "down"
        metrics.log("sft", 2, {"loss": 0.25})

    show(dies)
    assert show.notes[1].startswith("W&B did not take everything (TimeoutError")
    assert show.notes[1].endswith("a start with --resume sends the rest")
    server.trouble = ""
    monkeypatch.delenv("WANDB_FINISH_TIMEOUT")
    show(lambda run, metrics: metrics.log("ppo", 1, {"a": 1}), resume=True)
    assert server.refused == 0
    assert [row.get("sft/loss") for _, row in sorted(server.rows.items())] == [0.5, 0.25, None]


def test_a_start_online_sends_what_starts_offline_have_written_and_wandb_sync_not_again(server, show):
    show(lambda run, metrics: metrics.log("sft", 1, {"loss": 0.5}), {})
    run = show(lambda run, metrics: metrics.log("sft", 2, {"loss": 0.25}), resume=True)
    assert sorted(server.rows) == [0, 1]
    assert "Skipped 1 synced run(s)" in wandb_sync(run)
    assert server.refused == 0


def test_a_hanging_wandb_is_given_up_after_the_time_limit(show, monkeypatch):
    monkeypatch.setattr("training.watch.wandb.mirror.CLOSE_SECONDS", 1.0)
    notes = show.notes
    earlier = set(wandb_processes())  # One of an earlier test may be ending.

    def hangs(run, metrics):
        wait_for(lambda: notes)
        (process,) = set(wandb_processes()) - earlier
        process.suspend()
        processes.append(process)
        log_a_run(run, metrics)

    processes: list[psutil.Process] = []
    run = show(hangs, {})
    assert psutil.wait_procs(processes, timeout=WAIT_SECONDS)[1] == []
    assert len(notes) == 2
    assert re.fullmatch(r"W&B was not done in time; send the run to W&B with: wandb sync \S+", notes[1])
    assert len(list(run.metrics())) == len(EXPECTED)
    show(lambda run, metrics: None, {}, resume=True)
    assert_rows(read_offline(offline_files(run)[-1]).history)


def test_a_killed_wandb_is_told_and_stops_nothing(tmp_path):
    notes: list[str] = []
    config = config_for(tmp_path)
    with Run.create("shown", config) as run, wandb_mirror(run, config, {}, notes.append) as mirror:
        wait_for(lambda: notes)
        os.kill(mirror.pid, signal.SIGKILL)
        wait_for(lambda: len(notes) > 1)
        Metrics(run).log("sft", 1, {"loss": 0.5})
    assert len(notes) == 2
    assert "was killed by SIGKILL: W&B gets no more" in notes[1]
    assert [line["loss"] for line in run.metrics()] == [0.5]


MAIN = """
import sys
from pathlib import Path
from chimera.config.tree import Config
from chimera.run.directory import Run
from training.watch.metrics import Metrics
from training.watch.wandb.mirror import wandb_mirror

if __name__ == "__main__":
    config = Config.model_validate({"runs_dir": Path(sys.argv[1])})
    run = Run.create("killed", config)
    mirror = wandb_mirror(run, config, {}, lambda text: print(text, flush=True))
    Metrics(run).log("sft", 1, {"loss": 0.5})
    sys.stdin.read()
"""


def test_nothing_is_left_when_the_main_process_is_killed(tmp_path):
    script = tmp_path / "main.py"
    script.write_text(MAIN)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
    command = [sys.executable, str(script), str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as main:
        assert main.stdout is not None
        assert "offline" in main.stdout.readline()
        processes = psutil.Process(main.pid).children(recursive=True)
        assert any(process.name() == "wandb-core" for process in processes)
        main.kill()
        main.wait()
        assert psutil.wait_procs(processes, timeout=WAIT_SECONDS)[1] == []
