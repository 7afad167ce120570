"""Start and stop the model servers: one child process serves every embedded and rubric model of a run, and one more
stands before the vLLM servers, if there are any (`chimera.serving.vllm`).

A child listens on a socket that its parent opened, so no other process can take the port in between. It gets
its configuration and key through stdin, so neither is in the process list or the environment. It ends when its parent
ends, for whatever reason.
"""

import json
import os
import secrets as random_secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import httpx

from chimera.config.sections.models import ModelConfig, ServingConfig
from chimera.core.errors import ConfigError, ModelError, RunError
from chimera.core.machine import LOOPBACK, check_sockets, listen
from chimera.processes.child_environment import child_environment
from chimera.processes.children import STOP_SECONDS, Command, stop
from chimera.serving.client import NO_KEY, Endpoint
from chimera.serving.embedded.checkpoint import check_checkpoint, check_trainable, locate
from chimera.serving.embedded.service import CANDIDATE
from chimera.serving.sharing import share

SERVER = "chimera.serving.embedded.__main__"
VLLM_FRONT = "chimera.serving.vllm.__main__"
START_TIMEOUT_S = 300.0
SWAP_TIMEOUT_S = 1800.0
"""Seconds for a request to a server's own routes. New weights wait for the answers that are under way."""
VLLM_STOP_S = 10.0
"""Seconds in which vLLM servers may end by themselves; they leave shared memory behind when they are killed."""
LOG_LINES = 15

CHILD_ENVIRONMENT = {
    # Spinning OpenMP threads make a decode step 40 times slower while another process uses the core.
    "OMP_WAIT_POLICY": "PASSIVE",
    "TOKENIZERS_PARALLELISM": "false",
    # All files of a hub model are on this machine by now, and the child has no token to download more.
    "HF_HUB_OFFLINE": "1",
}


class ModelServers:
    """The endpoint of each logical model, and its weights. Made by `serve`."""

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        servers: "Mapping[str, ServerProcess]",
        sleeper: "ServerProcess | None" = None,
    ) -> None:
        """Call slots at `endpoints`; `servers` has the server of each slot that the run serves itself.

        Args:
            sleeper: The front of vLLM servers, if some of them sleep while the run computes an update.
        """
        self.endpoints = dict(endpoints)
        self._servers = dict(servers)
        self._sleeper = sleeper

    def load_weights(self, key: str, folder: Path, *, version: str | None = None) -> str:
        """Serve the weights in `folder` as the logical model `key` from now on; returns their version.

        Returns when the last request on the old weights has finished; for a LoRA adapter on vLLM, when new requests
        get it. Each answer names the version that gave it.

        Raises:
            ModelError: the weights are not served by the run, or the folder does not fit the model.
        """
        if key not in self._servers:
            raise ModelError(f"model {key!r} is not embedded and not on vLLM, so its weights cannot be changed here")
        body = {"model": key, "folder": str(Path(folder).absolute())}
        answer = self._servers[key].request("POST", "/admin/weights", body | ({"version": version} if version else {}))
        return answer["weights_version"]

    def add_candidate(self, key: str, folder: Path, version: str) -> str:
        """Serve the weights in `folder` in addition to those of `key`; returns their model name.

        The weights of `key` do not change. Call `remove_candidate` when the candidate is no longer needed.

        Raises:
            ModelError: the model is not embedded, or the folder does not fit it.
        """
        if key not in self._servers:
            raise ModelError(f"model {key!r} is not embedded, so no other weights can be served beside it")
        body = {"model": key, "folder": str(Path(folder).absolute()), "version": version}
        return self._servers[key].request("POST", "/admin/candidates", body)["model"]

    def remove_candidate(self, name: str) -> None:
        """Free a candidate's weights after its last running request.

        Raises:
            ModelError: there is no such candidate, or the server has ended.
        """
        server = self._servers.get(name.partition(CANDIDATE)[0])
        if server is not None:
            server.request("DELETE", "/admin/candidates", {"model": name})

    def sleep(self) -> None:
        """Have vLLM servers of `models.X.sleep` give their GPUs' memory away, when the calls under way have ended.

        Calls wait until `wake`, which is to be called also when this fails.

        Raises:
            ModelError: a server did not go to sleep.
        """
        if self._sleeper is not None:
            self._sleeper.request("POST", "/admin/sleep")

    def wake(self) -> None:
        """Have the servers that sleep answer again.

        Raises:
            ModelError: a server did not wake up.
        """
        if self._sleeper is not None:
            self._sleeper.request("POST", "/admin/wake")

    def versions(self) -> dict[str, str]:
        """The version of the weights behind each model that the run serves itself, by logical name."""
        by_key: dict[str, str] = {}
        for server in self._each():
            by_key |= server.request("GET", "/health")["models"]
        return {key: by_key[key] for key in self._servers}

    def check(self) -> None:
        """Raise if a server process has ended; without a server process, do nothing.

        Raises:
            RunError: one has ended; with its last log lines.
        """
        for server in self._each():
            server.check()

    @property
    def pid(self) -> int | None:
        """The first server's process id; None if no model needs a server."""
        return next((server.pid for server in self._each()), None)

    def _each(self) -> "list[ServerProcess]":
        return list(dict.fromkeys(self._servers.values()))


def check_models(
    models: Mapping[str, ModelConfig], secrets: Mapping[str, str], *, learning: Collection[str] = ()
) -> list[str]:
    """Check, before anything is started, what `serve` would refuse. Downloads hub models.

    Returns:
        Sentences for the user on how models are used.

    Raises:
        ConfigError: an endpoint's key is not set, its provider's package is missing or refuses the settings, a
            model's folder cannot be used, or vLLM servers cannot be shared as configured.
    """
    share({key: model for key, model in models.items() if model.kind == "vllm"}, learning)
    for key, model in models.items():
        if model.kind == "vllm":
            vllm_key(key, model, secrets)
            if model.python and not (os.access(model.python, os.X_OK) and Path(model.python).is_absolute()):
                raise ConfigError(
                    f"models.{key}.python={model.python} is no program: give the absolute path of the Python of an "
                    "environment that has vLLM"
                )
        if model.kind == "endpoint":
            endpoint = user_endpoint(f"models.{key}", model, secrets)
            if endpoint.provider is not None:
                from chimera.serving.providers import chat_model

                chat_model(endpoint, f"models.{key}")
    for path in {model.path for model in models.values() if model.kind == "vllm"}:
        check_trainable(locate(path))
    embedded = {(model.path, model.dtype): model for model in models.values() if model.kind == "embedded"}.values()
    sentences = (check_checkpoint(model.path, model.dtype) for model in embedded)
    return list(dict.fromkeys(chain.from_iterable(sentences)))


@contextmanager
def serve(
    models: Mapping[str, ModelConfig],
    serving: ServingConfig,
    secrets: Mapping[str, str],
    *,
    log_file: Path,
    learning: Collection[str] = (),
    on_warning: Callable[[str], None] | None = None,
    host: str = LOOPBACK,
) -> Iterator[ModelServers]:
    """Serve all slots for the duration of a `with` block.

    Args:
        secrets: values of the variables that `api_key_env` names.
        log_file: the server process appends its output here; logs of vLLM servers lie beside it.
        learning: the slots whose weights may change: each has vLLM servers of its own.
        on_warning: called, in a thread, with a sentence for the user when a vLLM server is started again; None: such
            sentences go to the log.
        host: the address of this machine at which the run's own servers listen.

    Raises:
        ConfigError: an endpoint's key is not set, or a model's folder cannot be used.
        ModelError: a server process did not start; the message ends with its last log lines.
    """
    endpoints = {
        key: user_endpoint(f"models.{key}", model, secrets) for key, model in models.items() if model.kind == "endpoint"
    }
    of_vllm = {key: model for key, model in models.items() if model.kind == "vllm"}
    embedded = {key: model for key, model in models.items() if model.kind not in ("endpoint", "vllm")}
    for model in (*embedded.values(), *of_vllm.values()):
        if model.has_weights:
            locate(model.path)  # Download here, so that it does not count against the server's time to start.
    servers: dict[str, ServerProcess] = {}
    with ExitStack() as stack:
        # vLLM takes longer to start, so it begins first.
        if of_vllm:
            front = ServerProcess(
                of_vllm,
                serving,
                log_file.with_name("vllm.log"),
                module=VLLM_FRONT,
                name="the front of the vLLM servers",
                further={
                    "learning": sorted(set(learning) & set(of_vllm)),
                    "keys": {key: vllm_key(key, model, secrets) for key, model in of_vllm.items()},
                },
                start_timeout_s=max(model.start_timeout_s for model in of_vllm.values()) + START_TIMEOUT_S,
                stop_s=VLLM_STOP_S,
                on_warning=on_warning,
                host=host,
            )
            stack.callback(front.stop)
            servers |= dict.fromkeys(of_vllm, front)
        if embedded:
            server = ServerProcess(embedded, serving, log_file, host=host)
            stack.callback(server.stop)
            servers |= dict.fromkeys(embedded, server)
        for server in dict.fromkeys(reversed(servers.values())):
            server.wait_until_ready()
        for key, server in servers.items():
            endpoints[key] = _endpoint(f"{server.url}/v1", key, server.api_key, models[key])
        yield ModelServers(
            {key: endpoints[key] for key in models},
            {key: servers[key] for key in models if key in servers},
            next((servers[key] for key, model in of_vllm.items() if model.sleep), None),
        )


def vllm_key(slot: str, model: ModelConfig, secrets: Mapping[str, str]) -> str:
    """The key of a slot's vLLM servers that run already; empty for those that the run starts itself.

    Raises:
        ConfigError: it is not set.
    """
    if model.python or model.api_key_env is None:
        return ""
    return _known_key(f"models.{slot}", model.api_key_env, secrets)


class ServerProcess:
    """A child process that serves models, and its key."""

    def __init__(
        self,
        models: Mapping[str, ModelConfig],
        serving: ServingConfig,
        log_file: Path,
        *,
        module: str = SERVER,
        name: str = "the model server",
        further: Mapping[str, Any] | None = None,
        start_timeout_s: float = START_TIMEOUT_S,
        stop_s: float = STOP_SECONDS,
        on_warning: Callable[[str], None] | None = None,
        host: str = LOOPBACK,
    ) -> None:
        self.name = name
        self._start_timeout_s, self._stop_s = start_timeout_s, stop_s
        self.api_key = random_secrets.token_urlsafe(24)
        self._headers = {"Authorization": f"Bearer {self.api_key}"}
        environment = {**child_environment(), **CHILD_ENVIRONMENT, "OMP_NUM_THREADS": str(serving.threads)}
        with listen(host=host, backlog=512) as listener:
            self.url = "http://{}:{}".format(*listener.getsockname())
            descriptor = listener.fileno()
            self._child = Command(
                name,
                module,
                ["--fd", str(descriptor)],
                log_file,
                environment,
                pass_fds=[descriptor],
                reports=on_warning is not None,
            )
        self.pid = self._child.pid
        if on_warning is not None:
            threading.Thread(target=self._pass_on, args=(on_warning,), name=f"warnings of {name}", daemon=True).start()
        settings = {
            "api_key": self.api_key,
            "models": {key: model.model_dump(mode="json") for key, model in models.items()},
            "serving": serving.model_dump(mode="json"),
            "log_file": str(log_file.absolute()),
            **(further or {}),
        }
        self._child.tell(json.dumps(settings))

    def wait_until_ready(self) -> None:
        """Wait until the server answers.

        Raises:
            ConfigError: a model's folder cannot be used.
            ModelError: the server ended, or did not answer in time; with its last log lines.
        """
        deadline = time.monotonic() + self._start_timeout_s
        while time.monotonic() < deadline:
            try:
                httpx.get(f"{self.url}/health", headers=self._headers, timeout=2.0, trust_env=False).raise_for_status()
                return
            except httpx.HTTPError as error:
                check_sockets(error)
                if self._child.exit_code == ConfigError.exit_code:
                    raise ConfigError(self._child.last_words(1)) from None
                if not self._child.alive():
                    raise ModelError(f"{self._child.ending()} while starting. {self._log_tail()}") from None
        raise ModelError(f"{self.name} did not answer within {self._start_timeout_s:g} s. {self._log_tail()}")

    def ended(self) -> str | None:
        """How the process has ended, in words; None while it runs."""
        return None if self._child.alive() else self._child.ending()

    def join(self, seconds: float) -> None:
        """Wait until the process has ended, at most `seconds` seconds."""
        self._child.join(seconds)

    def check(self) -> None:
        """Raise if the process has ended.

        Raises:
            RunError: it has ended; with its last log lines.
        """
        if not self._child.alive():
            raise RunError(f"{self._child.ending()} while the run needed it. {self._log_tail()}")

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Call one of the server's own routes; raises ModelError if the server refused the call or has ended."""
        response = self.send(method, path, body)
        if response.status_code != 200:
            raise ModelError(f"{self.name} refused {path}: {response.json()['error']['message']}")
        return response.json()

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> httpx.Response:
        """Call one of the server's own routes; returns what it answered, or raises ModelError if it has ended."""
        try:
            return httpx.request(
                method, self.url + path, json=body, headers=self._headers, timeout=SWAP_TIMEOUT_S, trust_env=False
            )
        except httpx.HTTPError as error:
            raise ModelError(
                f"{self.name} (process {self.pid}) does not answer {path}: {type(error).__name__}. {self._log_tail()}",
                retriable=self._child.alive(),
            ) from error

    def _pass_on(self, on_warning: Callable[[str], None]) -> None:
        """Call `on_warning` with each line of the process's stdout until it has ended."""
        while line := self._child.report():
            on_warning(line.decode().rstrip("\n"))

    def stop(self) -> None:
        """End the process: first SIGTERM, later SIGKILL."""
        stop([self._child], seconds=self._stop_s)

    def _log_tail(self) -> str:
        lines = self._child.last_words(LOG_LINES, "\n")
        return f"Its last log lines ({self._child.log_file}):\n{lines}"


def user_endpoint(setting: str, model: ModelConfig, secrets: Mapping[str, str]) -> Endpoint:
    """The endpoint of a model of kind "endpoint", which `setting` (such as "models.junior") describes.

    Raises:
        ConfigError: its key is not set.
    """
    assert model.model is not None
    # Servers without keys (Ollama, a local vLLM) ignore the value; a provider's package wants none.
    api_key = NO_KEY if model.provider is None else ""
    if model.api_key_env is not None:
        api_key = _known_key(setting, model.api_key_env, secrets)
    return _endpoint(model.base_url or "", model.model, api_key, model)


def _known_key(setting: str, variable: str, secrets: Mapping[str, str]) -> str:
    key = secrets.get(variable, "")
    if not key:
        raise ConfigError(
            f"{setting}.api_key_env names {variable}, which is not set: put it in the environment or .env"
        )
    return key


def _endpoint(base_url: str, name: str, api_key: str, model: ModelConfig) -> Endpoint:
    from chimera.config.sections.bundled import is_bundled

    return Endpoint(
        base_url=base_url,
        model=name,
        api_key=api_key,
        structured=model.sends_schema,
        temperature=model.temperature,
        max_tokens=model.max_tokens,
        timeout_s=model.call_limit_s,
        **model.request_fields,
        provider=model.provider,
        provider_options=model.provider_options,
        # The bundled model was trained with its schemas as they are, and ends its answers.
        bounded=model.kind == "embedded" and not is_bundled(model.path),
    )
