"""The publisher's end of a transfer: reads weights that were prepared for vLLM, and sends them tensor by tensor."""

import os
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from chimera.config.sections.models import TransferKind
from chimera.core.errors import ConfigError, ModelError
from chimera.core.plain_json import read_json_object
from chimera.serving.embedded.checkpoint import WEIGHTS_INDEX

LOOK_S = 0.005

TensorEntry = tuple[str, str, list[int]]
"""Name, type (as safetensors names it) and shape of a tensor."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """What all ends of one transfer know of it.

    Attributes:
        backend: gloo or nccl.
        host: Where the ends find each other, on the publisher's machine.
        port: Its port.
        token: Names the transfer.
        ranks: The number of ends.
        limit_s: Seconds in which each step must go on.
    """

    backend: str
    host: str
    port: int
    token: str
    ranks: int
    limit_s: float


def manifest(prepared: Path) -> tuple[list[TensorEntry], dict[str, Path]]:
    """The tensors in a folder that `weights.prepare` has made, in the order in which they are sent, and their files.

    Raises:
        ModelError: One has a type that no model here has.
    """
    from safetensors import safe_open

    from chimera.serving.vllm.receiver.chimera_receiver import DTYPES

    files = {name: prepared / file for name, file in read_json_object(prepared / WEIGHTS_INDEX)["weight_map"].items()}
    entries: list[TensorEntry] = []
    with ExitStack() as stack:
        opened = {file: stack.enter_context(safe_open(file, framework="pt")) for file in set(files.values())}
        for name in sorted(files):  # By layer, so that a worker holds the tensors of one at a time.
            header = opened[files[name]].get_slice(name)
            kind = header.get_dtype()
            if kind not in DTYPES:
                raise ModelError(f"the tensor {name} in {files[name]} is of type {kind}, which is not sent")
            entries.append((name, kind, list(header.get_shape())))
    return entries, files


def send(
    meeting: Rendezvous,
    descriptor: int,
    entries: Sequence[TensorEntry],
    files: Mapping[str, Path],
    device: str,
    over: threading.Event,
) -> None:
    """Send all tensors; returns when `over` is set, and gives up if it is set before.

    Args:
        meeting: What all ends know.
        descriptor: The socket that listens at its host and port.
        entries: The tensors.
        files: The file of each.
        device: Where they are held while they are sent.
        over: Set when nobody waits for this end any more.

    Raises:
        TransferLost: Another end did not come, is gone, or does not go on.
    """
    import torch
    from safetensors import safe_open
    from torch._C._distributed_c10d import PrefixStore, TCPStore

    from chimera.serving.vllm.receiver.chimera_receiver import TransferGroup

    host, limit = meeting.host, timedelta(seconds=meeting.limit_s)
    # Without a socket of ours the store would listen on all interfaces.
    held = TCPStore(host, meeting.port, None, True, limit, wait_for_workers=False, master_listen_fd=descriptor)
    store = PrefixStore(meeting.token, held)
    _wait_for_workers(store, meeting, over)
    place, ranks = torch.device(device), meeting.ranks
    with ExitStack() as stack:
        group = TransferGroup(meeting.backend, store, 0, ranks, host, place, meeting.limit_s, over.is_set)
        stack.enter_context(closing(group))
        opened = {file: stack.enter_context(safe_open(file, framework="pt")) for file in set(files.values())}
        for name, *_ in entries:
            group.broadcast(opened[files[name]].get_tensor(name))
        group.meet()
        over.wait()


def _wait_for_workers(store: Any, meeting: Rendezvous, over: threading.Event) -> None:
    from chimera.serving.vllm.receiver.chimera_receiver import TransferLost

    deadline = time.monotonic() + meeting.limit_s
    missing = {f"here/{rank}" for rank in range(1, meeting.ranks)}
    while missing:
        missing = {key for key in missing if not store.check([key])}
        if over.is_set():
            raise TransferLost("it was given up")
        if time.monotonic() > deadline:
            raise TransferLost(
                f"{len(missing)} of {meeting.ranks - 1} workers did not come to {meeting.host}:{meeting.port} within "
                f"{meeting.limit_s:g} s"
            )
        time.sleep(LOOK_S)


def sending_device(kind: TransferKind, setting: str, taken: Collection[str]) -> str:
    """Where the publisher holds the piece that it sends: in the main memory for gloo, on a GPU for nccl.

    Args:
        kind: gloo or nccl.
        setting: The setting that asks for it, as named in errors.
        taken: The numbers of the servers' GPUs: NCCL refuses two ranks on one GPU.

    Raises:
        ConfigError: This process has no GPU for it.
    """
    if kind != "nccl":
        return "cpu"
    import torch
    from torch.distributed import is_nccl_available

    if not (torch.cuda.is_available() and is_nccl_available()):
        raise ConfigError(
            f"{setting}=nccl: the run's own torch has no GPU or no NCCL to send with; set {setting}=gloo, which sends "
            "from the main memory, also to servers on GPUs"
        )
    found = free_gpu(os.environ.get("CUDA_VISIBLE_DEVICES"), torch.cuda.device_count(), taken)
    if found is None:
        raise ConfigError(
            f"{setting}=nccl: all GPUs of this machine are the servers', and NCCL takes no GPU twice; leave one to the "
            f"run, or set {setting}=gloo"
        )
    return f"cuda:{found}"


def free_gpu(visible: str | None, count: int, taken: Collection[str]) -> int | None:
    """The first of this process's `count` GPUs that is not `taken`; `visible` is CUDA_VISIBLE_DEVICES."""
    names = [name.strip() for name in visible.split(",")] if visible else [str(number) for number in range(count)]
    return next((number for number, name in enumerate(names[:count]) if name not in taken), None)
