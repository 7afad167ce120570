"""The gateway: Agent Lightning's LLMProxy in its own process, in front of every model call of a run.

Runners call http://<gateway>/rollout/<id>/attempt/<id>/v1; the proxy attributes the call to that rollout, forwards it
to the server behind the logical model, and writes the exchange with its token ids into the store.
"""

import asyncio
import json
import os
import re
import secrets
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import agentlightning as agl
from agentlightning.utils.server_launcher import PythonServerLauncherArgs

from chimera.config import ModelsConfig
from chimera.errors import ChimeraError, RunError, boundary
from chimera.serving.client import Endpoint
from training import children
from training.telemetry import ExchangeTelemetry, use_plain_resources

_ADDRESS = re.compile(r" \(\S{1,99} at http\S{1,99}?/rollout/\S{1,200}\)")
_WRAPPED = re.compile(r"litellm\.\w{1,60}: ")

START_SECONDS = 300.0
"""Only a gateway that hangs takes so long to start; a few seconds are usual, a minute on a very busy machine."""
MAX_RESTARTS = 3


@dataclass(frozen=True, slots=True)
class GatewaySpec:
    """What the gateway process needs: the store, the models behind it, and the key that callers must show."""

    store_url: str
    models: ModelsConfig
    endpoints: Mapping[str, Endpoint]
    key: str = field(repr=False)


class Gateway:
    """The gateway process as the main process sees it; when it dies it comes back on the same address.

    Args:
        store_url: The store that exchanges are written to.
        models: The configured models.
        endpoints: The servers behind them.
        log_file: The process's output.
        on_restart: Called with how the gateway ended when it is started again.
        on_failure: Called with the error when the gateway cannot be kept up.
    """

    def __init__(
        self,
        store_url: str,
        models: ModelsConfig,
        endpoints: Mapping[str, Endpoint],
        log_file: Path,
        on_restart: Callable[[str], None],
        on_failure: Callable[[ChimeraError], None],
    ) -> None:
        self.key = f"sk-{secrets.token_hex(24)}"
        self._port = children.free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._spec = GatewaySpec(store_url, models, endpoints, self.key)
        self._log_file = log_file
        self._on_restart = on_restart
        self._on_failure = on_failure
        self._child: children.Child | None = None
        self._restarts = 0
        self._restarting: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The process id, None while there is no process."""
        return None if self._child is None else self._child.pid

    async def start(self) -> None:
        """Start the process and wait until it answers.

        Raises:
            RunError: It did not come up.
        """
        receiver, sender = children.pipe()
        child = children.Child("gateway", serve, (self._spec, self._port, sender), self._log_file)
        child.start()
        self._child = child
        sender.close()
        await children.receive(receiver, child, seconds=START_SECONDS)
        receiver.close()
        asyncio.get_running_loop().add_reader(child.sentinel, self._died, child)

    def stop(self) -> None:
        """End the process."""
        if self._restarting is not None:
            self._restarting.cancel()
        child, self._child = self._child, None
        if child is not None:
            asyncio.get_running_loop().remove_reader(child.sentinel)
            children.stop([child])

    def _died(self, child: children.Child) -> None:
        asyncio.get_running_loop().remove_reader(child.sentinel)
        child.join(1.0)
        self._restarting = asyncio.create_task(self._restart(child))

    async def _restart(self, child: children.Child) -> None:
        """Start the gateway again after `child` has ended; nobody awaits this, so whatever goes wrong is told."""
        try:
            with boundary(RunError, f"the gateway ended and could not be started again (see {self._log_file})"):
                self._restarts += 1
                ending = child.ending() if child.killed() else f"{child.ending()}: {child.last_words()}"
                if self._restarts > MAX_RESTARTS:
                    raise RunError(f"{ending}, after {MAX_RESTARTS} restarts (see {self._log_file})")
                self._on_restart(f"{ending}; restart {self._restarts} of {MAX_RESTARTS} (see {self._log_file})")
                await self.start()
        except RunError as error:
            self._on_failure(error)


def model_list(models: ModelsConfig, endpoints: Mapping[str, Endpoint]) -> list[dict[str, Any]]:
    """LiteLLM's model list: the logical name in front, the server behind it; keys are named, not written.

    Token ids are asked of our own servers only: other services refuse requests with parameters they do not know.
    """
    entries: list[dict[str, Any]] = []
    for name, endpoint in endpoints.items():
        parameters: dict[str, Any] = {
            "model": f"hosted_vllm/{endpoint.model}",
            "api_base": endpoint.base_url,
            "api_key": f"os.environ/{_key_variable(name)}",
            "timeout": endpoint.timeout_s,
        }
        if getattr(models, name).kind != "endpoint":
            parameters["extra_body"] = {"return_token_ids": True}
        entries.append({"model_name": name, "litellm_params": parameters})
    return entries


def plain_error(text: str) -> str:
    """What the server behind the gateway said, without the rollout's address and what LiteLLM 1.106 puts around it."""
    text = _ADDRESS.sub("", text)
    wrapped = _WRAPPED.search(text)
    _, exception, said = text[wrapped.end() :].partition("Exception - ") if wrapped else ("", "", "")
    if wrapped is None or not exception:
        return text
    said = said.partition(" LiteLLM: ")[0].partition(" Traceback (most recent call last)")[0]
    with suppress(ValueError, KeyError, TypeError):
        said = json.loads(said)["error"]["message"]
    return f"{text[: wrapped.start()]}{said}"


def serve(spec: GatewaySpec, port: int, ready: Connection) -> None:
    """The gateway process: serve until SIGTERM. Sends something through `ready` once it answers."""
    use_plain_resources()
    _silence_banner()
    os.environ["LITELLM_MASTER_KEY"] = spec.key
    for name, endpoint in spec.endpoints.items():
        os.environ[_key_variable(name)] = endpoint.api_key
    asyncio.run(_serve(spec, port, ready))


def _silence_banner() -> None:
    """Keep LiteLLM's banner and request for feedback out of the log; LiteLLM 1.106 has a setting for the latter only.

    An error message ends with the log's last lines, which these would be.
    """
    os.environ["LITELLM_DONT_SHOW_FEEDBACK_BOX"] = "true"
    vars(import_module("litellm.proxy.common_utils.banner"))["show_banner"] = lambda: None


def _key_variable(name: str) -> str:
    return f"CHIMERA_BACKEND_KEY_{name.upper()}"


async def _serve(spec: GatewaySpec, port: int, ready: Connection) -> None:
    launcher = PythonServerLauncherArgs(
        port=port,
        host="127.0.0.1",
        access_host="127.0.0.1",
        launch_mode="asyncio",
        # /health wants the key and calls every model.
        healthcheck_url="/health/liveliness",
        log_level=30,
        startup_timeout=START_SECONDS,
    )
    proxy = agl.LLMProxy(
        store=agl.LightningStoreClient(spec.store_url),
        model_list=model_list(spec.models, spec.endpoints),  # pyright: ignore[reportArgumentType]  a private TypedDict
        # A failed call is the society's to retry; a cool-down would answer for a server that is up again.
        litellm_config={"router_settings": {"disable_cooldowns": True, "num_retries": 0}},
        callbacks=[ExchangeTelemetry],
        middlewares=["rollout_attempt"],
        launcher_args=launcher,
    )
    await proxy.start()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    ready.send("ready")
    await stop.wait()
    await proxy.stop()
