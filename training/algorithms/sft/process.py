"""The parent's side of the fine-tuning process: start it early, give it its job, follow it, and end it."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from chimera.core.errors import RunError
from chimera.run.child_environment import child_environment
from chimera.run.children import Command
from training.algorithms.sft.child import Loader, Spec

MOST_THREADS = 8
"""Limit of threads. More threads slow a small model down."""


class SftProcess:
    """One child process, as an async context manager. It imports its libraries while it waits for `train`.

    Args:
        log_file: Its standard error and the output of libraries are appended here.
        loader: The phase's `unsloth`.
        module: What it runs (`training.algorithms.sft.child.work`).
    """

    def __init__(self, log_file: Path, loader: Loader, module: str = "training.algorithms.sft.child") -> None:
        self._log_file = log_file
        self._loader = loader
        self._module = module

    async def __aenter__(self) -> Self:
        self._child = Command(
            "the process that fine-tunes",
            self._module,
            ["--unsloth", self._loader],
            self._log_file,
            sft_environment(),
            reports=True,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.kill()
        await asyncio.to_thread(self._child.join)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._child.pid

    async def train(self, spec: Spec) -> AsyncIterator[dict[str, Any]]:
        """Train, and yield the child's reports: `begin`, a `step` for each optimiser step, `end`.

        Raises:
            RunError: The child ended before it was done. The message has its last lines of output.
        """
        self._child.tell(spec.dump())
        done = False
        while line := await asyncio.to_thread(self._child.report):
            report = json.loads(line)
            done = report["event"] == "end"
            yield report
        await asyncio.to_thread(self._child.join)
        if self._child.exit_code != 0 or not done:
            raise RunError(f"{self._child.ending()}: {self._child.last_words(5)} (see {self._log_file})")


def sft_environment() -> dict[str, str]:
    """Environment variables of a child: one GPU or some of the machine's cores, and no network."""
    cores = len(os.sched_getaffinity(0))
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    return {
        **child_environment(),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "UNSLOTH_DISABLE_STATISTICS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": str(min(cores, MOST_THREADS)),
        # Threads that spin while they wait occupy cores that other processes of the run need.
        "OMP_WAIT_POLICY": "PASSIVE",
        # With several GPUs the trainer would put a micro-batch on each, and sft.batch_size would change its meaning.
        "CUDA_VISIBLE_DEVICES": gpus.split(",")[0],
    }
