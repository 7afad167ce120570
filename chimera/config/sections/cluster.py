"""Work on other machines."""

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from chimera.config.loader import ConfigSection

PLACING: tuple[str, ...] = ("token_file", "cpus_per_rank", "gpus_per_rank", "cpus_per_runner")


def is_loopback(host: str) -> bool:
    """True if only this machine can reach `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class TlsConfig(ConfigSection):
    """Files in PEM with which store and gateway speak HTTPS; without a certificate they speak HTTP."""

    certificate: Path | None = Field(
        default=None,
        description="certificate for cluster.host that store and gateway show, with those of authorities between; "
        "null: they speak plain HTTP",
    )
    key: Path | None = Field(default=None, description="the certificate's private key, without a password")
    authority: Path | None = Field(
        default=None,
        description="certificate of the authority that signed it, which runners and gateway trust alone; Ray's runners "
        "read it at the same path; null: the authorities that each system trusts",
    )

    @property
    def on(self) -> bool:
        """True if store and gateway speak HTTPS."""
        return self.certificate is not None

    @property
    def scheme(self) -> str:
        return "https" if self.on else "http"

    @property
    def authority_path(self) -> str | None:
        """The absolute path of `authority`, for other processes."""
        return None if self.authority is None else str(self.authority.absolute())

    @model_validator(mode="after")
    def _both(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            given, missing = ("certificate", "key") if self.key is None else ("key", "certificate")
            raise ValueError(f"tls.{given} is set without tls.{missing}: set cluster.tls.{missing}=FILE too")
        return self

    def unused(self) -> Mapping[str, str]:
        return {} if self.on else {"authority": "cluster.tls.certificate is null"}


class ClusterConfig(ConfigSection):
    """A Ray cluster for ranks and runners, and runners that people start by hand (python -m chimera.runner)."""

    address: str | None = Field(
        default=None,
        pattern=r"^(auto|[A-Za-z0-9._-]+:\d{1,5})$",
        description="Ray cluster that the ranks of `ppo` are placed on, and the runners with rollouts.on=cluster: "
        "HOST:PORT of its head, or auto for the one that this machine is a node of; null: this machine only, and Ray "
        "is not imported",
    )
    token_file: Path | None = Field(
        default=None,
        description="file with the token of that cluster (RAY_AUTH_MODE=token), mode 600; null: it asks for none",
    )
    cpus_per_rank: float = Field(default=1.0, gt=0, le=1024, description="CPUs that Ray reserves for each rank")
    gpus_per_rank: float = Field(default=0.0, ge=0, le=1024, description="GPUs that Ray reserves for each rank")
    cpus_per_runner: float = Field(
        default=0.1, ge=0, le=1024, description="CPUs that Ray reserves for each runner, which mostly waits for models"
    )
    host: str = Field(
        default="127.0.0.1",
        pattern=r"^[A-Za-z0-9._-]+$",
        description="address of this machine at which ranks and runners find the run: store, gateway and the meeting "
        "point of ranks listen there; another than this machine's own 127.* needs key_file",
    )
    key_file: Path | None = Field(
        default=None,
        description="file with the key that runners show which people start, made with mode 600 if there is none; "
        "null: only the runners that the run starts itself",
    )
    store_port: int = Field(default=4747, ge=1, le=65_535, description="port of the rollout store")
    gateway_port: int = Field(default=4748, ge=1, le=65_535, description="port of the gateway")

    tls: TlsConfig = TlsConfig()

    @model_validator(mode="after")
    def _who_may_come_in(self) -> Self:
        if self.host in ("0.0.0.0", "::"):
            raise ValueError(f"cluster.host={self.host} is no address that others can be told: name this machine's own")
        if self.key_file is None and not is_loopback(self.host):
            raise ValueError(f"cluster.host={self.host} can be reached from outside: set cluster.key_file=FILE too")
        return self

    store: str | None = Field(
        default=None,
        pattern=r"^mongodb(\+srv)?://[^@]+$",
        description="mongodb://HOST:PORT/?replicaSet=NAME: the replica set that holds queued rollouts and spans, "
        "without a password (MongoDB's x.509 certificates work); needs pymongo; null: the main process's memory",
    )

    def unused(self) -> Mapping[str, str]:
        """What is for Ray without Ray; the ports, which are free ones while nobody needs to know them."""
        found: dict[str, str] = {}
        if self.address is None:
            found |= dict.fromkeys(PLACING, "address is null, so nothing is placed by Ray")
        if self.key_file is None:
            found |= dict.fromkeys(("store_port", "gateway_port"), "key_file is null")
        return found
