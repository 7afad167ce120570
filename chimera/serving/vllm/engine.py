"""One vLLM server that the run starts: its command, its environment and its process.

It listens on a Unix socket in a folder that only this user can enter. vLLM guards /v1 by a key and nothing else, so a
port would open the routes that change weights (VLLM_SERVER_DEV_MODE) to every user of the machine.
"""

from collections.abc import Mapping
from pathlib import Path

from chimera.config.sections.models import ModelConfig, ServingConfig
from chimera.core.files import read_json_object
from chimera.processes.child_environment import child_environment
from chimera.processes.programs import Program
from chimera.serving.vllm.adapters import switches
from chimera.serving.vllm.replicas import SERVED

USUAL = (
    *("--generation-config", "vllm", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    # Otherwise a model may write white space between the parts of its JSON for ever.
    *("--structured-outputs-config", '{"backend": "xgrammar", "disable_any_whitespace": true}'),
)
"""What all servers are told; settings of a slot (`args`) come later and win."""
FOREIGN = ("PYTHON", "VIRTUAL_ENV")
"""Starts of variables that belong to this project's Python and would mislead another."""


def start_engine(
    model: ModelConfig,
    serving: ServingConfig,
    number: int,
    folder: Path,
    socket: Path,
    log_file: Path,
    name: str,
    key: str,
) -> Program:
    """Start replica `number` of a slot's servers; it serves the weights in `folder` at `socket`."""
    assert model.python is not None
    place = model.gpus[number] if model.gpus else ""
    command = [model.python, *arguments(model, serving, folder, socket, place)]
    environment = _environment(model, serving, place, key)
    return Program(name, command, log_file, environment)


def arguments(model: ModelConfig, serving: ServingConfig, folder: Path, socket: Path, place: str) -> list[str]:
    """The server's arguments, which anyone on this machine can read; `place` names its GPUs, "" for none."""
    most = read_json_object(folder / "config.json").get("max_position_embeddings")
    length = min(serving.context_length, most) if isinstance(most, int) else serving.context_length
    shards = len(place.split(","))
    return [
        *("-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--served-model-name", SERVED),
        *("--uds", str(socket), "--dtype", model.dtype, "--max-model-len", str(length)),
        *("--max-num-seqs", str(serving.slots), "--kv-cache-memory-bytes", str(int(model.cache_gib * 2**30))),
        *(("--tensor-parallel-size", str(shards)) if shards > 1 else ()),
        *(() if place else ("--enforce-eager",)),
        *switches(model.adapter_rank),
        *(("--enable-sleep-mode",) if model.sleep else ()),
        *USUAL,
        *model.args,
    ]


def _environment(model: ModelConfig, serving: ServingConfig, place: str, key: str) -> Mapping[str, str]:
    assert model.python is not None
    inherited = {name: value for name, value in child_environment().items() if not name.startswith(FOREIGN)}
    environment = {
        **inherited,
        "VLLM_API_KEY": key,
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        **({"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"} if model.adapter_rank else {}),
    }
    if place:
        return {**environment, "CUDA_VISIBLE_DEVICES": place}
    openmp = Path(model.python).absolute().parent.parent / "lib" / "libiomp5.so"
    threads = {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": str(serving.threads)}
    # Replicas that bind their threads would all take the same cores.
    return {
        **environment,
        **threads,
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        **({"LD_PRELOAD": str(openmp)} if openmp.exists() else {}),
    }
