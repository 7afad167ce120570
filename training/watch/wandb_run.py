"""A run's Weights & Biases process, seen from the main process: starts it, listens to it, and ends it in time.

Everything that W&B shows is first in the run directory, and a separate process (`wandb_mirror`) follows the run's
metrics.jsonl. So if W&B hangs, fails or is killed, the run is not affected.

A thread of the main process is not enough with wandb 0.28. It starts its service, `wandb-core`, with the process's
whole environment, including secrets, and with its terminal. Its exit handler waits for that service without a limit: if
the service hangs, the run does not exit. And the stop button of its web page interrupts the main thread.
"""

import hashlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection

from chimera.config.loader import effective
from chimera.config.tree import Config
from chimera.core.errors import RunError
from chimera.core.secrets import redact_tree
from chimera.processes import forks
from chimera.processes.children import KILL_SECONDS
from chimera.run.directory import Run
from training.watch.metrics import Sink
from training.watch.wandb_mirror import WandbSpec, serve, sync

KEY = "WANDB_API_KEY"
CLOSE_SECONDS = 20.0
"""Limit for sending the last rows of a finished run. The rest can be sent later."""
INTERRUPTED_SECONDS = 1.5
LISTEN_SECONDS = 0.1


def open_sinks(run: Run, config: Config, secrets: Mapping[str, str], notify: Callable[[str], None]) -> list[Sink]:
    """The W&B sink, if `config.wandb` asks for one. `notify` gets the run's address and errors."""
    settings = config.wandb
    if settings.mode == "disabled":
        return []
    # Pass them explicitly: the process is forked from one that may have started before they were set.
    environment = {name: value for name, value in os.environ.items() if name.startswith("WANDB_")}
    if KEY in secrets:
        environment[KEY] = secrets[KEY]
    mode = settings.mode if settings.mode != "auto" else "online" if KEY in secrets else "offline"
    spec = WandbSpec(
        run.path,
        run_id(run),
        settings.project,
        settings.entity,
        settings.protocols,
        redact_tree(effective(config)),
        environment,
    )
    return [WandbSink(spec, ("online", "offline") if mode == "online" else ("offline",), notify)]


def run_id(run: Run) -> str:
    """The id of the W&B run, which stays the same for a run directory."""
    environment = (run.path / "environment.json").read_bytes()
    return hashlib.sha256(run.name.encode() + environment).hexdigest()[:8]


class WandbSink:
    """The W&B process of a run.

    Args:
        modes: W&B's modes to try, one after another, until one starts.
    """

    name = "W&B"

    def __init__(self, spec: WandbSpec, modes: Sequence[str], notify: Callable[[str], None]) -> None:
        self._spec = spec
        self._notify = notify
        self._closing = threading.Event()
        self._child: forks.Fork | None = None
        self._started = False
        self._watcher = threading.Thread(target=self._watch, args=(modes,), name="wandb-watcher", daemon=True)
        self._watcher.start()

    @property
    def pid(self) -> int | None:
        """Id of the W&B process; None until it is started."""
        return None if self._child is None else self._child.pid

    def close(self, *, interrupted: bool) -> None:
        """Let the process send the remaining rows. After the time limit it is killed."""
        self._closing.set()
        self._watcher.join(INTERRUPTED_SECONDS if interrupted else CLOSE_SECONDS)
        if self._watcher.is_alive():
            if self._child is not None:
                self._child.kill()
            self._watcher.join(KILL_SECONDS)
            rest = f"send the rest with: {sync(self._spec.folder)}" if self._started else "metrics.jsonl has it all"
            self._notify(f"W&B was not done in time; {rest}")

    def _watch(self, modes: Sequence[str]) -> None:
        for mode in modes:
            theirs, orders = forks.pipe()
            reports, send = forks.pipe()
            log = self._spec.folder / "logs" / "wandb.log"
            child = forks.Fork(f"W&B ({mode})", serve, (self._spec, mode, theirs, send), log)
            try:
                child.start()
            except RunError as error:
                self._notify(f"W&B cannot be used {mode}: {error}")
                return
            self._child = child
            theirs.close()
            send.close()
            self._listen(child, reports, orders)
            if self._started or self._closing.is_set():
                return

    def _listen(self, child: forks.Fork, reports: Connection, orders: Connection) -> None:
        """Pass on the process's reports until it has ended."""
        reported = False
        while True:
            if self._closing.is_set():
                orders.close()
            try:
                if reports.poll(LISTEN_SECONDS):
                    self._started, text = reports.recv()
                    reported = True
                    self._notify(text)
            except EOFError:
                break
        child.join(1.0)
        if not self._closing.is_set() and (self._started or not reported):
            self._notify(f"{child.ending()}: W&B gets no more, metrics.jsonl has it all (see {child.log_file})")
