"""The gateway seen from the main process: a separate process that every model call of a run goes through.

Runners call http://<gateway>/rollout/<id>/attempt/<id>/v1; the gateway attributes the call to that rollout, forwards it
to the server behind the logical model, and writes the exchange with its token ids into the store.
"""

import asyncio
import secrets
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path

from chimera.config.tree import Config
from chimera.core.errors import ChimeraError, RunError, boundary
from chimera.core.ports import reserve
from chimera.run import forks
from chimera.run.children import stop
from chimera.serving.client import Endpoint
from training.lab.gateway import litellm, thin
from training.lab.gateway.spec import START_SECONDS, GatewaySpec

MAX_RESTARTS = 3
SERVE = {"thin": thin.serve, "litellm": litellm.serve}
"""The function that the process runs, by `gateway.engine`."""


class Gateway:
    """The gateway process, seen from the main process. If it dies, it is restarted at the same address.

    Args:
        config: Has the models and the gateway's settings.
        endpoints: The servers behind the models.
        store_url: Address of the store for exchanges.
        store_key: Its key.
        log_file: File for the process's output.
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
        self._reserved = reserve(port or 0, host=config.cluster.host)
        self._port = self._reserved.getsockname()[1]
        self.url = f"http://{config.cluster.host}:{self._port}"
        self._spec = GatewaySpec(
            config.gateway, store_url, config.models, endpoints, self.key, store_key, config.cluster.host
        )
        self._log_file = log_file
        self._on_warning = on_warning
        self._on_failure = on_failure
        self._child: forks.Fork | None = None
        self._voice: Connection | None = None
        self._restarts = 0
        self._restarting: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The process id, None while there is no process."""
        return None if self._child is None else self._child.pid

    async def start(self) -> None:
        """Start the process and wait until it answers.

        Raises:
            RunError: It did not start.
        """
        receiver, sender = forks.pipe()
        child = forks.Fork(
            "gateway", SERVE[self._spec.gateway.engine], (self._spec, self._port, sender), self._log_file
        )
        child.start()
        self._child = child
        sender.close()
        await forks.receive(receiver, child, seconds=START_SECONDS)
        self._listen(receiver)
        asyncio.get_running_loop().add_reader(child.sentinel, self._died, child)

    def stop(self) -> None:
        """End the process."""
        if self._restarting is not None:
            self._restarting.cancel()
        child, self._child = self._child, None
        if child is not None:
            asyncio.get_running_loop().remove_reader(child.sentinel)
            self._listen(None)
            stop([child])
        self._reserved.close()

    def _listen(self, voice: Connection | None) -> None:
        """Pass on what the process says from now on; None: no more."""
        loop, old, self._voice = asyncio.get_running_loop(), self._voice, voice
        if old is not None:
            loop.remove_reader(old.fileno())
            old.close()
        if voice is not None:
            loop.add_reader(voice.fileno(), self._hear, voice)

    def _hear(self, voice: Connection) -> None:
        try:
            self._on_warning(voice.recv())
        except (EOFError, OSError):
            self._listen(None)

    def _died(self, child: forks.Fork) -> None:
        asyncio.get_running_loop().remove_reader(child.sentinel)
        child.join(1.0)
        self._restarting = asyncio.create_task(self._restart(child))

    async def _restart(self, child: forks.Fork) -> None:
        """Restart the gateway after `child` has ended. Nobody awaits this, so every error goes to `on_failure`."""
        try:
            with boundary(RunError, f"the gateway ended and could not be started again (see {self._log_file})"):
                if child.exit_code == thin.STORE_AWAY:
                    raise RunError(f"the gateway gave up: {child.last_words(1)} (see {self._log_file})")
                self._restarts += 1
                ending = child.ending() if child.killed() else f"{child.ending()}: {child.last_words()}"
                if self._restarts > MAX_RESTARTS:
                    raise RunError(f"{ending}, after {MAX_RESTARTS} restarts (see {self._log_file})")
                self._on_warning(f"{ending}; restart {self._restarts} of {MAX_RESTARTS} (see {self._log_file})")
                await self.start()
        except RunError as error:
            self._on_failure(error)
