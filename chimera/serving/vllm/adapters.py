"""LoRA adapters that are loaded beside the weights that they change, in place of whole weights.

An export of a phase that trains adapters holds the merged weights, and the adapter itself in PEFT's format in its
folder `ADAPTER`. vLLM 0.32 loads and unloads one by a name while it serves, and each call names it, so nothing is
paused.
"""

import logging
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from chimera.core.errors import ConfigError, ModelError
from chimera.core.files import read_json_object
from chimera.serving.vllm.replicas import Replica

ADAPTER = "adapter"
"""The adapter's folder in the folder of the merged weights."""
SETTINGS, TENSORS = "adapter_config.json", "adapter_model.safetensors"
BASE = "base_model_name_or_path"
"""PEFT's name for the weights that an adapter changes; here always a folder's absolute path."""
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values that vLLM takes for `--max-lora-rank`."""
BESIDE = 2
"""Adapters that a server computes with at a time: the live one, and the one before it or the next."""
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
LOAD_S = 900.0


@dataclass(frozen=True, slots=True)
class ServedAdapter:
    """An adapter as servers know it.

    Attributes:
        name: Its name there, which is never used twice: vLLM keeps what it computed by it.
        base: The folder of the weights that it changes.
        folder: A copy of its files.
    """

    name: str
    base: Path
    folder: Path


def base_of(source: Path) -> Path | None:
    """The folder of the weights that the adapter in `source` changes; None without an adapter, or if it is gone.

    Raises:
        ConfigError: The adapter's settings cannot be read.
    """
    file = source / ADAPTER / SETTINGS
    if not file.exists():
        return None
    try:
        base = Path(str(read_json_object(file)[BASE]))
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{file} cannot be read ({error}): remove {file.parent}, and all weights are sent") from error
    return base if base.is_dir() else None


def copy_adapter(source: Path, base: Path, folder: Path, version: str) -> ServedAdapter:
    """Copy the adapter in `source` to `folder`, because vLLM may read it again as long as it is in use."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in (SETTINGS, TENSORS):
        shutil.copyfile(source / ADAPTER / name, folder / name)
    return ServedAdapter(f"{version}-{secrets.token_hex(4)}", base, folder)


def switches(rank: int) -> list[str]:
    """The arguments of a server that takes adapters of at most `rank`; none for 0."""
    if not rank:
        return []
    room = next(largest for largest in RANKS if largest >= rank)
    return ["--enable-lora", "--max-lora-rank", str(room), "--max-loras", str(BESIDE)]


async def load(adapter: ServedAdapter, replicas: Sequence[Replica]) -> None:
    """Load it into all replicas.

    Raises:
        ModelError: One refused it, for example because it takes no adapters.
    """
    for replica in replicas:
        await replica.tell(LOAD, {"lora_name": adapter.name, "lora_path": str(adapter.folder)}, limit_s=LOAD_S)


async def unload(adapter: ServedAdapter, replicas: Sequence[Replica]) -> None:
    """Unload it from the replicas that have it; no call may name it any more. A failure costs room and is logged."""
    for replica in replicas:
        try:
            answer = await replica.send(UNLOAD, {"lora_name": adapter.name}, limit_s=LOAD_S)
        except ModelError as error:
            if not replica.ended():
                logging.warning("%s may still hold the adapter %s: %s", replica.name, adapter.name, error)
            continue
        if answer.status not in (200, 404):  # 404: it was never loaded there.
            logging.warning("%s still holds the adapter %s: %s", replica.name, adapter.name, answer.refusal(300))
