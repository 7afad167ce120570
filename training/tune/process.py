"""The parent's side of the fine-tuning processes: start them early, give them their job, follow them, and end them."""

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

from chimera.core.errors import RunError
from chimera.core.machine import listen
from chimera.processes.child_environment import child_environment
from chimera.processes.children import Command
from training.scale.meeting import loopback, place_of
from training.tune.child import Loader, Spec

MOST_THREADS = 8
"""Limit of threads. More threads slow a small model down."""
LOOK_S = 0.5
"""How often it is looked whether the other ranks still live."""


class TuningProcess:
    """One child process or several, as an async context manager. They import libraries while they wait for `train`.

    Args:
        log_file: Their standard error and the output of libraries are appended here.
        loader: The phase's `unsloth`.
        module: What they run (`training.tune.child.work`).
        ranks: Number of processes; only the SFT child can share its work.
    """

    def __init__(self, log_file: Path, loader: Loader, module: str = "training.tune.child", *, ranks: int = 1) -> None:
        self._log_file = log_file
        self._loader = loader
        self._module = module
        self._ranks = ranks

    async def __aenter__(self) -> Self:
        with ExitStack() as stack:
            arguments, meeting = ["--unsloth", self._loader], None
            if self._ranks > 1:
                meeting = stack.enter_context(listen())
            self._children: list[Command] = []
            for rank in range(self._ranks):
                hosted = [] if rank or meeting is None else [meeting.fileno()]
                place = {} if meeting is None else _place(rank, self._ranks, meeting.getsockname())
                self._children.append(
                    Command(
                        "the process that fine-tunes" if meeting is None else f"rank {rank} of the fine-tuning",
                        self._module,
                        [*arguments, *(f"--meeting={descriptor}" for descriptor in hosted)],
                        self._log_of(rank),
                        {**tuning_environment(rank, self._ranks), **place},
                        pass_fds=hosted,
                        reports=rank == 0,
                    )
                )
        return self

    async def __aexit__(self, *_: object) -> None:
        for child in self._children:
            child.kill()
        for child in self._children:
            await asyncio.to_thread(child.join)

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self._children]

    async def train(self, spec: Spec) -> AsyncIterator[dict[str, Any]]:
        """Train, and yield the first child's reports: `begin`, a `step` for each optimiser step, `end`.

        Raises:
            RunError: A child ended before it was done. The message has its last lines of output.
        """
        for child in self._children:
            child.tell(spec.dump())
        first, done = self._children[0], False
        watch = asyncio.create_task(self._watch())
        try:
            while line := await asyncio.to_thread(first.report):
                report = json.loads(line)
                done = report["event"] == "end"
                yield report
            await asyncio.to_thread(first.join)
        finally:
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch
        if first.exit_code != 0 or not done:
            raise self._failure()

    async def _watch(self) -> None:
        """End the first child when another has failed, for which it might wait."""
        others = self._children[1:]
        while others:
            if any(child.exit_code for child in others):
                self._children[0].kill()
                return
            await asyncio.sleep(LOOK_S)

    def _failure(self) -> RunError:
        """Names the child that failed first: another than the first one, if one has, because the first ends with it."""
        failed = [child for child in self._children[1:] if child.exit_code] or self._children
        return RunError(f"{failed[0].ending()}: {failed[0].last_words(5)} (see {failed[0].log_file})")

    def _log_of(self, rank: int) -> Path:
        return self._log_file.with_stem(f"{self._log_file.stem}-rank-{rank}") if rank else self._log_file


def _place(rank: int, ranks: int, meeting: tuple[str, int]) -> dict[str, str]:
    """Each rank sees one GPU at most, so it is the first there."""
    return {**place_of(rank, ranks, meeting), "GLOO_SOCKET_IFNAME": loopback()}


def tuning_environment(rank: int = 0, ranks: int = 1) -> dict[str, str]:
    """Environment variables of a child: one GPU or its share of the machine's cores, and no network."""
    cores = max(1, len(os.sched_getaffinity(0)) // ranks)
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(ranks)))).split(",")
    return {
        **child_environment(),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "UNSLOTH_DISABLE_STATISTICS": "1",
        # Unsloth's default is a folder where the user stands.
        "UNSLOTH_COMPILE_LOCATION": str(Path(tempfile.gettempdir()) / "unsloth_compiled_cache"),
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": str(min(cores, MOST_THREADS)),
        # Threads that spin while they wait occupy cores that other processes of the run need.
        "OMP_WAIT_POLICY": "PASSIVE",
        # With several GPUs the trainer would put a micro-batch on each, and sft.batch_size would change its meaning.
        "CUDA_VISIBLE_DEVICES": gpus[rank] if rank < len(gpus) else "",
    }
