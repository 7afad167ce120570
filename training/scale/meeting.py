"""Where the ranks of an update meet: a store of torch's that the main process holds, like those of torchrun."""

from typing import Any

from chimera.core.machine import LOOPBACK, listen


class Meeting:
    """A store that listens at `host`, as long as it is not closed.

    Raises:
        RunError: No port can be opened.
    """

    def __init__(self, ranks: int, host: str = LOOPBACK) -> None:
        from torch._C._distributed_c10d import TCPStore

        listener = listen(host=host)
        self._ranks = ranks
        self._host, self._port = listener.getsockname()
        # Without a socket of ours the store would listen on all interfaces.
        self._store: Any = TCPStore(
            self._host, self._port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )

    def place(self, rank: int, local_rank: int, local_ranks: int) -> dict[str, str]:
        """The variables that give a rank its place, as torchrun sets them."""
        return {
            "RANK": str(rank),
            "LOCAL_RANK": str(local_rank),
            "WORLD_SIZE": str(self._ranks),
            "LOCAL_WORLD_SIZE": str(local_ranks),
            "MASTER_ADDR": self._host,
            "MASTER_PORT": str(self._port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }

    def close(self) -> None:
        """Close the port."""
        self._store = None
