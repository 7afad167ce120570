"""Kill a run's processes at named moments, one after another, and continue it each time. `test_kills` has the chains.

A moment is told by the run's own files: it has come when `count(run)` is larger than it was at the kill before.
"""

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from chimera.run.directory import Run
from chimera.run.hashes import hash_artifact
from chimera.run.jsonl import read_lines

Count = Callable[[Path], int]
VICTIMS = {"server": "chimera.serving", "child": "training.tune.child"}
"""The module that a process runs, by its name in a chain; the main process is "main"."""
LOOK_S = 0.02
GONE_S = 3.0
"""On an idle machine nothing may be left of a run so long after its main process has ended."""
LONG_S = 600.0
"""No step takes so long, however busy the machine is."""


@contextmanager
def commands():
    """Starts commands in groups of their own, with their output as lines; none outlives the block."""
    started = []

    def start(command):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        started.append(subprocess.Popen(command, **pipes, env=environment, start_new_session=True))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()


@dataclass(frozen=True)
class Kill:
    """`victim` is killed when `count` has grown, or as soon as it is there; the run ends of it."""

    victim: str
    moment: str
    count: Count | None = None
    module: str = "chimera.train"

    def __str__(self) -> str:
        return f"{self.victim} at {self.moment}"


def lines(file: str) -> Count:
    """How many whole lines a file of the run has."""
    return lambda run: len(list(read_lines(run / file))) if run.exists() else 0


def events(name: str, phase: str | None = None) -> Count:
    """How often the ledger has an event."""
    return lambda run: sum(
        event["event"] == name and phase in (None, event.get("phase")) for event in read_lines(run / "ledger.jsonl")
    )


def written(file: str, text: str = "") -> Count:
    """When a file that holds `text` was written last: a start that begins anew writes it anew."""

    def count(run: Path) -> int:
        path = run / file
        return path.stat().st_mtime_ns if path.exists() and text in path.read_text() else 0

    return count


def metrics(phase: str) -> Count:
    """How many steps of a phase are logged."""
    return lambda run: sum(
        line["phase"] == phase and line["step"] is not None for line in read_lines(run / "metrics.jsonl")
    )


def exists(file: str) -> Count:
    """1 once the file or folder is there."""
    return lambda run: int((run / file).exists())


ONLINE = str(Path(__file__).parent.parent / "configs" / "online.yaml")
"""Its PPO phase makes rollouts between updates, so more can be lost."""


class Chain:
    """One run that is killed again and again.

    Args:
        folder: `runs_dir`.
        name: The run's.
        settings: Of the command line.
        phases: To run.
        config: The configuration file.
        knows_itself: Continue it with its name alone, as soon as its settings and phases are recorded.

    Attributes:
        slowest: The longest that anything was left of the run after its main process had ended, in seconds.
        starts: How often a command was started.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        settings: Sequence[str],
        phases: Sequence[str],
        config: str = ONLINE,
        *,
        knows_itself: bool = False,
    ) -> None:
        self.run = folder / name
        self.slowest = 0.0
        self.starts = 0
        self._arguments = {
            "chimera.train": ["--name", name, "--config", config, *settings, f"runs_dir={folder}"],
            "chimera.eval": ["--run", name, "--stages", "base,final", f"runs_dir={folder}"],
        }
        self._phases = tuple(phases)
        self._knows_itself = knows_itself
        self._mark = f"CHIMERA_KILL_CHAIN={uuid.uuid4().hex}"
        self._process: subprocess.Popen[str] | None = None
        self._output: list[str] = []
        self._module = ""
        self._recorded: dict[str, list[dict]] = {}

    def kill(self, one: Kill) -> None:
        """Start the command unless it runs, wait for the moment, kill the victim, and check what must hold then."""
        count = one.count or (lambda _: 1)
        before = count(self.run) if one.count else 0
        if self._module not in ("", one.module):
            self.finish(self._module)
        if self._process is None:
            self._start(one.module)
        process = self._process
        assert process is not None
        while count(self.run) <= before or (found := self._find(one.victim)) is None:
            assert process.poll() is None, f"{one}: the run ended before with {process.returncode}: {self._said()}"
            time.sleep(LOOK_S)
        found.kill()
        code = self._end()
        expected = {-signal.SIGKILL} if one.victim == "main" else {4, 6}
        assert code in expected, f"{one}: exit code {code}: {self._said()}"
        if one.victim != "main":
            assert sum(line.startswith("error: ") for line in self._output) == 1, self._said()
            assert "Traceback" not in self._said(), self._said()
        self.check(str(one))

    def finish(self, module: str = "chimera.train", *, phases: Sequence[str] = ()) -> str:
        """Let the command come to its end, and start it first unless it runs, with other `phases` if given.

        Returns what it printed.
        """
        self._phases = tuple(phases) or self._phases
        if self._process is not None and self._module != module:
            self.finish(self._module)
        if self._process is None:
            self._start(module)
        code = self._end()
        assert code == 0, self._said()
        self.check("the end")
        return "".join(self._output)

    def close(self) -> None:
        """Leave nothing running."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def check(self, when: str) -> None:
        """No recorded rollout was lost or changed, and none was made twice."""
        records = recorded(self.run)
        for phase, earlier in self._recorded.items():
            assert records[phase][: len(earlier)] == earlier, f"{when}: {phase} has lost rollouts"
        self._recorded = records
        for phase in records:
            made = Counter(identity(record) for record in records[phase])
            assert set(made.values()) <= {1}, f"{when}: {phase} has rollouts twice"

    def _start(self, module: str) -> None:
        arguments = [*self._arguments[module]]
        if module == "chimera.train" and self._knows_itself and events("planned")(self.run):
            arguments = ["--resume", "--name", self.run.name, f"runs_dir={self.run.parent}"]
        elif module == "chimera.train":
            began = (self.run / "rollouts").exists() or events("phase_started")(self.run)
            arguments += ["--phases", ",".join(self._phases), *(["--resume"] if began else [])]
        self._module, self._output = module, []
        self.starts += 1
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **dict([self._mark.split("=")])},
            start_new_session=True,
        )
        assert self._process.stdout is not None
        threading.Thread(target=self._output.extend, args=(self._process.stdout,), daemon=True).start()

    def _end(self) -> int:
        """Wait for the main process and then for all that is left of it; its exit code."""
        process, self._process = self._process, None
        assert process is not None
        code = process.wait(LONG_S)
        ended = time.monotonic()
        while left := self._left():
            assert time.monotonic() - ended < LONG_S, f"left of the run: {[one.cmdline() for one in left]}"
            time.sleep(LOOK_S)
        self.slowest = max(self.slowest, time.monotonic() - ended)
        return code

    def _left(self) -> list[psutil.Process]:
        """Every process that was started by this chain's commands, wherever it hangs in the tree by now."""
        return [process for process in psutil.process_iter() if self._mark in _environment(process)]

    def _find(self, victim: str) -> psutil.Process | None:
        process = self._process
        assert process is not None
        if victim == "main":
            return psutil.Process(process.pid)
        try:
            family = psutil.Process(process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return None
        return next((one for one in family if _runs(one, VICTIMS[victim])), None)

    def _said(self) -> str:
        return "".join(self._output[-40:])


def _runs(process: psutil.Process, module: str) -> bool:
    try:
        return module in " ".join(process.cmdline())
    except psutil.Error:
        return False


def _environment(process: psutil.Process) -> str:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return ""
        return Path(f"/proc/{process.pid}/environ").read_text(errors="replace")
    except (OSError, psutil.Error):
        return ""


def recorded(run: Path) -> dict[str, list[dict]]:
    """Every recorded rollout by phase, in the order of the file."""
    return {file.stem: list(read_lines(file)) for file in sorted(run.glob("rollouts/*.jsonl"))}


def identity(record: dict) -> tuple:
    """What makes a rollout the same in a run and in its continuation."""
    return record["phase"], record["task_id"], record["repeat"], record["seed"]


def learned(run: Path) -> dict[str, str]:
    """SHA-256 of the weights and arrays that each phase has learned, by the policy's version.

    What lies beside them, such as how long the fine-tuning took, is another one each time.
    """
    policies = [event["policy"] for event in Run(run).events() if event["event"] == "phase_learned"]
    return {
        policy["version"]: ",".join(
            hash_artifact(file) for file in sorted((run / policy["folder"]).glob("*.safetensors"))
        )
        for policy in policies
    }
