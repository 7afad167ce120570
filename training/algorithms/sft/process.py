"""The parent's side of the process that fine-tunes: start it early, hand it its work, follow it, and never leave it."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from chimera.core.errors import RunError
from chimera.run.child_environment import child_environment
from training.algorithms.sft.child import TOLD, Loader, Spec

MOST_THREADS = 8
"""More threads than this slow a small model down."""
LAST_LINES = 5


class SftProcess:
    """One child process, as an async context manager; it imports its libraries until `train` tells it what to do.

    Args:
        log_file: Its standard error, and what libraries print, are appended here.
        loader: `sft.unsloth`.
    """

    def __init__(self, log_file: Path, loader: Loader) -> None:
        self._log_file = log_file
        self._loader = loader

    async def __aenter__(self) -> Self:
        self._log_file.parent.mkdir(parents=True, exist_ok=True)
        with self._log_file.open("ab") as log:
            self._log_start = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "training.algorithms.sft.child"),
                *("--parent", str(os.getpid()), "--unsloth", self._loader),
                stdin=PIPE,
                stdout=PIPE,
                stderr=log,
                env=sft_environment(),
                start_new_session=True,  # Ctrl-C in a terminal goes to all of a session; the parent decides.
            )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    async def train(self, spec: Spec) -> AsyncIterator[dict[str, Any]]:
        """Train, and yield what the child reports: `begin`, a `step` for each optimiser step, `end`.

        Raises:
            RunError: The child ended before it was done; with its last words.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(spec.dump().encode() + b"\n")
            await self._process.stdin.drain()
        except ConnectionError:
            pass  # It has ended already: its output, which ends at once, and its exit code tell.
        done = False
        async for line in self._process.stdout:
            report = json.loads(line)
            done = report["event"] == "end"
            yield report
        code = await self._process.wait()
        if code != 0 or not done:
            raise RunError(f"{self._ending(code)}: {self._last_words()} (see {self._log_file})")

    def _ending(self, code: int) -> str:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"the process that fine-tunes (process {self.pid}) {how}"

    def _last_words(self) -> str:
        with self._log_file.open("rb") as log:
            log.seek(self._log_start)
            lines = [line.strip() for line in log.read().decode("utf-8", "replace").splitlines()]
        told = [line for line in lines if line.startswith(TOLD)]
        return (
            told[-1].removeprefix(TOLD)
            if told
            else " | ".join([line for line in lines if line][-LAST_LINES:]) or "its log is empty"
        )


def sft_environment() -> dict[str, str]:
    """What a child gets, on one GPU or some cores of the machine, and without the network."""
    cores = len(os.sched_getaffinity(0))
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    return {
        **child_environment(),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "UNSLOTH_DISABLE_STATISTICS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": str(min(cores, MOST_THREADS)),
        # Threads that spin while they wait take the cores that other processes of the run need.
        "OMP_WAIT_POLICY": "PASSIVE",
        # With several GPUs the trainer would put a micro-batch on each: sft.batch_size would mean something else.
        "CUDA_VISIBLE_DEVICES": gpus.split(",")[0],
    }
