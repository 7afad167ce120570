"""The CPU as one of VeRL's platforms.

VeRL 0.9.1 has platforms for NVIDIA, AMD and Huawei accelerators and supports plugins. A platform gives the device's
name and a module like `torch.cuda`. The rest of VeRL's FSDP engine is PyTorch, which runs on a CPU.
"""

import types
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import psutil
import torch
from verl.plugin.platform import PlatformBase


def _resident(*_: Any) -> int:
    """Memory of this process in bytes, in place of allocated device memory."""
    return psutil.Process().memory_info().rss


def _memory(*_: Any) -> tuple[int, int]:
    """Free and total memory in bytes."""
    memory = psutil.virtual_memory()
    return memory.available, memory.total


def _cpu_module() -> ModuleType:
    """A copy of `torch.cpu` with the functions of `torch.cuda` that VeRL calls."""
    module = types.ModuleType("cpu", "torch.cpu as VeRL expects a device module.")
    vars(module).update({name: value for name, value in vars(torch.cpu).items() if not name.startswith("__")})
    vars(module).update(dict.fromkeys(("max_memory_allocated", "max_memory_reserved"), _resident))
    vars(module).update(dict.fromkeys(("memory_allocated", "memory_reserved"), _resident))
    vars(module).update(
        mem_get_info=_memory,
        get_device_name=lambda *_: "CPU",
        empty_cache=lambda: None,
        get_rng_state=lambda *_: torch.get_rng_state(),
        set_rng_state=lambda state, *_: torch.set_rng_state(state),
    )
    return module


class CpuPlatform(PlatformBase):
    """The host's processor, one device, with gloo between ranks."""

    _module = _cpu_module()

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> ModuleType:
        return self._module

    def is_available(self) -> bool:
        return True

    # VeRL moves tensors to the current device. The number 0 would mean the first GPU.
    def current_device(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None:
        """Do nothing: CPU operations are synchronous."""

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """Do nothing: the C allocator has no such settings."""

    def empty_cache(self) -> None:
        """Do nothing: torch keeps no cache of CPU memory."""

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """No variable selects CPUs; this name is never set."""
        return "CPU_VISIBLE_DEVICES"

    # VeRL's own annotation is None, though every platform returns a context manager.
    def nvtx_range(self, msg: str) -> AbstractContextManager[None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Do nothing: NVIDIA's profiler does not apply."""
        return nullcontext()

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        return "CPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        """Tensors are not shared between processes."""
        return False

    def cudart(self) -> None: ...
