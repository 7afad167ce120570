"""A run in Weights & Biases, shown by a thread that the run never waits for longer than a time limit.

The thread's queue is the run's metrics.jsonl. So a W&B that is absent, refuses, hangs or dies costs the run nothing,
and a later start goes on where W&B's history ends.
"""

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from chimera.config.tree import Config
from chimera.processes.children import KILL_SECONDS
from chimera.run.directory import Run
from training.watch.metrics import Sink
from training.watch.wandb.mirror import Mirror, lines_in_files, reason
from training.watch.wandb.service import WandbService

if TYPE_CHECKING:
    import wandb

KEY = "WANDB_API_KEY"
CLOSE_SECONDS = 20.0
"""Limit for the end of a finished run's W&B run."""
INTERRUPTED_SECONDS = 1.5
LOOK_SECONDS = 0.5

Mode = Literal["online", "offline"]


def open_sinks(run: Run, config: Config, secrets: Mapping[str, str], notify: Callable[[str], None]) -> list[Sink]:
    """The W&B sink, if `config.wandb` asks for one. `notify` gets the run's address and errors."""
    mode = config.wandb.mode
    if mode == "disabled":
        return []
    online = mode == "online" or (mode == "auto" and KEY in secrets)
    return [WandbSink(run, config, secrets.get(KEY), ("online", "offline") if online else ("offline",), notify)]


def run_id(run: Run) -> str:
    """The id of the W&B run, which stays the same for a run directory."""
    environment = (run.path / "environment.json").read_bytes()
    return hashlib.sha256(run.name.encode() + environment).hexdigest()[:8]


class WandbSink:
    """The thread that shows a run in W&B.

    Args:
        key: W&B's key; None: the one of `wandb login`.
        modes: W&B's modes to try, one after another, until one starts.
    """

    name = "W&B"

    def __init__(
        self, run: Run, config: Config, key: str | None, modes: Sequence[Mode], notify: Callable[[str], None]
    ) -> None:
        self._run, self._config, self._key, self._notify = run, config, key, notify
        self._folder = run.path / "wandb"
        self._closing, self._abandoned = threading.Event(), threading.Event()
        self._service: WandbService | None = None
        self._rest = "metrics.jsonl has it all"
        self._thread = threading.Thread(target=self._work, args=(modes,), name="wandb", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """Process id of W&B's service; None until it is started."""
        return None if self._service is None else self._service.pid

    def close(self, *, interrupted: bool) -> None:
        """Let W&B send the remaining rows. After the time limit its service is killed, and the thread given up."""
        self._closing.set()
        self._thread.join(INTERRUPTED_SECONDS if interrupted else CLOSE_SECONDS)
        if self._thread.is_alive():
            self._abandoned.set()
            if self._service is not None:
                self._service.kill()
            self._thread.join(KILL_SECONDS)
            self._notify(f"W&B was not done in time; {self._rest}")

    def _work(self, modes: Sequence[Mode]) -> None:
        for mode in modes:
            try:
                shown, mirror = self._start(mode)
            except Exception as error:  # noqa: BLE001  whatever W&B raises, the run goes on without it
                self._tell(f"W&B cannot be used {mode}: {reason(error)}")
                self._abandon()
                if self._closing.is_set():
                    return
            else:
                self._follow(shown, mirror)
                return

    def _start(self, mode: Mode) -> "tuple[wandb.Run, Mirror]":
        """Start or continue the W&B run; raises whatever wandb raises."""
        self._service = WandbService(self._run)
        before = lines_in_files(self._folder)
        shown = self._service.start(run_id(self._run), self._config, online=mode == "online", key=self._key)
        if shown.offline:
            self._rest = f"send the run to W&B with: wandb sync {self._folder}"
            self._tell(f"W&B is offline: watch live with: wandb leet {self._folder}")
        else:
            self._rest, before = "a start with --resume sends the rest", shown.starting_step
            self._tell(f"W&B: {shown.url}")
        return shown, Mirror(self._run, shown, before, self._tell)

    def _follow(self, shown: "wandb.Run", mirror: Mirror) -> None:
        """Send lines until the sink is closed, then let W&B end."""
        service = self._service
        assert service is not None
        try:
            while service.alive() and not self._closing.wait(LOOK_SECONDS):
                mirror.follow()
            mirror.follow()
            service.finish(shown)
        except (Exception, SystemExit) as error:  # noqa: BLE001  it is all on disk
            service.join(KILL_SECONDS)
            told = f"W&B did not take everything ({reason(error)}); {self._rest}"
            if not service.alive():
                told = f"{service.ending()}: W&B gets no more, metrics.jsonl has it all (see {service.log_file})"
            self._tell(told)
            self._abandon()
            return
        if shown.offline:
            self._tell(f"W&B: {self._rest}")
        else:  # W&B has what earlier offline starts wrote: `wandb sync` skips files with such a mark.
            for file in self._folder.glob("offline-run-*/*.wandb"):
                file.with_suffix(".wandb.synced").touch()

    def _abandon(self) -> None:
        if self._service is not None:
            self._service.abandon()

    def _tell(self, text: str) -> None:
        if not self._abandoned.is_set():
            self._notify(text)
