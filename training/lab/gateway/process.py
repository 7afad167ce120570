"""The gateway seen from the main process: separate processes that every model call of a run goes through.

Runners call <gateway>/rollout/<id>/attempt/<id>/v1; the gateway attributes the call to that rollout, forwards it to the
server behind the logical model, and writes the exchange with its token ids into the store.
"""

import asyncio
import secrets
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path

from chimera.config.tree import Config
from chimera.core.errors import ChimeraError, RunError, boundary
from chimera.core.ports import reserve
from chimera.processes import forks
from chimera.processes.children import stop
from chimera.serving.client import Endpoint
from training.lab.gateway import litellm, thin
from training.lab.gateway.spec import START_SECONDS, GatewaySpec, scored_slots

MAX_RESTARTS = 3
SERVE = {"thin": thin.serve, "litellm": litellm.serve}
"""The function that the process runs, by `gateway.engine`."""


class Gateway:
    """The gateway's processes, seen from the main process. One that dies is started again at the same address.

    With `gateway.processes` several share the address, and the system gives each connection to one of them. They share
    nothing else: each writes its exchanges into the store before it answers.

    Args:
        log_file: File for the first process's output; those of others have its name with their numbers.
        on_warning: Called with a sentence for the user, such as the reason of the gateway's end when it is restarted.
        on_failure: Called with the error if the gateway cannot be kept running.
        port: Its port; None is a free one.
        key: Its key; None is a fresh one.
    """

    def __init__(
        self,
        config: Config,
        endpoints: Mapping[str, Endpoint],
        store_url: str,
        store_key: str,
        log_file: Path,
        on_warning: Callable[[str], None],
        on_failure: Callable[[ChimeraError], None],
        *,
        port: int | None = None,
        key: str | None = None,
    ) -> None:
        self.key = key or f"sk-{secrets.token_hex(24)}"
        self._reserved = reserve(port or 0, host=config.cluster.host, shared=config.gateway.processes > 1)
        self._port = self._reserved.getsockname()[1]
        self.url = f"{config.cluster.tls.scheme}://{config.cluster.host}:{self._port}"
        self._spec = GatewaySpec(
            config.gateway,
            store_url,
            config.models,
            endpoints,
            self.key,
            store_key,
            scored_slots(config),
            config.cluster.host,
            config.cluster.tls,
        )
        self._log_file = log_file
        self._on_warning = on_warning
        self._on_failure = on_failure
        self._children: dict[int, forks.Fork] = {}
        self._voices: dict[int, Connection] = {}
        self._said: set[str] = set()
        self._restarts = 0
        self._restarting: set[asyncio.Task[None]] = set()

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of those that run."""
        return tuple(child.pid for _, child in sorted(self._children.items()))

    @property
    def pid(self) -> int | None:
        return next(iter(self.pids), None)

    async def start(self) -> None:
        """Start the processes that do not run and wait until they answer; raises RunError if one did not start."""
        missing = set(range(self._spec.gateway.processes)) - set(self._children)
        begun = [(number, *self._begin(number)) for number in sorted(missing)]
        for number, child, receiver in begun:
            await forks.receive(receiver, child, seconds=START_SECONDS)
            self._listen(number, receiver)
            asyncio.get_running_loop().add_reader(child.sentinel, self._died, number, child)

    def stop(self) -> None:
        for restarting in self._restarting:
            restarting.cancel()
        children, self._children = self._children, {}
        for number, child in children.items():
            asyncio.get_running_loop().remove_reader(child.sentinel)
            self._listen(number, None)
        stop(children.values())
        self._reserved.close()

    def _begin(self, number: int) -> tuple[forks.Fork, Connection]:
        """Start one process; what it says first comes when it answers."""
        receiver, sender = forks.pipe()
        log = self._log_file.with_stem(f"{self._log_file.stem}-{number + 1}") if number else self._log_file
        name = f"gateway {number + 1}" if self._spec.gateway.processes > 1 else "gateway"
        child = forks.Fork(name, SERVE[self._spec.gateway.engine], (self._spec, self._port, sender), log)
        child.start()
        self._children[number] = child
        sender.close()
        return child, receiver

    def _listen(self, number: int, voice: Connection | None) -> None:
        """Pass on what a process says from now on; None: no more."""
        loop, old = asyncio.get_running_loop(), self._voices.pop(number, None)
        if old is not None:
            loop.remove_reader(old.fileno())
            old.close()
        if voice is not None:
            self._voices[number] = voice
            loop.add_reader(voice.fileno(), self._hear, number, voice)

    def _hear(self, number: int, voice: Connection) -> None:
        try:
            said = voice.recv()
        except (EOFError, OSError):
            self._listen(number, None)
            return
        if said not in self._said:  # Each process learns by itself what a server does not take.
            self._said.add(said)
            self._on_warning(said)

    def _died(self, number: int, child: forks.Fork) -> None:
        asyncio.get_running_loop().remove_reader(child.sentinel)
        del self._children[number]
        child.join(1.0)
        restarting = asyncio.create_task(self._restart(child))
        self._restarting.add(restarting)  # The loop holds tasks weakly.
        restarting.add_done_callback(self._restarting.discard)

    async def _restart(self, child: forks.Fork) -> None:
        """Restart the gateway after `child` has ended. Nobody awaits this, so every error goes to `on_failure`."""
        log = child.log_file
        try:
            with boundary(RunError, f"the gateway ended and could not be started again (see {log})"):
                if child.exit_code == thin.STORE_AWAY:
                    raise RunError(f"the gateway gave up: {child.last_words(1)} (see {log})")
                self._restarts += 1
                ending = child.ending() if child.killed() else f"{child.ending()}: {child.last_words()}"
                if self._restarts > MAX_RESTARTS:
                    raise RunError(f"{ending}, after {MAX_RESTARTS} restarts (see {log})")
                self._on_warning(f"{ending}; restart {self._restarts} of {MAX_RESTARTS} (see {log})")
                await self.start()
        except RunError as error:
            self._on_failure(error)
