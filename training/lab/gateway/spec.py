"""What the gateway process is told."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from chimera.config.tree import GatewayConfig, ModelConfig
from chimera.serving.client import Endpoint

START_SECONDS = 300.0
"""Only a gateway that hangs takes so long to start; a few seconds are usual, a minute on a very busy machine."""


@dataclass(frozen=True, slots=True)
class GatewaySpec:
    """The store with its key, the models behind the gateway, and the key that callers must show."""

    gateway: GatewayConfig
    store_url: str
    models: Mapping[str, ModelConfig]
    endpoints: Mapping[str, Endpoint]
    key: str = field(repr=False)
    store_key: str = field(repr=False)
