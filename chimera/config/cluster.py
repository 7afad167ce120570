"""Work on other machines."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from chimera.config.loader import ConfigSection


class ClusterConfig(ConfigSection):
    """Runners that people start by hand (python -m chimera.runner), also on other machines, through an SSH tunnel."""

    key_file: Path | None = Field(
        default=None,
        description="file with the key that such runners show, made with mode 600 if there is none; null: only the "
        "runners that the run starts itself",
    )
    store_port: int = Field(default=4747, ge=1, le=65_535, description="port of 127.0.0.1 of the rollout store")
    gateway_port: int = Field(default=4748, ge=1, le=65_535, description="port of 127.0.0.1 of the gateway")

    store: str | None = Field(
        default=None,
        pattern=r"^mongodb(\+srv)?://[^@]+$",
        description="mongodb://HOST:PORT/?replicaSet=NAME: the replica set that holds queued rollouts and spans, "
        "without a password (MongoDB's x.509 certificates work); needs pymongo; null: the main process's memory",
    )

    def unused(self) -> Mapping[str, str]:
        """The ports, which are free ones while nobody needs to know them."""
        return {} if self.key_file else dict.fromkeys(("store_port", "gateway_port"), "key_file is null")
