"""How weights that were prepared for vLLM get into its servers: `models.X.transfer`.

By files, each server reads them from the folder, which it must see at the same path. By gloo or nccl the publisher
sends them (`chimera.serving.vllm.broadcast`), and servers need no folder.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from chimera.config.sections.models import TransferKind
from chimera.serving.vllm.replicas import Replica, ask_all

RPC = "/collective_rpc"
"""vLLM's route that calls a method of all workers of a server."""
LOAD_S = 900.0


class Transfer(Protocol):
    """Loads weights into paused servers."""

    @property
    def kind(self) -> TransferKind: ...

    async def check(self, replicas: Sequence[Replica]) -> None:
        """Raise if a server cannot take weights so.

        Raises:
            ConfigError: It was started without what it needs for that.
            ModelError: It gave no answer.
        """
        ...

    async def load(self, prepared: Path, replicas: Sequence[Replica]) -> None:
        """Load the weights in `prepared` into all of them.

        Raises:
            ModelError: One did not take them. Nobody knows what the servers have now.
        """
        ...


class FileTransfer:
    """Has each server read the folder."""

    @property
    def kind(self) -> TransferKind:
        return "files"

    async def check(self, replicas: Sequence[Replica]) -> None:
        """Nothing: vLLM can read files by itself."""

    async def load(self, prepared: Path, replicas: Sequence[Replica]) -> None:
        """Load the weights in `prepared` into all of them."""
        reload = {"method": "reload_weights", "kwargs": {"weights_path": str(prepared)}}
        await ask_all(replicas, RPC, reload, limit_s=LOAD_S)


FILES: Transfer = FileTransfer()
