"""How many processes decode for a server of embedded models."""

import json
import math
import os
from collections.abc import Iterable
from pathlib import Path

from chimera.config.sections.models import ServingConfig

SMALL = 32_000_000
"""Up to so many parameters two processes decode faster than one on two cores. Larger weights are read from memory
again and again, which takes as long with two readers, and each has a copy of its own."""


def decoding_processes(serving: ServingConfig, parameters: int, cores: int) -> int:
    """`serving.processes`, or if that is None what suits the model and the machine; each process has a slot at least.

    Args:
        parameters: Of all sets of weights together.
        cores: That the server may use.
    """
    if serving.processes is not None:
        return min(serving.processes, serving.slots)
    return 2 if parameters <= SMALL and serving.threads == 1 and min(cores, serving.slots) > 1 else 1


def usable_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parameters_in(folders: Iterable[Path]) -> int:
    """The number of weights in the safetensors of different model folders, read from the files' headers.

    A file that is broken counts as nothing: whoever loads it says what is wrong.
    """
    return sum(_parameters(file) for folder in set(folders) for file in folder.glob("*.safetensors"))


def _parameters(file: Path) -> int:
    # The format: eight bytes with the header's length, then the header as JSON.
    try:
        with file.open("rb") as content:
            header = json.loads(content.read(int.from_bytes(content.read(8), "little")))
        return sum(math.prod(one["shape"]) for name, one in header.items() if name != "__metadata__")
    except (OSError, OverflowError, MemoryError, ValueError, TypeError, KeyError, AttributeError):
        return 0
