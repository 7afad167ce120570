"""Work on other machines."""

import ipaddress
from typing import Annotated, Self

from pydantic import Field, model_validator

from chimera.config.loader import AnyPath, ConfigSection, When

ON_RAY = When.set("address")


def is_loopback(host: str) -> bool:
    """True if only this machine can reach `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class ClusterConfig(ConfigSection):
    """A Ray cluster, for the ranks of an update and for rollouts."""

    address: str | None = Field(
        default=None,
        pattern=r"^(auto|[A-Za-z0-9._-]+:\d{1,5})$",
        description="Ray cluster that the ranks of `ppo` are placed on, and the actors of rollouts.on=ray: HOST:PORT "
        "of its head, or auto for the one that this machine is a node of; null: this machine only",
    )
    token_file: Annotated[AnyPath | None, ON_RAY] = Field(
        default=None,
        description="file with the token of that cluster (RAY_AUTH_MODE=token), mode 600; null: it asks for none",
    )
    cpus_per_rank: Annotated[float, ON_RAY] = Field(
        default=1.0, gt=0, le=1024, description="CPUs that Ray reserves for each rank"
    )
    gpus_per_rank: Annotated[float, ON_RAY] = Field(
        default=0.0, ge=0, le=1024, description="GPUs that Ray reserves for each rank"
    )
    cpus_per_actor: Annotated[float, ON_RAY] = Field(
        default=0.1,
        ge=0,
        le=1024,
        description="CPUs that Ray reserves for each actor of rollouts.on=ray, which mostly waits for models",
    )
    host: Annotated[str, ON_RAY] = Field(
        default="127.0.0.1",
        pattern=r"^[A-Za-z0-9._-]+$",
        description="address of this machine at which other nodes find its model servers, which ask for a key",
    )

    @model_validator(mode="after")
    def _who_may_come_in(self) -> Self:
        if self.host in ("0.0.0.0", "::"):
            raise ValueError(f"cluster.host={self.host} is no address that others can be told: name this machine's own")
        return self
