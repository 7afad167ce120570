"""Runners that people start by hand: what they are told, as JSON, and the key that they show.

A visitor asks the store for its number and its specification, and then works like the run's own runners. Secrets are
not sent: a visitor's tools use the keys in its own environment. Store and gateway listen on 127.0.0.1 by default, so
that another machine reaches them through an SSH tunnel, which encrypts what is sent, as `cluster.tls` does without a
tunnel. Runners that Ray places (`training.cluster.ray`) are told the same.
"""

import hmac
import itertools
import json
import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agents.tools.own import TOOL_KEYS
from chimera.config.tree import Config
from chimera.core.cli import keep_direct
from chimera.core.errors import ConfigError, RunError, UnreachableError
from chimera.core.fingerprints import Fingerprint
from chimera.core.plain_json import parse_json
from chimera.core.ports import LOOPBACK
from chimera.core.secrets import load_secrets, register_secret
from chimera.data.tasks import Document
from chimera.serving.tls import client_context
from training.lab.runners.runner import Doors, RunnerSpec, worker_name

if TYPE_CHECKING:
    from training.lab.store import LabStore

ROUTE = "/v1/chimera/runners"
FIRST_NUMBER = 1_000_000
"""Number of the first visitor. The run's own runners count from 0, and each number is used once."""
SHORTEST_KEY = 16


def make_key(file: Path) -> None:
    """Write a fresh key that only this user can read, if there is no file.

    Raises:
        ConfigError: The file cannot be made.
    """
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    except OSError as error:
        raise ConfigError(f"cluster.key_file={file} cannot be made ({error.strerror}): name another file") from error
    with os.fdopen(descriptor, "w", encoding="utf-8") as made:
        made.write(secrets.token_urlsafe(32) + "\n")


def keys_of(file: Path) -> tuple[str, str]:
    """The store's and the gateway's key, which follow from the key in a file.

    Raises:
        ConfigError: The file cannot be read, other users can read it, or it holds no key.
    """
    try:
        mode, secret = file.stat().st_mode, file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the key file {file} cannot be read ({error}): copy it from the run's machine") from error
    if mode & 0o077:
        raise ConfigError(f"other users can read the key file {file}: run chmod 600 {file}")
    if len(secret) < SHORTEST_KEY:
        raise ConfigError(f"the key file {file} holds fewer than {SHORTEST_KEY} characters: remove it to get a new key")
    register_secret("cluster key", secret)
    store, gateway = (hmac.new(secret.encode(), one.encode(), "sha256").hexdigest() for one in ("store", "gateway"))
    return store, f"sk-{gateway}"


def check_port(port: int, setting: str, host: str = LOOPBACK) -> int:
    """`port`, if nobody listens there; raises RunError if it is taken."""
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        raise RunError(
            f"{setting}={port} cannot be opened at {host} ({error.strerror}): set it to a free port"
        ) from error
    return port


def admit(store: "LabStore", spec: RunnerSpec) -> None:
    """Have the store give each visitor its number, employ it, and tell it what to do."""
    numbers = itertools.count(FIRST_NUMBER)
    told = plain_spec(spec)

    async def welcome() -> dict[str, Any]:
        number = next(numbers)
        store.employ(worker_name(number))
        return {"number": number, **told}

    assert store.app is not None
    store.app.post(ROUTE)(welcome)


def plain_spec(spec: RunnerSpec) -> dict[str, Any]:
    """What a visitor is told, as JSON: no keys, and no phases, of which runners know nothing."""
    without = {"pipeline": True, "cluster": True, "runs_dir": True, "rollouts": {"on"}}
    config = spec.config.model_dump(mode="json", exclude=without)
    return {
        "gateway": spec.doors.gateway_url,
        "config": config,
        "documents": [[one.id, one.title, one.text] for one in spec.documents],
        "conclusions": {
            task: [one.salt, one.length, sorted(digest.hex() for digest in one.digests)]
            for task, one in spec.conclusions.items()
        },
    }


def read_spec(plain: Mapping[str, Any], doors: Doors, secrets: Mapping[str, str]) -> RunnerSpec:
    """The inverse of `plain_spec`.

    Raises:
        ValueError: It is no specification, or of another version of Chimera.
    """
    try:
        config = Config.model_validate_json(json.dumps({**plain["config"], "pipeline": {}}))
        documents = tuple(Document(*map(str, one)) for one in plain["documents"])
        conclusions = {
            str(task): Fingerprint(str(salt), int(length), frozenset(map(bytes.fromhex, digests)))
            for task, (salt, length, digests) in plain["conclusions"].items()
        }
    except (KeyError, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    return RunnerSpec(doors, config, documents, conclusions, dict(secrets))


def spec_here(told: Mapping[str, Any], doors: Doors) -> RunnerSpec:
    """What a run told, with the keys of tools in this machine's environment; its calls avoid proxies from now on.

    Raises:
        RunError: The run is of another version of Chimera.
    """
    keep_direct(urlsplit(doors.store_url).hostname or "", urlsplit(doors.gateway_url).hostname or "")
    try:
        spec = read_spec(told, doors, {})
    except ValueError as error:
        raise RunError(
            f"the run at {doors.store_url} says what this version of Chimera cannot read ({error}): use the run's "
            "version"
        ) from error
    names = (*TOOL_KEYS, *spec.config.tools.secret_names())
    return replace(spec, secrets={name: value for name, value in load_secrets(names).items() if name in names})


def visit(store_url: str, key_file: Path, authority: str | None = None) -> tuple[Mapping[str, Any], str, str]:
    """Ask a run's store for work: what it tells, and the keys of store and gateway.

    Args:
        authority: File of the authority that must have signed the store's certificate; None: one of the system's.

    Raises:
        ConfigError: The key or the authority cannot be read.
        UnreachableError: No store answers.
        RunError: The store refuses, or is none.
    """
    import httpx

    store_key, gateway_key = keys_of(key_file)
    tls = client_context(authority, "--authority") if store_url.startswith("https:") else None
    try:
        answer = httpx.post(
            f"{store_url}{ROUTE}",
            headers={"authorization": f"Bearer {store_key}"},
            timeout=60,
            trust_env=False,
            verify=tls or True,
        )
    except httpx.HTTPError as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise UnreachableError(
                f"the certificate of {store_url} is not trusted ({error}): copy the run's cluster.tls.authority and "
                "name it with --authority FILE"
            ) from error
        raise UnreachableError(
            f"no run answers at {store_url} ({type(error).__name__}: {error}): is it running with cluster.key_file, "
            "does it speak https (cluster.tls), and is the tunnel open?"
        ) from error
    if answer.status_code == 401:
        raise RunError(f"the run at {store_url} does not know the key in {key_file}: copy its cluster.key_file")
    try:
        told = parse_json(answer.content)
        if answer.status_code != 200 or not isinstance(told["number"], int):
            raise ValueError(f"status {answer.status_code}")
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"what answers at {store_url} is no store that takes such runners ({error})") from error
    return told, store_key, gateway_key
