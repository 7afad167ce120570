"""Where processes that share an update meet, and the place of each: as torchrun has it."""

from typing import Any

from chimera.core.errors import RunError
from chimera.core.machine import LOOPBACK, listen


def place_of(
    rank: int, ranks: int, address: tuple[str, int], *, local_rank: int = 0, local_ranks: int = 1
) -> dict[str, str]:
    """The variables that give a rank its place, as torchrun sets them.

    Args:
        address: Host and port where the ranks meet.
    """
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(local_ranks),
        "MASTER_ADDR": address[0],
        "MASTER_PORT": str(address[1]),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


def loopback() -> str:
    """Name of the interface with 127.0.0.1. Without it gloo listens on the host's public address."""
    import psutil

    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address == "127.0.0.1" for entry in addresses):
            return name
    raise RunError("no network interface has the address 127.0.0.1: bring up the loopback interface")


class Meeting:
    """A store of torch's, held by this process, that listens at `host` as long as it is not closed.

    Raises:
        RunError: No port can be opened.
    """

    def __init__(self, ranks: int, host: str = LOOPBACK) -> None:
        from torch._C._distributed_c10d import TCPStore

        listener = listen(host=host)
        self._ranks = ranks
        self._address: tuple[str, int] = listener.getsockname()
        # Without a socket of ours the store would listen on all interfaces.
        self._store: Any = TCPStore(
            *self._address, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )

    def place(self, rank: int, local_rank: int, local_ranks: int) -> dict[str, str]:
        return place_of(rank, self._ranks, self._address, local_rank=local_rank, local_ranks=local_ranks)

    def close(self) -> None:
        """Close the port."""
        self._store = None
