"""Takes new weights into vLLM's workers, tensor by tensor, from the process that publishes them.

A vLLM server loads this file in its own environment, where there is no Chimera:

    PYTHONPATH=FOLDER/OF/THIS/FILE ... --worker-extension-cls chimera_receiver.WeightReceiver

The publisher uses `TransferGroup` too: rank 0 sends, and each worker of each server is one further rank. Names, types
and shapes come with the call of `receive_chimera_weights`, as JSON; through the group go only the tensors' bytes.
"""

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import timedelta
from typing import Any

import torch

FORMAT = 2
"""Publisher and receivers must agree on it."""
PIECE = 64 * 2**20
"""Most bytes that are sent at a time. A worker holds the tensors of one layer beside the model."""
LOOK_S = 0.0005
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""By their names in safetensors files."""


class TransferLost(Exception):
    """A transfer ended before its end; the message says why."""


class TransferSilent(TransferLost):
    """Nothing went on for as long as this end waits. It gives up, which the other ends see as a closed connection."""


class TransferGroup:
    """One end of a transfer. Making one waits until all others have come.

    Args:
        backend: `gloo`, or `nccl`.
        store: Where the ranks find each other.
        rank: This end's number; 0 sends.
        ranks: The number of ends.
        address: Where this end can be reached, for gloo.
        device: Where this end holds what it sends or receives.
        limit_s: Seconds that each piece may take.
        stopped: True as soon as the transfer is to be given up.

    Raises:
        TransferLost: Another end did not come.
    """

    def __init__(
        self,
        backend: str,
        store: Any,
        rank: int,
        ranks: int,
        address: str,
        device: torch.device,
        limit_s: float,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._device, self._limit_s, self._stopped = device, limit_s, stopped
        try:
            self._group: Any = _group(backend, store, rank, ranks, address, device, timedelta(seconds=limit_s))
        except RuntimeError as error:
            raise self._lost(error) from error

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Send `tensor`, which is contiguous, or fill it with what comes.

        Raises:
            TransferLost: Another end is gone, or does not go on.
        """
        for piece in tensor.reshape(-1).view(torch.uint8).split(PIECE):
            if piece.numel():
                held = piece.to(self._device)  # As long as it is under way.
                self._finish(lambda held=held: self._group.broadcast([held]))

    def meet(self) -> None:
        """Return when all ends have come here.

        Raises:
            TransferLost: Another end is gone, or does not go on.
        """
        self._finish(lambda: self._group.allreduce([torch.zeros(1, device=self._device)]))

    def close(self) -> None:
        """Close all connections, so that other ends that wait for this one notice it."""
        group, self._group = self._group, None
        if group is not None:
            group.abort()

    def _finish(self, begin: Callable[[], Any]) -> None:
        deadline, work = time.monotonic() + self._limit_s, None
        try:
            work = begin()
            # Both back ends can be asked this without waiting, so one that hangs can be given up.
            while not work.is_completed():
                if self._stopped():
                    raise TransferLost("it was given up")
                if time.monotonic() > deadline:
                    raise self._silent()
                time.sleep(LOOK_S)
            work.wait()
        except RuntimeError as error:
            raise self._lost(error) from error
        finally:
            work = None  # It would keep the connections open as long as somebody holds the exception.

    def _lost(self, error: RuntimeError) -> TransferLost:
        """What torch says, without the place in its source and its advice."""
        text = str(error).partition("\n")[0]
        if "imed out" in text or "imeout" in text:
            return self._silent()
        if text.startswith("["):
            text = text.partition("] ")[2]
        return TransferLost(text.partition(". ")[0][:300])

    def _silent(self) -> TransferSilent:
        return TransferSilent(f"nothing went on for {self._limit_s:g} s")


class WeightReceiver:
    """What vLLM adds to its worker class, whose attributes these are. No method raises: vLLM 0.32 with several workers
    loses count of their answers when one does."""

    rank: int
    device: torch.device
    parallel_config: Any
    reload_weights: Callable[..., None]

    def chimera_place(self) -> dict[str, Any]:
        """This worker's number among those of its server, how many there are, and where it computes."""
        ranks = self.parallel_config.world_size_across_dp
        return {"format": FORMAT, "rank": self.rank, "ranks": ranks, "device": self.device.type}

    def receive_chimera_weights(
        self,
        backend: str,
        host: str,
        port: int,
        token: str,
        first: int,
        ranks: int,
        limit_s: float,
        tensors: Sequence[tuple[str, str, Sequence[int]]],
    ) -> dict[str, str]:
        """Load the tensors that come.

        Args:
            backend: `gloo`, received into the main memory, or `nccl`, received on this worker's GPU.
            host: Where the ranks find each other.
            port: Its port.
            token: Names this transfer.
            first: The rank of this server's first worker.
            ranks: The number of ranks.
            limit_s: Seconds in which each step must go on.
            tensors: Name, type and shape of each, in the order in which they come.

        Returns:
            Nothing, or why the weights are not loaded: `unreached` if the publisher cannot be found, `silent` if this
            end has given up, `lost` if the transfer ended early otherwise, `error` if vLLM refused what came. The
            worker may then have neither the old nor the new weights. After `silent` and `lost` it takes others.
        """
        lost: list[TransferLost] = []
        device = self.device if backend == "nccl" else torch.device("cpu")
        rank = first + self.rank
        try:
            store, address = _store(host, port, token, limit_s)
            store.set(f"here/{rank}", "1")
        except (OSError, RuntimeError) as error:
            return {"unreached": str(error)[:200]}
        try:
            with closing(TransferGroup(backend, store, rank, ranks, address, device, limit_s)) as group:
                arriving = _arriving(group, tensors, device, lost)
                self.reload_weights(weights_iterator=arriving)
                for _ in arriving:  # vLLM has left some.
                    pass
        except TransferLost as error:
            lost.append(error)
        except Exception as error:  # noqa: BLE001  see the class
            if not lost:
                return {"error": f"{type(error).__name__}: {error}".rstrip(": ")[:500]}
        return {"silent" if isinstance(one, TransferSilent) else "lost": str(one) for one in lost[:1]}


def _arriving(
    group: TransferGroup,
    tensors: Sequence[tuple[str, str, Sequence[int]]],
    device: torch.device,
    lost: list[TransferLost],
) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors as they come. It ends early, with the reason in `lost`, when the transfer does.

    It does not raise then: vLLM finishes what it has begun with each layer, so that the next load finds none half done.
    """
    try:
        for name, dtype, shape in tensors:
            tensor = torch.empty(list(shape), dtype=DTYPES[dtype], device=device)
            group.broadcast(tensor)
            yield name, tensor
        group.meet()
    except TransferLost as error:
        lost.append(error)


def _store(host: str, port: int, token: str, limit_s: float) -> tuple[Any, str]:
    """The store where ranks find each other, and this end's own address on the way to it."""
    from torch._C._distributed_c10d import PrefixStore, TCPStore

    # By itself torch tries again and again where nobody listens.
    with socket.create_connection((host, port), limit_s) as trial:
        address = trial.getsockname()[0]
    return PrefixStore(token, TCPStore(host, port, None, False, timedelta(seconds=limit_s))), address


def _group(
    backend: str, store: Any, rank: int, ranks: int, address: str, device: torch.device, limit: timedelta
) -> Any:
    """torch's own group, beside the default one, which is vLLM's."""
    from torch.distributed import distributed_c10d as c10d

    if backend == "nccl":
        torch.cuda.set_device(device)
        nccl: Any = c10d.ProcessGroupNCCL.Options()
        nccl._timeout = 2 * limit  # `_finish` gives up before; NCCL's own watch would end the process.
        return c10d.ProcessGroupNCCL(store, rank, ranks, nccl)
    kind: Any = c10d.ProcessGroupGloo
    gloo = kind._Options()
    gloo._timeout = limit
    gloo._devices = [kind.create_device(hostname=address)]
    return kind(store, rank, ranks, gloo)
