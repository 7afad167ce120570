"""Runs VeRL in this process: its import, a process group of one rank, and random states of an engine.

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

Device = Literal["cpu", "cuda"]

# Variables that VeRL's Worker expects from its launcher. With one rank nothing connects to the address.
RANK_OF_ONE = {
    "WORLD_SIZE": "1",
    "RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "0",
}
_LOG = logging.getLogger(__name__)
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

    found: Device = "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
    if device not in ("auto", found):
        raise ConfigError(f"device {device!r} was asked for and torch sees no GPU: use 'auto' or 'cpu'")
    root = logging.getLogger()
    handlers = root.handlers[:]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*engine is not available")
        import verl.plugin.platform as platforms

        if found == "cpu":
            from training.ppo.verl.platform import CpuPlatform

            platforms.set_platform(CpuPlatform())
        importlib.import_module("verl.workers.engine")
    for added in [one for one in root.handlers if one not in handlers]:
        root.removeHandler(added)
    _mend(found)
    return found


def _mend(device: Device) -> None:
    """Replace what VeRL 0.9.1 hard-codes for its own clusters."""
    import verl.models.transformers.monkey_patch as monkey_patch
    import verl.utils.model as models
    import verl.workers.engine.fsdp.transformer_impl as fsdp
    from verl.utils import torch_functional
    from verl.utils.profiler import performance
    from verl.workers import engine_workers
    from verl.workers.engine.base import EngineRegistry

    for module in (monkey_patch, models, fsdp, performance):
        module.__dict__["print"] = _to_log
    # It would bind the whole process, including its server threads, to the cores near a GPU.
    engine_workers.__dict__["set_numa_affinity"] = lambda: None
    # The original requires flash attention, whatever the configuration says.
    models.__dict__["load_valuehead_model"] = _load_value_model
    if not torch_functional.FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE:
        # Without flash attention's kernel the original computes one logsumexp per token in a Python loop.
        fsdp.__dict__["logprobs_from_logits"] = _log_probs
    # torch warns of VeRL's jagged tensors, but VeRL changes no model output in place.
    logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    if device == "cpu":
        from training.ppo.verl.tree import TreeEngine

        for kind, engine in (("language_model", TreeEngine), ("value_model", fsdp.FSDPEngineWithValueHead)):
            EngineRegistry.register(model_type=kind, backend="fsdp2", device="cpu")(engine)


def _to_log(*parts: Any, **_: Any) -> None:
    text = " ".join(map(str, parts))
    _LOG.log(logging.WARNING if text.startswith("WARN") else logging.DEBUG, "%s", text)


def _load_value_model(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
    """A language model without its head, and with a new head that gives one number per token."""
    from transformers import AutoModelForTokenClassification
    from transformers.utils import logging as transformers_logging

    shown = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # transformers would report the new head as missing from the checkpoint.
    try:
        return AutoModelForTokenClassification.from_pretrained(
            local_path,
            dtype=torch_dtype,
            config=model_config,
            attn_implementation=model_config._attn_implementation,
            trust_remote_code=trust_remote_code,
            use_safetensors=True,
        )
    finally:
        transformers_logging.set_verbosity(shown)


def _log_probs(logits: Any, labels: Any, inplace_backward: bool = True) -> Any:
    from torch.nn.functional import cross_entropy

    flat = cross_entropy(logits.reshape(-1, logits.shape[-1]).float(), labels.reshape(-1), reduction="none")
    return -flat.view(labels.shape)


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


def loopback() -> str:
    """Name of the interface with 127.0.0.1. Without it gloo listens on the host's public address."""
    import psutil

    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address == "127.0.0.1" for one in addresses):
            return name
    raise RunError("no network interface has the address 127.0.0.1: bring up the loopback interface")


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
