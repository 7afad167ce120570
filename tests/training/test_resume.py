"""A whole run on the bundled model, killed again and again and continued, beside the same run left alone.

Killed are the model server and the main process, each in another phase.
"""

import os
import re
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from kill_chain import commands, recorded

from chimera.run.directory import Run
from chimera.run.policies import live

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]
"""Two whole runs, one of them started three times, come before the first test."""

ONLINE = str(Path(__file__).parents[2] / "configs" / "online.yaml")
SETTINGS = [
    *("--config", ONLINE),
    *("data.size=60", "rollouts.concurrency=3", "gather.tasks=6", "gate.tasks=4", "wandb.mode=disabled"),
    *("sft.min_examples=1", "sft.epochs=1", "sft.batch_size=8", "sft.micro_batch_size=8"),
    *("ppo.steps=2", "ppo.tasks_per_step=2", "ppo.n=2", "ppo.min_good_share=0.1"),
    "bandit.tasks=3",
]
PHASES = ("gather", "sft", "ppo", "bandit")


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """`start(name, *arguments)` runs the command in a process group of its own."""
    folder = tmp_path_factory.mktemp("resume")

    def begin(name, *arguments):
        command = [sys.executable, "-m", "chimera.train", "--name", name, *arguments, f"runs_dir={folder}"]
        process = start_command(command)
        process.run, process.lines = Run(folder / name), []
        return process

    with commands() as start_command:
        yield begin


def read_until(process, pattern):
    """Read the output up to a line that matches; that line."""
    for line in process.stdout:
        process.lines.append(line)
        if re.search(pattern, line):
            return line
    raise AssertionError(f"{pattern!r} did not appear in:\n{''.join(process.lines)}")


def finish(process):
    process.lines += process.stdout
    return process.wait()


def model_server(process):
    family = psutil.Process(process.pid).children(recursive=True)
    return next(one for one in family if "chimera.serving" in " ".join(one.cmdline()))


@pytest.fixture(scope="module")
def runs(start):
    """The undisturbed run and the disturbed one; what was recorded at each interruption."""
    alone = start("alone", *SETTINGS)
    assert finish(alone) == 0, "".join(alone.lines)
    disturbed = start("disturbed", *SETTINGS)
    read_until(disturbed, "^ppo: step 1/2")
    model_server(disturbed).kill()
    code = finish(disturbed)
    first = SimpleNamespace(code=code, output="".join(disturbed.lines), records=recorded(disturbed.run.path))
    again = start("disturbed", "--resume")
    read_until(again, "^bandit, round 1: 1/3")
    again.kill()
    finish(again)
    second = SimpleNamespace(output="".join(again.lines), records=recorded(again.run.path))
    last = start("disturbed", "--resume")
    code = finish(last)
    third = SimpleNamespace(code=code, output="".join(last.lines), records=recorded(last.run.path))
    return SimpleNamespace(alone=alone.run, disturbed=disturbed.run, parts=(first, second, third))


def key(record):
    return record["phase"], record["task_id"], record["repeat"]


def test_a_dead_model_server_ends_the_run_and_says_so(runs):
    first = runs.parts[0]
    assert first.code == 6
    assert re.search(r"^error: the model server .* was killed by SIGKILL", first.output, re.MULTILINE)
    assert "phase_failed" in [event["event"] for event in runs.disturbed.events()]


def test_the_continued_run_ends_well_and_repeats_no_finished_phase(runs):
    assert runs.parts[2].code == 0, runs.parts[2].output
    events = list(runs.disturbed.events())
    finished = Counter(event["phase"] for event in events if event["event"] == "phase_finished")
    assert finished == dict.fromkeys(PHASES, 1)
    assert "gather: finished before" in runs.parts[1].output
    assert "ppo: finished before" in runs.parts[2].output
    learned = Counter(event["phase"] for event in events if event["event"] == "phase_learned")
    assert learned == dict.fromkeys(PHASES[1:], 1)


def test_no_finished_rollout_is_lost_or_run_again(runs):
    for earlier, later in zip(runs.parts, runs.parts[1:], strict=False):
        for phase, records in earlier.records.items():
            assert later.records[phase][: len(records)] == records
    for phase, records in runs.parts[2].records.items():
        assert set(Counter(map(key, records)).values()) == {1}, phase


def test_the_same_rollouts_and_policies_are_there_in_the_end_as_without_the_kills(runs):
    """Not always the same words: the server's float32 depends on which requests it batched together."""
    alone, disturbed = recorded(runs.alone.path), runs.parts[2].records
    assert alone.keys() == disturbed.keys()
    for phase in alone:
        made = [{(key(record), record["seed"]) for record in records[phase]} for records in (alone, disturbed)]
        assert made[0] == made[1], phase
    assert live(runs.alone.events()) == live(runs.disturbed.events())


def test_metrics_name_every_rollout_once_and_every_step(runs):
    metrics = list(runs.disturbed.metrics())
    logged = Counter(line["rollout_id"] for line in metrics if line["phase"] == "rollout")
    assert set(logged.values()) == {1}
    assert [line["step"] for line in metrics if line["phase"] == "ppo" and line["step"] is not None] == [1, 2]


def test_what_was_recorded_fixes_the_settings_it_was_made_with(start, runs):
    process = start("disturbed", "--resume", "reward.alignment=2")
    assert finish(process) == 6
    assert "was made with reward.alignment=1.0 (not 2.0): keep it" in process.lines[-1]


def test_no_process_outlives_the_runs(runs):
    names = {str(runs.alone.path), str(runs.disturbed.path)}
    left = [
        process
        for process in psutil.process_iter(["cmdline"])
        if process.pid != os.getpid() and any(name in " ".join(process.info["cmdline"] or ()) for name in names)
    ]
    assert left == []


def test_continuing_an_unknown_run_names_the_known_ones(start, runs):
    process = start("distrubed", "--resume")
    assert finish(process) == 6
    assert "did you mean 'disturbed'?" in process.lines[-1]
