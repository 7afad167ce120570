"""Several processes that share each update: starts them, orders, waits, and notices when one is gone.

    main process ── orders, by a connection to each rank (JSON, safetensors) ──> ranks
    rank <── sums of gradients, by torch's process group (gloo, nccl) ──> rank

Both listen on 127.0.0.1 unless ranks are on other machines (cluster.host). A rank that connects must show the team's
key. The ranks meet at a store that the main process holds, like those that torchrun starts.
"""

import hmac
import secrets
import selectors
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chimera.core.errors as errors
from chimera.core.errors import ChimeraError, RunError
from chimera.core.ports import LOOPBACK, listen
from training.cluster.launching import Launch, Meeting, launch_here
from training.cluster.wire import Channel

if TYPE_CHECKING:
    from torch import Tensor

Answer = tuple[dict[str, Any], "dict[str, Tensor]"]

CHECK_S = 0.2
"""How often processes are looked at while answers are awaited."""
BLAME_S = 10.0
"""How long to wait for further processes to end after the first: it may have ended because another did, or its node."""
START_S = 1800.0
"""Limit of the start of all ranks, which only ranks that hang or that nobody starts exceed. Usual: ten seconds."""
END_S = 30.0
"""How long to wait for a killed rank to disappear. Usual: at once, seconds on a very busy machine."""
GREETING_S = 5.0
"""How long a new connection may take to show the key."""


class RankLost(Exception):
    """A rank is gone; the message says which and how."""


class Team:
    """The ranks. Making one starts them and waits until all have connected, which takes the seconds of VeRL's import.

    Args:
        ranks: Number of ranks.
        logs: Folder of their logs.
        name: Begins the logs' names.
        launch: Starts the processes.
        host: Address of this machine at which ranks find it.

    Raises:
        RankLost: A rank ended before it was ready.
        RunError: No port can be opened.
    """

    def __init__(
        self, ranks: int, logs: Path, name: str, launch: Launch = launch_here, *, host: str = LOOPBACK
    ) -> None:
        from torch._C._distributed_c10d import TCPStore

        self._listener, meet = listen(host=host), listen(host=host)
        host, port = meet.getsockname()
        # Without a socket of ours the store would listen on all interfaces.
        self._store: Any = TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=meet.detach())
        own, key = self._listener.getsockname(), secrets.token_urlsafe(32)
        self._channels: list[Channel] = []
        self._children = launch(Meeting(ranks, f"{own[0]}:{own[1]}", key, host, port, logs, name))
        try:
            self._channels = self._greet(ranks, key)
        except BaseException:
            self.end()
            raise

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self._channels)

    @property
    def pids(self) -> list[int]:
        """Process ids of the ranks, by rank."""
        return [child.pid for child in self._children]

    def call(self, order: Mapping[str, Any]) -> list[Answer]:
        """Give one order to all ranks; returns their answers by rank.

        Raises:
            ChimeraError: A rank could not carry it out. All have answered.
            RankLost: A rank is gone. The team must be ended.
        """
        for rank, channel in enumerate(self._channels):
            try:
                channel.send(order)
            except OSError as error:
                raise self._lost(rank) from error
        answers: dict[int, Answer] = {}
        with selectors.DefaultSelector() as waiting:
            for rank, channel in enumerate(self._channels):
                waiting.register(channel, selectors.EVENT_READ, rank)
            while len(answers) < len(self._channels):
                for ready, _ in waiting.select(CHECK_S):
                    try:
                        answers[ready.data] = self._channels[ready.data].receive()
                    except (OSError, ValueError) as error:
                        raise self._lost(ready.data) from error
                    waiting.unregister(ready.fileobj)
        for rank in sorted(answers):
            message, _ = answers[rank]
            if "error" in message:
                raise _error(message)
        return [answers[rank] for rank in sorted(answers)]

    def end(self) -> None:
        """End all ranks. Ending twice does nothing."""
        for channel in self._channels:
            channel.close()
        self._listener.close()
        for child in self._children:
            child.kill()
        for child in self._children:
            child.join(END_S)
        self._store = None

    def _greet(self, ranks: int, key: str) -> list[Channel]:
        """The connections of all ranks, by rank."""
        found: dict[int, Channel] = {}
        self._listener.settimeout(CHECK_S)
        deadline = time.monotonic() + START_S
        while len(found) < ranks:
            if time.monotonic() > deadline:
                raise RankLost(f"only {len(found)} of {ranks} ranks have connected within {START_S:g} s")
            for rank, child in enumerate(self._children):
                if not child.alive():
                    raise self._lost(rank)
            with suppress(TimeoutError):
                connection, _ = self._listener.accept()
                connection.settimeout(GREETING_S)
                channel = Channel(connection)
                rank = _rank_of(channel, key)
                if rank is None or rank in found or not 0 <= rank < ranks:
                    channel.close()
                else:
                    connection.settimeout(None)
                    found[rank] = channel
        return [found[rank] for rank in range(ranks)]

    def _lost(self, rank: int) -> RankLost:
        """Says which rank is gone. A rank that was killed is named rather than one that ended for want of it."""
        deadline = time.monotonic() + BLAME_S
        while any(child.alive() for child in self._children) and time.monotonic() < deadline:
            if any(child.killed() for child in self._children):
                break
            time.sleep(CHECK_S / 10)
        gone = [child for child in self._children if not child.alive()]
        killed = [child for child in gone if child.killed()]
        if killed:
            return RankLost(killed[0].ending())
        if rank < len(self._children) and self._children[rank] in gone:
            gone = [self._children[rank]]
        if gone:
            return RankLost(f"{gone[0].ending()}: {gone[0].last_words()} (see {gone[0].log_file})")
        return RankLost(f"rank {rank} of {len(self._channels)} closed its connection")


def _rank_of(channel: Channel, key: str) -> int | None:
    """The rank at the other end; None if it does not show the key."""
    try:
        message, _ = channel.receive(greeting=True)
    except (OSError, ValueError):
        return None
    shown = message.get("key")
    rank = message.get("rank")
    known = isinstance(shown, str) and hmac.compare_digest(shown.encode(), key.encode())
    return rank if known and isinstance(rank, int) else None


def _error(message: Mapping[str, Any]) -> ChimeraError:
    kind = getattr(errors, message["error"], RunError)
    return kind(message["text"]) if kind in (errors.ConfigError, errors.DataError) else RunError(message["text"])
