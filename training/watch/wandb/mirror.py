"""A run in Weights & Biases: a thread sends the lines of metrics.jsonl, and the run waits for it only at its end.

The thread's queue is the file. So a W&B that is absent, refuses, hangs or dies costs the run nothing but a time limit,
and a later start goes on where W&B's history ends.
"""

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Literal, Self

from chimera.config.tree import Config
from chimera.core.secrets import redact
from chimera.processes.children import KILL_SECONDS
from chimera.run.directory import Run
from training.watch.wandb.feed import Feed, lines_in_files
from training.watch.wandb.service import WandbService, start_wandb

if TYPE_CHECKING:
    import wandb

KEY = "WANDB_API_KEY"
CLOSE_SECONDS = 20.0
"""Limit for the end of a finished run's W&B run."""
INTERRUPTED_SECONDS = 1.5
LOOK_SECONDS = 0.5

Mode = Literal["online", "offline"]


def wandb_mirror(
    run: Run, config: Config, secrets: Mapping[str, str], notify: Callable[[str], None]
) -> AbstractContextManager[object]:
    """Shows `run` in W&B while it is open, if `config.wandb` asks for it. `notify` gets the address and errors."""
    mode = config.wandb.mode
    if mode == "disabled":
        return nullcontext()
    online = mode == "online" or (mode == "auto" and KEY in secrets)
    return Mirror(run, config, secrets.get(KEY), ("online", "offline") if online else ("offline",), notify)


def run_id(run: Run) -> str:
    """The id of the W&B run, which stays the same for a run directory."""
    environment = (run.path / "environment.json").read_bytes()
    return hashlib.sha256(run.name.encode() + environment).hexdigest()[:8]


class Mirror:
    """The thread that shows a run in W&B.

    At its end it lets W&B send the remaining rows. After the time limit W&B's service is killed, and the thread given
    up.

    Args:
        key: W&B's key; None: the one of `wandb login`.
        modes: W&B's modes to try, one after another, until one starts.
    """

    def __init__(
        self, run: Run, config: Config, key: str | None, modes: Sequence[Mode], notify: Callable[[str], None]
    ) -> None:
        self._run, self._config, self._key, self._notify = run, config, key, notify
        self._folder = run.path / "wandb"
        self._closing, self._abandoned = threading.Event(), threading.Event()
        self._service: WandbService | None = None
        self._rest = (
            f"{run.path / 'metrics.jsonl'} has it all: a start with --resume sends it, and one with --resume "
            f"wandb.mode=offline writes it to {self._folder}, from where wandb sync sends it later"
        )
        self._thread = threading.Thread(target=self._work, args=(modes,), name="wandb", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """Process id of W&B's service; None until it is started."""
        return None if self._service is None else self._service.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._closing.set()
        self._thread.join(CLOSE_SECONDS if kind is None else INTERRUPTED_SECONDS)
        if self._thread.is_alive():
            self._abandoned.set()
            if self._service is not None:
                self._service.kill()
            self._thread.join(KILL_SECONDS)
            self._notify(f"W&B was not done in time; {self._rest}")

    def _work(self, modes: Sequence[Mode]) -> None:
        for mode in modes:
            try:
                shown, feed = self._start(mode)
            except Exception as error:  # noqa: BLE001  whatever W&B raises, the run goes on without it
                self._report(f"W&B cannot be used {mode}: {reason(error)}")
                if self._service is not None:
                    self._service.abandon()
                if self._closing.is_set():
                    return
            else:
                self._follow(shown, feed)
                return

    def _start(self, mode: Mode) -> "tuple[wandb.Run, Feed]":
        """Start or continue the W&B run; raises whatever wandb raises."""
        self._service = WandbService(self._run)
        self._service.connect()
        count = lines_in_files(self._folder)
        shown = start_wandb(self._run, run_id(self._run), self._config, self._key, online=mode == "online")
        feed = Feed(self._run, shown, count if shown.offline else shown.starting_step)
        if shown.offline:
            self._rest = f"send the run to W&B with: wandb sync {self._folder}"
            self._report(f"W&B is offline: watch live with: wandb leet {self._folder}")
        else:
            self._rest = "a start with --resume sends the rest"
            self._report(f"W&B: {shown.url}")
        return shown, feed

    def _follow(self, shown: "wandb.Run", feed: Feed) -> None:
        """Send lines until the run ends, then let W&B end."""
        service = self._service
        assert service is not None
        try:
            while service.alive() and not self._closing.wait(LOOK_SECONDS):
                self._send(feed)
            self._send(feed)
            service.finish(shown)
        except (Exception, SystemExit) as error:  # noqa: BLE001  it is all on disk
            service.join(KILL_SECONDS)
            if service.alive():
                self._report(f"W&B did not take everything ({reason(error)}); {self._rest}")
            else:
                self._report(f"{service.ending()}: W&B gets no more, metrics.jsonl has it all (see {service.log_file})")
            service.abandon()
            return
        if shown.offline:
            self._report(f"W&B: {self._rest}")
        else:  # W&B has what earlier offline starts wrote: `wandb sync` skips files with such a mark.
            for file in self._folder.glob("offline-run-*/*.wandb"):
                file.with_suffix(".wandb.synced").touch()

    def _send(self, feed: Feed) -> None:
        for name, error in feed.send():
            self._report(f"W&B did not take the {name}: {reason(error)}")

    def _report(self, text: str) -> None:
        if not self._abandoned.is_set():
            self._notify(text)


def reason(error: BaseException) -> str:
    """The first sentence of an error, on one line. The rest is often wrong advice."""
    return " ".join(redact(f"{type(error).__name__}: {error}").partition(". ")[0].split())
