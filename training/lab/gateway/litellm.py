"""The gateway as Agent Lightning's LLMProxy, which uses LiteLLM: `gateway.engine=litellm`.

It is for users who want LiteLLM's logs and callbacks. It needs twenty times the processor time of
`training.lab.gateway.thin` (`benchmarks.rollouts.gateway`), and if it is killed, exchanges of its last 50 ms are lost.
"""

import asyncio
import json
import os
import re
import signal
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

import agentlightning as agl
from agentlightning.utils.server_launcher import PythonServerLauncherArgs

from chimera.config.sections.models import ModelConfig
from chimera.serving.client import Endpoint
from chimera.serving.door import Door, hosts_of
from training.lab.gateway.spec import START_SECONDS, GatewaySpec
from training.lab.runners.telemetry import use_plain_resources
from training.lab.store import KeyedStoreClient

_ADDRESS = re.compile(r" \(\S{1,99} at http\S{1,99}?/rollout/\S{1,200}\)")
_WRAPPED = re.compile(r"litellm\.\w{1,60}: ")


def model_list(models: Mapping[str, ModelConfig], endpoints: Mapping[str, Endpoint]) -> list[dict[str, Any]]:
    """LiteLLM's model list: each logical name with its server. It names the variables of keys, not the keys.

    Only our own servers are asked for token ids: other services refuse requests with unknown parameters.
    """
    entries: list[dict[str, Any]] = []
    for name, endpoint in endpoints.items():
        parameters: dict[str, Any] = {
            "model": f"hosted_vllm/{endpoint.model}",
            "api_base": endpoint.base_url,
            "api_key": f"os.environ/{_key_variable(name)}",
            "timeout": endpoint.timeout_s,
        }
        if models[name].kind != "endpoint":
            parameters["extra_body"] = {"return_token_ids": True}
        entries.append({"model_name": name, "litellm_params": parameters})
    return entries


def plain_error(text: str) -> str:
    """The server's error text, without the rollout's address and the text that LiteLLM 1.106 adds."""
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
    """The gateway process: serve until SIGTERM. It sends a message through `ready` once it answers."""
    from training.lab.gateway.telemetry import ExchangeTelemetry  # It loads LiteLLM, which only this process needs.

    use_plain_resources()
    _silence_banner()
    os.environ["LITELLM_MASTER_KEY"] = spec.key
    ExchangeTelemetry.store_key = spec.store_key
    for name, endpoint in spec.endpoints.items():
        os.environ[_key_variable(name)] = endpoint.api_key
    asyncio.run(_serve(spec, port, ready, ExchangeTelemetry))


def _silence_banner() -> None:
    """Keep LiteLLM's banner and request for feedback out of the log.

    Otherwise they would be the last lines of the log, which error messages show. LiteLLM 1.106 has a setting only for
    the request for feedback.
    """
    os.environ["LITELLM_DONT_SHOW_FEEDBACK_BOX"] = "true"
    vars(import_module("litellm.proxy.common_utils.banner"))["show_banner"] = lambda: None


def _key_variable(name: str) -> str:
    return f"CHIMERA_BACKEND_KEY_{name.upper()}"


async def _serve(spec: GatewaySpec, port: int, ready: Connection, telemetry: type[Any]) -> None:
    launcher = PythonServerLauncherArgs(
        port=port,
        host=spec.host,
        access_host=spec.host,
        launch_mode="asyncio",
        log_level=30,
        startup_timeout=START_SECONDS,
    )
    # LiteLLM does not require its key on all routes: documentation, metrics and health are open.
    import_module("litellm.proxy.proxy_server").app.add_middleware(Door, key=spec.key, hosts=hosts_of(spec.host))
    proxy = agl.LLMProxy(
        store=KeyedStoreClient(spec.store_url, spec.store_key),
        model_list=model_list(spec.models, spec.endpoints),  # pyright: ignore[reportArgumentType]  a private TypedDict
        # The society retries failed calls. A cool-down would refuse calls to a server that is up again.
        litellm_config={"router_settings": {"disable_cooldowns": True, "num_retries": 0}},
        callbacks=[telemetry],
        middlewares=["rollout_attempt"],
        launcher_args=launcher,
    )
    await proxy.start()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    ready.send("ready")
    await stop.wait()
    await proxy.stop()
