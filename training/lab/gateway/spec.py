"""The specification of the gateway process."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from chimera.config.roles import expand
from chimera.config.sections.cluster import TlsConfig
from chimera.config.sections.models import ModelConfig
from chimera.config.sections.rollouts import GatewayConfig
from chimera.config.tree import Config
from chimera.core.ports import LOOPBACK
from chimera.serving.client import Endpoint

START_SECONDS = 300.0
"""Limit of the start, which only a hanging gateway exceeds. Usual: a few seconds, a minute on a very busy machine."""


@dataclass(frozen=True, slots=True)
class GatewaySpec:
    """The store with its key, the models behind the gateway, and the key that callers need.

    `scored` are the models that are asked for the log-probabilities of tokens.
    """

    gateway: GatewayConfig
    store_url: str
    models: Mapping[str, ModelConfig]
    endpoints: Mapping[str, Endpoint]
    key: str = field(repr=False)
    store_key: str = field(repr=False)
    scored: frozenset[str] = frozenset()
    host: str = LOOPBACK
    """The address of this machine at which it listens."""
    tls: TlsConfig = field(default_factory=TlsConfig)


def scored_slots(config: Config) -> frozenset[str]:
    """The slots of roles that a phase trains which needs to know how likely each token was."""
    phases = ((name, one) for name, one in config.pipeline.items() if one.needs_log_probs())
    return frozenset(config.slot(role) for name, one in phases for role in expand(one.roles, f"pipeline.{name}.roles"))
