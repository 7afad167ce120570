"""The specification of the gateway process."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from chimera.config.models import ModelConfig
from chimera.config.rollouts import GatewayConfig
from chimera.core.ports import LOOPBACK
from chimera.serving.client import Endpoint

START_SECONDS = 300.0
"""Limit of the start, which only a hanging gateway exceeds. Usual: a few seconds, a minute on a very busy machine."""


@dataclass(frozen=True, slots=True)
class GatewaySpec:
    """The store with its key, the models behind the gateway, and the key that callers need."""

    gateway: GatewayConfig
    store_url: str
    models: Mapping[str, ModelConfig]
    endpoints: Mapping[str, Endpoint]
    key: str = field(repr=False)
    store_key: str = field(repr=False)
    host: str = LOOPBACK
    """The address of this machine at which it listens."""
