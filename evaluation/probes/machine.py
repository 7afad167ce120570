"""The machine and the environment that a run would use: versions, memory, disk, GPU, Weights & Biases."""

import importlib.metadata
import os
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path

import httpx
import psutil
from packaging.requirements import Requirement

from chimera.config.tree import Config
from chimera.serving.devices import gpus
from evaluation.probes.probed import Level, Probed

DISTRIBUTION = "chimera-lab"
FREE_BYTES = 2 * 2**30
"""Disk space below which a default run may not fit with all its checkpoints."""
MEMORY_BYTES = 4 * 2**30
"""Memory that a default run needs at most."""
WANDB_HOST = "https://api.wandb.ai"
CONNECT_SECONDS = 3.0


def machine_findings(config: Config, secrets: Mapping[str, str]) -> list[Probed]:
    return [_versions(), _memory(), _disk(config.runs_dir), _gpu(), _wandb(config, secrets)]


def _versions() -> Probed:
    """Whether the installed packages are those that this version was made for."""
    wrong = []
    for line in importlib.metadata.requires(DISTRIBUTION) or ():
        needed = Requirement(line)
        if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
            continue
        try:
            installed = importlib.metadata.version(needed.name)
        except importlib.metadata.PackageNotFoundError:
            wrong.append(f"{needed.name} is missing")
            continue
        if not needed.specifier.contains(installed, prereleases=True):
            wrong.append(f"{needed.name} is {installed}, not {needed.specifier}")
    if wrong:
        remedy = "install with `make setup`, or pip install -e . -c constraints.txt"
        return Probed("machine", "versions", Level.FAULT, f"{'; '.join(wrong)}: {remedy}")
    return Probed("machine", "versions", Level.OK, f"Python {platform.python_version()}, all packages in their ranges")


def _memory() -> Probed:
    free, cores = psutil.virtual_memory().available, len(os.sched_getaffinity(0))
    text = f"{_gigabytes(free)} of memory free, {cores} cores"
    if free < MEMORY_BYTES:
        return Probed(
            "machine", "memory", Level.WARNING, f"{text}: a default run takes up to {_gigabytes(MEMORY_BYTES)}"
        )
    return Probed("machine", "memory", Level.OK, text)


def _disk(folder: Path) -> Probed:
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    text = f"{_gigabytes(free)} free for {folder}"
    if not os.access(place, os.W_OK):
        return Probed("machine", "disk", Level.FAULT, f"{place} cannot be written: set runs_dir to another folder")
    if free < FREE_BYTES:
        return Probed("machine", "disk", Level.WARNING, f"{text}: make room, or set runs_dir to another disk")
    return Probed("machine", "disk", Level.OK, text)


def _gpu() -> Probed:
    names = gpus()
    if not names:
        return Probed("machine", "GPU", Level.NOTE, "torch sees none: everything runs on CPU")
    return Probed("machine", "GPU", Level.OK, f"{', '.join(names)}: for training and models over 60 million parameters")


def _wandb(config: Config, secrets: Mapping[str, str]) -> Probed:
    mode, keyed = config.wandb.mode, bool(secrets.get("WANDB_API_KEY"))
    if mode == "auto":
        mode = "online" if keyed else "offline"
    if mode != "online":
        text = "nothing is logged" if mode == "disabled" else "logged into the run's folder; `wandb sync` uploads it"
        return Probed("wandb", mode, Level.OK, text)
    if not keyed:
        return Probed("wandb", mode, Level.FAULT, "WANDB_API_KEY is not set: set it, or set wandb.mode=offline")
    address = os.environ.get("WANDB_BASE_URL", WANDB_HOST)
    try:
        httpx.head(address, timeout=CONNECT_SECONDS)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = f"WANDB_BASE_URL={address} cannot be reached ({type(error).__name__}: {error})"
        text = f"{reason}: set it to its address, or the run would be logged offline, and training goes on"
        return Probed("wandb", mode, Level.WARNING, text)
    return Probed("wandb", mode, Level.OK, f"{address} is reached; the key is tried when a run starts")


def _gigabytes(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
