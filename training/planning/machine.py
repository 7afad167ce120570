"""What this machine has, and how fast it computes."""

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

TRIAL_S = 0.2
"""Seconds of each measurement."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine.

    Attributes:
        cores: Number of cores that this process may use.
        memory: Bytes of memory that are free.
        disk: Bytes that are free for runs.
        gpus: Name and bytes of free memory of each GPU.
        operations: Floating-point operations a second of one core, or of one GPU where there are any, in float32.
        bandwidth: Bytes a second that one core, or GPU, reads from its memory.
    """

    cores: int
    memory: int
    disk: int
    gpus: tuple[tuple[str, int], ...]
    operations: float
    bandwidth: float


def this_machine(runs: Path) -> Machine:
    """This machine as it is now; takes about a second."""
    import torch

    place = runs.absolute()
    while not place.exists():
        place = place.parent
    numbers = range(torch.cuda.device_count())
    gpus = tuple((torch.cuda.get_device_name(number), torch.cuda.mem_get_info(number)[0]) for number in numbers)
    device = torch.device("cuda" if gpus else "cpu")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        square = torch.rand(768, 768, device=device)
        large = torch.rand(1 << 24, device=device)
        operations = 2 * 768**3 * _rate(lambda: float((square @ square)[0, 0]))
        bandwidth = 4 * (1 << 24) * _rate(lambda: float(large.sum()))
    finally:
        torch.set_num_threads(before)
    cores = len(os.sched_getaffinity(0))
    return Machine(cores, psutil.virtual_memory().available, shutil.disk_usage(place).free, gpus, operations, bandwidth)


def _rate(work: Callable[[], object]) -> float:
    """How often a second `work` is done."""
    work()
    count, began = 0, time.perf_counter()
    while (taken := time.perf_counter() - began) < TRIAL_S:
        work()
        count += 1
    return count / taken
