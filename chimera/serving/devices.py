"""What this machine computes with: its GPUs, its processor and processes, and memory that was freed."""

import ctypes
from typing import Literal

from chimera.config.sections.models import ServingConfig


def gpus() -> list[str]:
    """Names of the GPUs that torch can use."""
    import torch

    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]


def fast_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 itself: faster than float32 then, several times as slow otherwise."""
    import torch

    # torch 2.13 has no public name for either.
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def release_memory() -> None:
    """Return freed memory; does nothing where the C library is not glibc.

    glibc keeps what lies between blocks in use: after half a billion weights were read that is half a GiB or more.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


SMALL = 60_000_000
"""Up to so many parameters a GPU is not used: it would wait for its own starts."""
COPIES = 1 / 4
"""Share of the machine's memory that the weights of two processes may take, in float32."""


def decoding_device(parameters: int) -> Literal["cpu", "cuda"]:
    """Where a model of so many parameters decodes: on the GPU if torch sees one, unless the model is small."""
    return "cuda" if parameters > SMALL and gpus() else "cpu"


def decoding_processes(serving: ServingConfig, parameters: list[int], cores: int, memory: int) -> int:
    """`serving.processes`, or if that is None what suits the model and the machine; each process has a slot at least.

    One process keeps one core busy. Two have a copy of all weights each, and write 1.4 to 1.9 times as many tokens on
    two cores (2 to 135 million parameters), more than one with two threads.

    Args:
        parameters: Of each set of weights.
        cores: That the server may use.
        memory: Of the machine, in bytes.
    """
    if serving.processes is not None:
        return min(serving.processes, serving.slots)
    if "cuda" in map(decoding_device, parameters) or serving.threads > 1 or min(cores, serving.slots) < 2:
        return 1
    return 2 if 2 * 4 * sum(parameters) <= COPIES * memory else 1
