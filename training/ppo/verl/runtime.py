"""Runs VeRL 0.9.1 in this process: its import, a process group of one rank, and random states of an engine.

VeRL expects worker processes of its own. Here it runs inside the lab, beside an event loop and a server thread, so its
side effects are contained: log handlers, environment variables and global random states are restored, its output goes
to the log, and its process group listens only on the loopback interface.
"""

import gc
import importlib
import logging
import os
import random
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from chimera.core.errors import ConfigError, RunError
from training.scale.meeting import loopback

Device = Literal["cpu", "cuda"]

# Variables that VeRL 0.9.1's Worker expects from its launcher. With one rank nothing connects to the address.
RANK_OF_ONE = {
    "WORLD_SIZE": "1",
    "RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "0",
}
_LOCK = threading.Lock()
_loaded: Device | None = None


def load_verl(device: Literal["auto", "cpu", "cuda"] = "auto") -> Device:
    """Import VeRL for one device, once per process (about 5 s), and patch parts that do not work here.

    Args:
        device: "auto" is CUDA if there is a GPU.

    Returns:
        The device that VeRL was loaded for.

    Raises:
        ConfigError: There is no such device, or VeRL was loaded for another.
    """
    global _loaded
    with _LOCK:
        if _loaded is None:
            gc.disable()  # The collector would take a quarter of the imports' time.
            try:
                _loaded = _import_for(device)
            finally:
                gc.enable()
        if device not in ("auto", _loaded):
            raise ConfigError(f"VeRL runs on {_loaded!r} in this process: it cannot run on {device!r} as well")
        return _loaded


def _import_for(device: str) -> Device:
    import torch

    actual_device: Device = "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
    if device not in ("auto", actual_device):
        raise ConfigError(f"device {device!r} was asked for and torch sees no GPU: use 'auto' or 'cpu'")
    root = logging.getLogger()
    handlers = root.handlers[:]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*engine is not available")
        import verl.plugin.platform as platforms

        from training.ppo.verl.patches import CpuPlatform, mend

        if actual_device == "cpu":
            platforms.set_platform(CpuPlatform())
        importlib.import_module("verl.workers.engine")
    for added in [handler for handler in root.handlers if handler not in handlers]:
        root.removeHandler(added)
    mend(actual_device)
    return actual_device


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Turn off transformers' progress bars, which would break a live view."""
    from transformers.utils import logging as transformers_logging

    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


@contextmanager
def rank_of_one() -> Iterator[None]:
    """Set the environment of a launcher's only rank, and restore it afterwards.

    A process that is started inside inherits these variables, and its libraries may treat it as a rank.
    """
    names = {**RANK_OF_ONE, "GLOO_SOCKET_IFNAME": loopback()}
    before = {name: os.environ.get(name) for name in (*names, "REDIS_STORE_SERVER_HOST")}
    os.environ.update(names)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def open_group(device: Device) -> None:
    """Open this process's group of one rank. Call it inside `rank_of_one`; raises RunError if there is one already."""
    import torch.distributed as dist
    from torch._C._distributed_c10d import HashStore

    if dist.is_initialized():
        raise RunError("a torch process group is open in this process already: close the other engine first")
    backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)


def close_group() -> None:
    """Close the process group, if there is one."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


class OwnRandomness:
    """Random states of Python, numpy and torch for one engine. As a context manager they replace the process's states.

    So an engine draws equal numbers whatever the process does besides. Use it from one thread at a time.
    """

    def __init__(self, seed: int) -> None:
        import numpy as np
        import torch

        outer = self._get()
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)
        self._own = self._get()
        self._set(outer)

    def __enter__(self) -> None:
        self._outer = self._get()
        self._set(self._own)

    def __exit__(self, *_: object) -> None:
        self._own = self._get()
        self._set(self._outer)

    def state(self) -> dict[str, Any]:
        """The states for a checkpoint. Call it outside the context."""
        return self._own

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`. Call it outside the context.

        Raises:
            KeyError, TypeError, ValueError, RuntimeError: It is no such state.
        """
        outer = self._get()
        try:
            self._set(state)
            self._own = self._get()
        finally:
            self._set(outer)

    @staticmethod
    def _manager() -> Any:
        from verl.utils.checkpoint.checkpoint_manager import BaseCheckpointManager

        return BaseCheckpointManager

    def _get(self) -> dict[str, Any]:
        return self._manager().get_rng_state()

    def _set(self, state: dict[str, Any]) -> None:
        self._manager().load_rng_state(state)
