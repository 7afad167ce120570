"""`python -m chimera.train` as a process: what it prints and writes, and that nothing outlives it, however it ends."""

import os
import re
import signal
import subprocess
import sys
import textwrap
from collections import Counter

import psutil
import pytest
import yaml
from kill_chain import commands
from message_kit import refused

from chimera.core.errors import ConfigError
from chimera.run.chain import read_chain
from chimera.run.jsonl import read_lines
from chimera.run.seals import history, unlike_disk

pytestmark = pytest.mark.whole

HANGING_SECONDS = 600.0
"""No test waits longer for a process to end; nothing is expected to come near it."""

WITHOUT_WATCHDOG = """
from chimera.core.cli import run_command
from chimera.train import main
from training import interrupt

interrupt.STOP_SECONDS = 3600.0
run_command(main)
"""
"""The command, whose clean stop may take as long as a busy machine needs."""

JUNIOR_CALLS = 6
"""In one rollout: three juniors search and answer."""


@pytest.fixture(scope="module")
def start_training(scripted_openai, tmp_path_factory):
    """`start(name, *overrides)` runs the command on generated tasks; trained roles are scripted, the rest are rubrics.

    When `endless`, two rollouts are made, and all others wait for their first model calls until the run is stopped.
    """
    folder = tmp_path_factory.mktemp("command")
    endpoint = {"kind": "endpoint", "base_url": scripted_openai.url, "model": "scripted", "timeout_s": 3600}
    config = {
        "runs_dir": str(folder),
        "models": dict.fromkeys(("junior", "supervisor", "senior"), endpoint),
        "rollouts": {"concurrency": 2, "timeout_s": 3600, "exploration": 0.0},
        "data": {"size": 50},
        "gather": {"tasks": 4},
        "wandb": {"mode": "disabled"},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    calls = Counter()

    def wait(request):
        calls[request["model"]] += 1
        endless = request["model"].startswith("endless") and calls[request["model"]] > 2 * JUNIOR_CALLS
        return scripted_openai.never() if endless else None

    scripted_openai.hooks[:] = [wait]

    def start(name, *overrides, endless=False):
        command = [sys.executable, "-c", WITHOUT_WATCHDOG, "--phases", "gather", "--name", name]
        command += ["--config", str(folder / "config.yaml"), *overrides]
        command += [f"models.junior.model=endless-{name}", "gather.tasks=30"] if endless else []
        process = begin(command)
        process.run = folder / name
        return process

    with commands() as begin:
        yield start


def read_until(process, text):
    """The output up to the line that contains `text`."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return "".join(lines)
    raise AssertionError(f"{text!r} did not appear in:\n{''.join(lines)}")


def family(process):
    return psutil.Process(process.pid).children(recursive=True)


def assert_all_gone(processes):
    """`processes` were the children of a run: its model server, and what that has started."""
    assert processes
    _, alive = psutil.wait_procs(processes, timeout=HANGING_SECONDS)
    assert [one.cmdline() for one in alive] == []


def test_a_run_from_start_to_end(start_training):
    process = start_training("whole", "gather.tasks=4")
    output, _ = process.communicate()
    assert process.returncode == 0, output
    loading, first, look, second, *rest = output.splitlines()
    assert loading == "loading configuration, data and libraries ..."
    assert first.startswith(f"run {process.run}: gather on generated tasks")
    assert look == f"to look at it, now and later: python -m chimera view runs_dir={process.run.parent}"
    assert second == "starting model servers ..."
    told = [
        line for line in rest if not re.search(r", for \d+ s; run ", line)
    ]  # On a slow machine it says what it does.
    assert told[0] == "phases: gather"
    assert told[1].startswith("gather: 4 rollouts")
    assert "PubMedQA" not in output
    assert "4 succeeded, 0 failed" in output
    records = list(read_lines(process.run / "rollouts" / "gather.jsonl"))
    assert len(records) == 4
    for record in records:
        assert (process.run / record["trace"]).is_file()
        assert record["policy_versions"]["board"]
        assert record["weights_versions"]["principal"] == [record["policy_versions"]["principal"]]
        assert record["reward"] == pytest.approx(sum(record["parts"].values()))
    events = [event["event"] for event in read_lines(process.run / "ledger.jsonl")]
    assert events == ["created", "planned", "phase_started", "phase_finished", "sealed", "sealed"]
    assert list(unlike_disk(process.run, history(read_lines(process.run / "ledger.jsonl")))) == []
    entries = read_chain(process.run / "ledger.jsonl")
    *_, ledger, command = (line for line in output.splitlines() if not line.startswith("      "))
    assert ledger.startswith(f"ledger: last hash {entries[-1].hash} ")
    assert command == f"next: python -m chimera.eval --run whole runs_dir={process.run.parent}"
    lines = list(read_lines(process.run / "metrics.jsonl"))
    assert [line["rollout_id"] for line in lines if line["phase"] == "rollout"] == [
        one["rollout_id"] for one in records
    ]
    assert [line["hash"] for line in lines if line["phase"] == "ledger"] == [entries[-2].hash]
    (metrics,) = [line for line in lines if line["phase"] == "gather"]
    assert (metrics["phase"], metrics["rollouts"], metrics["failed"]) == ("gather", 4, 0)


def test_ctrl_c_stops_cleanly_and_keeps_finished_rollouts(start_training):
    process = start_training("interrupted", endless=True)
    read_until(process, "gather: 1/")
    processes = family(process)
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=HANGING_SECONDS)
    assert process.returncode == 130
    assert "stopping" in output
    goes_on = f"next: python -m chimera.train --resume --name interrupted runs_dir={process.run.parent}"
    assert output.splitlines()[-2:] == [goes_on, "interrupted"]
    assert "Traceback" not in output
    assert_all_gone(processes)
    records = list(read_lines(process.run / "rollouts" / "gather.jsonl"))
    assert records
    assert all((process.run / record["trace"]).is_file() for record in records)
    events = list(read_lines(process.run / "ledger.jsonl"))
    assert [event["event"] for event in events][-2:] == ["phase_interrupted", "sealed"]
    assert list(unlike_disk(process.run, history(events))) == []


def test_nothing_outlives_a_main_process_that_is_killed(start_training):
    process = start_training("killed", endless=True)
    read_until(process, "gather: 1/")
    processes = family(process)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert_all_gone(processes)
    assert list(read_lines(process.run / "rollouts" / "gather.jsonl"))


def test_a_second_ctrl_c_kills_at_once_even_while_starting(start_training):
    process = start_training("interrupted-twice")
    read_until(process, "starting ")
    while not (processes := family(process)):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    read_until(process, "once more kills at once")
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    assert_all_gone(processes)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["gather.tasks=601"], ("gather.tasks=601", "600 training tasks")),
        (["models.junior.path=/no/model"], ("models.*.path", "'/no/model'")),
        (
            [f"models.judge.{key}" for key in ("kind=endpoint", "base_url=http://localhost/v1", "model=m")]
            + ["models.judge.api_key_env=NO_SUCH_KEY"],
            ("models.judge.api_key_env", "NO_SUCH_KEY"),
        ),
    ],
)
def test_what_cannot_work_is_refused_before_the_name_is_taken(overrides, message, tmp_path):
    from chimera.train import main

    with refused(ConfigError, message):
        main(["--name", "taken", *overrides, f"runs_dir={tmp_path}/runs"])
    assert list(tmp_path.iterdir()) == []


def test_too_low_a_limit_of_open_files_is_one_sentence_and_a_soft_one_is_raised(tmp_path):
    """Without this, a run at `ulimit -n 64` waits for ever for connections that nobody can open."""
    script = """
    import resource, sys
    from chimera.core.cli import run_command
    from chimera.train import main

    def told(argv):
        try:
            return main(argv)
        finally:
            print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])

    resource.setrlimit(resource.RLIMIT_NOFILE, (64, int(sys.argv.pop(1))))
    run_command(told)
    """
    call = [sys.executable, "-c", textwrap.dedent(script)]
    options = ["--name", "taken", "rollouts.concurrency=5", "gather.tasks=601", f"runs_dir={tmp_path}/runs"]
    low = subprocess.run([*call, "100", *options], capture_output=True, text=True, check=False)
    expected = (
        "rollouts.concurrency=5 needs 104 open files, and a process may open 100 here: raise the limit (ulimit -n 104)"
    )
    assert (low.returncode, low.stderr) == (2, f"error: {expected}, or lower rollouts.concurrency\n")
    assert list(tmp_path.iterdir()) == []
    high = subprocess.run([*call, "200", *options], capture_output=True, text=True, check=False)
    assert high.stdout.splitlines()[-1] == "104"
