"""Which slots share vLLM servers: those with equal settings, unless one of them learns."""

from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from chimera.config.sections.models import OF_VLLM, ModelConfig
from chimera.core.cli import LOOPBACK
from chimera.core.errors import ConfigError

OF_SERVER = ("path", "dtype", "api_key_env", *OF_VLLM)
"""Settings that belong to a server; the others, such as temperature, travel with each call."""


def share(models: Mapping[str, ModelConfig], learning: Collection[str]) -> list[tuple[str, ...]]:
    """The slots of each set of servers, in the order of `models`.

    Args:
        models: Slots of kind vllm.
        learning: The slots whose weights may change.

    Raises:
        ConfigError: A slot that learns would share running servers with another, or its servers are elsewhere.
    """
    groups: dict[str, list[str]] = {}
    for slot, model in models.items():
        if slot in learning:
            _check_place(slot, model)
        key = slot if slot in learning else model.model_dump_json(include=set(OF_SERVER))
        groups.setdefault(key, []).append(slot)
    for slot in learning:
        for other, model in models.items():
            if slot in models and other != slot and (same := set(models[slot].urls) & set(model.urls)):
                raise ConfigError(
                    f"models.{slot}.urls and models.{other}.urls both name {min(same)}: {slot} learns, and its new "
                    f"weights would answer for {other} too; give {slot} servers of its own"
                )
    return [tuple(slots) for slots in groups.values()]


def _check_place(slot: str, model: ModelConfig) -> None:
    for url in model.urls:
        if urlsplit(url).hostname not in LOOPBACK:
            raise ConfigError(
                f"models.{slot}.urls names {url}, and {slot} learns: vLLM guards only /v1 by a key, so the routes that "
                "take new weights must not be open to a network; bind the server to 127.0.0.1 and reach it through an "
                f"SSH tunnel, or set models.{slot}.python"
            )
