"""A run's processes: each ends with its parent, also while it starts; the limits of a stop."""

import json
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import psutil
import pytest

from chimera.processes import children
from chimera.processes.child_environment import child_environment
from chimera.processes.children import Command, stop
from training import interrupt
from training.ppo import learner as ppo
from training.watch.wandb import mirror as wandb_mirror

ROOT = Path(__file__).parents[3]
PARENT = """
import os, socket, subprocess, sys, threading
environment = {**os.environ, "PYTHONPATH": sys.argv[1] + os.pathsep + os.environ.get("PYTHONPATH", "")}
with socket.create_server(("127.0.0.1", 0)) as listener:
    fill = {"FD": str(listener.fileno()), "PARENT": str(os.getpid())}
    command = [sys.executable, *(fill.get(one, one) for one in sys.argv[2:])]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[listener.fileno()], env=environment)
    print(child.pid, flush=True)
    threading.Event().wait()
"""


def gone(process: psutil.Process) -> bool:
    """True when the process has ended; one that nobody reaps has."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def stuck_library(folder: Path, name: str) -> Path:
    """A library that tells by a file that its import has begun, and whose import never ends."""
    (folder / f"{name}.py").write_text(
        "import pathlib, threading\npathlib.Path(__file__).with_suffix('.begun').touch()\nthreading.Event().wait()\n"
    )
    return folder / f"{name}.begun"


@pytest.mark.parametrize(
    ("library", "command"),
    [
        ("pydantic", ["chimera.serving.embedded.__main__", "--fd", "FD"]),
        ("torch", ["training.tune.child", "--unsloth", "never"]),
        ("yaml", ["chimera.train"]),
    ],
)
def test_a_child_that_still_imports_its_libraries_ends_with_its_parent(library, command, tmp_path):
    """The model server, the process that fine-tunes, and a study's run."""
    begun = stuck_library(tmp_path, library)
    call = [sys.executable, "-c", PARENT, str(tmp_path), "-m", "chimera.processes.child", "PARENT", *command]
    with subprocess.Popen(call, stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        try:
            while not begun.exists():
                assert not gone(child)
                threading.Event().wait(0.02)
            parent.kill()
            parent.wait()
            while not gone(child):
                threading.Event().wait(0.02)
        finally:
            parent.kill()
            child.kill() if child.is_running() else None


STUBBORN = """
import json, signal, subprocess, sys, time
def main(argv):
    assert sys.stdin.read() == "secret"
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    below = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    print(json.dumps([argv, below.pid]), flush=True)
    below.wait()
"""
FAULTY = """
import sys
from chimera.core.errors import ConfigError
def main(argv):
    print("a library's noise", flush=True)
    if argv == ["quiet"]:
        sys.exit(7)
    print("more of it", file=sys.stderr, flush=True)
    raise ConfigError("x.y is wrong: mend it")
"""


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Starts a module of the given text."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    started: list[Command] = []

    def start(text: str, *arguments: str, reports: bool = False) -> Command:
        (tmp_path / "told_module.py").write_text(text)
        child = Command(
            "the helper", "told_module", arguments, tmp_path / "logs" / "log", child_environment(), reports=reports
        )
        started.append(child)
        return child

    yield start
    for child in started:
        child.kill()
        child.join()


def test_a_command_that_ignores_sigterm_is_killed_with_all_below_it(command):
    child = command(STUBBORN, "one", "two", reports=True)
    child.tell("secret")
    arguments, below = json.loads(child.report())
    process, grandchild = psutil.Process(child.pid), psutil.Process(below)
    assert arguments == ["one", "two"]
    assert os.getsid(child.pid) == child.pid, "Ctrl-C in a terminal would reach it"
    stop([child], seconds=0.0)
    child.join()
    while not (gone(process) and gone(grandchild)):
        threading.Event().wait(0.02)
    assert child.killed()
    assert child.ending() == f"the helper (process {child.pid}) was killed by SIGKILL"
    stop([child])


def test_the_last_words_of_a_command_are_its_own_error_or_the_end_of_its_log(command):
    child = command(FAULTY)
    child.tell("")
    child.join()
    assert child.ending() == f"the helper (process {child.pid}) ended with exit code 2"
    assert child.last_words() == "x.y is wrong: mend it"
    child = command(FAULTY, "quiet")
    child.tell("")
    child.join()
    assert child.exit_code == 7
    assert not child.killed()
    assert child.last_words() == "a library's noise", "what an earlier child wrote to the same log is not among them"
    assert command("def main(argv): input()").last_words() == "its log is empty"


def test_the_limits_of_all_steps_of_a_stop_are_within_the_limit_of_the_stop():
    one_by_one = [
        children.STOP_SECONDS + children.KILL_SECONDS,
        ppo.STOP_SECONDS,
        wandb_mirror.INTERRUPTED_SECONDS + wandb_mirror.KILL_SECONDS,
    ]
    assert sum(one_by_one) < interrupt.STOP_SECONDS < 10


@pytest.mark.parametrize("hangs", ["the task", "what follows it"])
def test_a_stop_that_hangs_is_cut_short(hangs):
    script = """
    import asyncio, os, signal, sys, threading
    from training import interrupt

    async def main():
        with interrupt.interruptible(asyncio.current_task()):
            os.kill(os.getpid(), signal.SIGINT)
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    if sys.argv[1] != "the task":
                        raise

    interrupt.STOP_SECONDS = 0.1
    try:
        asyncio.run(main())
    except asyncio.CancelledError:
        threading.Event().wait()
    """
    call = [sys.executable, "-c", textwrap.dedent(script), hangs]
    done = subprocess.run(call, capture_output=True, text=True, cwd=ROOT, check=False)
    said = "stopping took too long, so everything was killed; finished rollouts are on disk"
    assert (done.returncode, done.stderr) == (130, f"\nstopping; once more kills at once\n{said}\n")


@pytest.mark.parametrize(
    ("body", "said"),
    [("free_port()", "no port of 127.0.0.1 can be opened"), ("ask()", "no connection to 127.0.0.1 can be made")],
)
def test_without_a_free_socket_there_is_one_sentence(body, said):
    script = f"""
    import dotenv, httpx, os, resource
    from chimera.core.cli import run_command
    from chimera.core.machine import check_sockets
    from chimera.core.machine import free_port

    def ask():
        try:
            client.get("http://127.0.0.1:9/")
        except httpx.HTTPError as error:
            check_sockets(error)

    client = httpx.Client(trust_env=False)

    def main(argv):
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1,) * 2)
        {body}

    run_command(main)
    """
    call = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(call, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 6, done.stderr
    assert done.stderr.startswith(f"error: {said} (Too many open files): end programs that hold many connections")
    assert done.stderr.count("\n") == 1
