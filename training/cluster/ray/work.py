"""What an actor does on its node: it is a rank or a runner, in words of JSON. Ray sends this class by its name.

A node needs this version of Chimera in the Python that its Ray runs in. Ranks also need the run's folder, which must
lie on a file system that all nodes share.
"""

import os
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chimera.config.sections.cluster import is_loopback
from chimera.core.errors import ChimeraError, RunError


class NodeWork:
    """One actor."""

    def where(self) -> tuple[int, str]:
        """Process id, and the node's address."""
        import ray

        return os.getpid(), ray.util.get_node_ip_address()

    def work(self, kind: str, given: Mapping[str, Any], shared: str | None) -> str:
        """Be a rank or a runner until that is over; returns why it is, in a sentence."""
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        os.environ["HF_HUB_OFFLINE"] = "1"
        log = Path(given["log"])
        if log.parent.is_dir():
            _write_to(log)
        try:
            _be_rank(**given)
        except ChimeraError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001  whatever it is, it ends this actor, and its text is the reason
            traceback.print_exc()
            return f"{type(error).__name__}: {error}".splitlines()[0]
        return "it was told to end"


def _be_rank(environment: Mapping[str, str], address: str, key: str, log: str) -> None:
    """Be one of a team's ranks.

    Raises:
        RunError: This node does not see the run's folder.
    """
    import ray

    node, folder = ray.util.get_node_ip_address(), Path(log).parent
    if not folder.is_dir():
        raise RunError(f"node {node} does not see {folder}: runs_dir must be on a file system that all nodes share")
    os.environ.update(environment)
    if interface := _interface(node):
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, interface)

    from training.cluster.rank import run_rank

    run_rank(address, key)


def _interface(address: str) -> str | None:
    """The name of the network interface with this address, so that ranks do not listen on every one."""
    import psutil

    from training.engines.verl_runtime import loopback

    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address == address for one in addresses):
            return name
    return loopback() if is_loopback(address) else None  # Such as 127.0.0.2.


def _write_to(log: Path) -> None:
    """Append what this process prints to a file."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
