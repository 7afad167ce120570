"""Start and stop the model server: one child process serves every embedded and rubric model of a run.

The child listens on a loopback socket that its parent opened, so no other process can take the port in between. It gets
its configuration and key through stdin, so neither is in the process list or the environment. It ends when its parent
ends, for whatever reason.
"""

import json
import secrets as random_secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from chimera.config.models import ModelConfig, ServingConfig
from chimera.core.errors import ConfigError, ModelError, RunError
from chimera.core.ports import check_sockets, listen
from chimera.run.child_environment import child_environment
from chimera.run.children import Command, stop
from chimera.serving.client import Endpoint
from chimera.serving.embedded.checkpoint import locate

SERVER = "chimera.serving.embedded.__main__"
START_TIMEOUT_S = 300.0
SWAP_TIMEOUT_S = 300.0
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

    def __init__(self, endpoints: Mapping[str, Endpoint], server: "ServerProcess | None") -> None:
        self.endpoints = dict(endpoints)
        self._server = server

    def load_weights(self, key: str, folder: Path, *, version: str | None = None) -> str:
        """Serve the weights in `folder` as the logical model `key` from now on; returns their version.

        Returns when the last request on the old weights has finished.

        Raises:
            ModelError: the model is not embedded, or the folder does not fit it.
        """
        if self._server is None:
            raise ModelError(f"model {key!r} is not embedded, so its weights cannot be changed here")
        body = {"model": key, "folder": str(Path(folder).absolute())}
        answer = self._server.request("POST", "/admin/weights", body | ({"version": version} if version else {}))
        return answer["weights_version"]

    def add_candidate(self, key: str, folder: Path, version: str) -> str:
        """Serve the weights in `folder` in addition to those of `key`; returns their model name.

        The weights of `key` do not change. Call `remove_candidate` when the candidate is no longer needed.

        Raises:
            ModelError: the model is not embedded, or the folder does not fit it.
        """
        if self._server is None:
            raise ModelError(f"model {key!r} is not embedded, so no other weights can be served beside it")
        body = {"model": key, "folder": str(Path(folder).absolute()), "version": version}
        return self._server.request("POST", "/admin/candidates", body)["model"]

    def remove_candidate(self, name: str) -> None:
        """Free a candidate's weights after its last running request.

        Raises:
            ModelError: there is no such candidate, or the server has ended.
        """
        if self._server is not None:
            self._server.request("DELETE", "/admin/candidates", {"model": name})

    def versions(self) -> dict[str, str]:
        """The version of the weights behind each embedded or rubric model, by logical name."""
        return {} if self._server is None else self._server.request("GET", "/health")["models"]

    def check(self) -> None:
        """Raise if the server process has ended; without a server process, do nothing.

        Raises:
            RunError: it has ended; with its last log lines.
        """
        if self._server is not None:
            self._server.check()

    @property
    def pid(self) -> int | None:
        """The server's process id; None if no model needs a server."""
        return None if self._server is None else self._server.pid


def check_models(models: Mapping[str, ModelConfig], secrets: Mapping[str, str]) -> None:
    """Check, before anything is started, what `serve` would refuse. Downloads hub models.

    Raises:
        ConfigError: an endpoint's key is not set, its provider's package is missing or refuses the settings, or a
            model's folder does not exist.
    """
    for key, model in models.items():
        if model.kind == "endpoint":
            endpoint = user_endpoint(f"models.{key}", model, secrets)
            if endpoint.provider is not None:
                from chimera.serving.providers import chat_model

                chat_model(endpoint, f"models.{key}")
        elif model.kind == "embedded":
            locate(model.path)


@contextmanager
def serve(
    models: Mapping[str, ModelConfig], serving: ServingConfig, secrets: Mapping[str, str], *, log_file: Path
) -> Iterator[ModelServers]:
    """Serve all slots for the duration of a `with` block.

    Args:
        models: settings of each logical model.
        serving: settings of the embedded server.
        secrets: values of the variables that `api_key_env` names.
        log_file: the server process appends its output here.

    Raises:
        ConfigError: an endpoint's key is not set, or a model's folder cannot be used.
        ModelError: the server process did not start; the message ends with its last log lines.
    """
    endpoints = {
        key: user_endpoint(f"models.{key}", one, secrets) for key, one in models.items() if one.kind == "endpoint"
    }
    own = {key: one for key, one in models.items() if one.kind != "endpoint"}
    if not own:
        yield ModelServers(endpoints, None)
        return
    for one in own.values():
        if one.kind == "embedded":
            locate(one.path)  # Download here, so that it does not count against the server's time to start.
    server = ServerProcess(own, serving, log_file)
    try:
        server.wait_until_ready()
        for key, one in own.items():
            endpoints[key] = _endpoint(f"{server.url}/v1", key, server.api_key, one)
        yield ModelServers({key: endpoints[key] for key in models}, server)
    finally:
        server.stop()


class ServerProcess:
    """The child process and its key."""

    def __init__(self, models: Mapping[str, ModelConfig], serving: ServingConfig, log_file: Path) -> None:
        self.api_key = random_secrets.token_urlsafe(24)
        self._headers = {"Authorization": f"Bearer {self.api_key}"}
        environment = {**child_environment(), **CHILD_ENVIRONMENT, "OMP_NUM_THREADS": str(serving.threads)}
        with listen(backlog=512) as listener:
            self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            descriptor = listener.fileno()
            self._child = Command(
                "the model server", SERVER, ["--fd", str(descriptor)], log_file, environment, pass_fds=[descriptor]
            )
        self.pid = self._child.pid
        settings = {
            "api_key": self.api_key,
            "models": {key: model.model_dump(mode="json") for key, model in models.items()},
            "serving": serving.model_dump(mode="json"),
        }
        self._child.tell(json.dumps(settings))

    def wait_until_ready(self) -> None:
        """Wait until the server answers.

        Raises:
            ConfigError: a model's folder cannot be used.
            ModelError: the server ended, or did not answer in time; with its last log lines.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
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
        raise ModelError(f"the model server did not answer within {START_TIMEOUT_S:g} s. {self._log_tail()}")

    def check(self) -> None:
        """Raise if the process has ended.

        Raises:
            RunError: it has ended; with its last log lines.
        """
        if not self._child.alive():
            raise RunError(f"{self._child.ending()} while the run needed it. {self._log_tail()}")

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Call one of the server's own routes.

        Raises:
            ModelError: the server refused the call or has ended.
        """
        try:
            response = httpx.request(
                method,
                self.url + path,
                json=body,
                headers=self._headers,
                timeout=SWAP_TIMEOUT_S,
                trust_env=False,
            )
        except httpx.HTTPError as error:
            raise ModelError(
                f"the model server (process {self.pid}) does not answer {path}: {type(error).__name__}. "
                f"{self._log_tail()}",
                retriable=self._child.alive(),
            ) from error
        if response.status_code != 200:
            raise ModelError(f"the model server refused {path}: {response.json()['error']['message']}")
        return response.json()

    def stop(self) -> None:
        """End the process: first SIGTERM, later SIGKILL."""
        stop([self._child])

    def _log_tail(self) -> str:
        lines = self._child.last_words(LOG_LINES, "\n")
        return f"Its last log lines ({self._child.log_file}):\n{lines}"


def user_endpoint(setting: str, model: ModelConfig, secrets: Mapping[str, str]) -> Endpoint:
    """The endpoint of a model of kind "endpoint", which `setting` (such as "models.junior") describes.

    Raises:
        ConfigError: its key is not set.
    """
    assert model.model is not None
    # Servers without keys (Ollama, a local vLLM) ignore the value, but OpenAI's client needs one.
    api_key = "none" if model.provider is None else ""
    if model.api_key_env is not None:
        api_key = secrets.get(model.api_key_env, "")
        if not api_key:
            raise ConfigError(
                f"{setting}.api_key_env names {model.api_key_env}, which is not set: put it in the environment or .env"
            )
    return _endpoint(model.base_url or "", model.model, api_key, model)


def _endpoint(base_url: str, name: str, api_key: str, model: ModelConfig) -> Endpoint:
    return Endpoint(
        base_url=base_url,
        model=name,
        api_key=api_key,
        structured=model.sends_schema,
        temperature=model.temperature,
        top_p=model.top_p,
        max_tokens=model.max_tokens,
        timeout_s=model.timeout_s,
        **model.request_fields,
        provider=model.provider,
        provider_options=model.provider_options,
    )
