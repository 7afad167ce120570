"""Stores a training engine's state as JSON and safetensors. Reading it runs no code.

    <name>.json          numbers, texts and the structure; {"tensor": "3"} stands for a tensor
    <name>.safetensors   the tensors, by these names

VeRL 0.9.1's own checkpoints are pickles, and reading a pickle runs the code that its writer put in.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chimera.core.errors import RunError
from chimera.core.files import parse_json
from training.model.weights import write_tensors

if TYPE_CHECKING:
    from torch import Tensor
    from verl.workers.engine_workers import TrainingWorker


def write_state(state: Any, folder: Path, name: str) -> None:
    """Write `state` as two files in `folder`.

    Args:
        state: Numbers, texts, None, tensors and numpy arrays, in dictionaries, lists and tuples.
        folder: An existing folder.
        name: Name of both files, without suffix.

    Raises:
        TypeError: `state` contains something else.
        RunError: The tensors cannot be written.
    """
    tensors = _Tensors()
    plain = _encode(state, tensors)
    write_tensors(tensors.by_name, folder / f"{name}.safetensors")
    (folder / f"{name}.json").write_text(json.dumps(plain), encoding="utf-8")


def read_state(folder: Path, name: str) -> Any:
    """The inverse of `write_state`.

    Raises:
        RunError: A file is missing or broken.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    plain, stored = folder / f"{name}.json", folder / f"{name}.safetensors"
    try:
        encoded = parse_json(plain.read_bytes())
    except (OSError, ValueError) as error:
        raise RunError(f"{plain} cannot be read ({error}): {REMEDY}") from error
    try:
        return _decode(encoded, load_file(stored))
    except (OSError, SafetensorError) as error:
        raise RunError(f"{stored} cannot be read ({error}): {REMEDY}") from error
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise RunError(f"{plain} does not fit {stored.name} ({type(error).__name__}: {error}): {REMEDY}") from error


REMEDY = "remove the checkpoint to continue from an earlier one, or from the phase's beginning"


def worker_state(worker: "TrainingWorker") -> dict[str, Any]:
    """Weights, optimiser and learning-rate schedule of a VeRL worker: whole tensors, whatever ranks hold of them.

    All ranks must call it together. Only the first gets the tensors; the others get None in their places.
    """
    engine: Any = worker.engine
    schedule = engine.lr_scheduler
    optimiser = engine.optimizer.state_dict()
    return {
        "weights": {name: _whole(value) for name, value in engine.module.state_dict().items()},
        "optimizer": {
            "state": {
                index: {name: _whole(value) for name, value in of_one.items()}
                for index, of_one in optimiser["state"].items()
            },
            "param_groups": optimiser["param_groups"],
        },
        "lr_scheduler": None if schedule is None else schedule.state_dict(),
    }


def restore_worker(worker: "TrainingWorker", state: Mapping[str, Any]) -> None:
    """Give a worker the state that `worker_state` took from a worker of the same kind, of any number of ranks.

    Raises:
        KeyError, TypeError, ValueError, RuntimeError: It is the state of another kind of worker.
    """
    import torch

    engine: Any = worker.engine
    weights = state["weights"]
    tensors = engine.module.state_dict()  # It also makes copies into FSDP's parameters take effect.
    if tensors.keys() != weights.keys():
        raise ValueError(f"other weights than the model's, such as {sorted(tensors.keys() ^ weights.keys())[0]}")
    with torch.no_grad():
        for name, value in tensors.items():
            if value.shape != weights[name].shape:
                raise ValueError(f"{name} is {tuple(weights[name].shape)}, not {tuple(value.shape)}")
            _local(value).copy_(_local(_placed_like(value, weights[name])))
    optimizer = state["optimizer"]
    parameters = [parameter for group in engine.optimizer.param_groups for parameter in group["params"]]
    moments = {
        index: {name: _placed_like(parameters[index], value) for name, value in of_one.items()}
        for index, of_one in optimizer["state"].items()
    }
    engine.optimizer.load_state_dict({"state": moments, "param_groups": optimizer["param_groups"]})
    if engine.lr_scheduler is not None:
        engine.lr_scheduler.load_state_dict(state["lr_scheduler"])
    if engine._is_offload_optimizer:
        engine.to(device="cpu", model=False, optimizer=True, grad=False)


def _local(value: Any) -> Any:
    """This rank's part of a tensor."""
    from torch.distributed.tensor import DTensor

    return value.to_local() if isinstance(value, DTensor) else value


def _whole(value: Any) -> Any:
    """The whole tensor of one that several ranks hold parts of; None on all ranks but the first.

    torch.distributed.checkpoint.state_dict gathers likewise, but names an optimiser's values by weights instead of
    numbers, which is another format than that of checkpoints of one rank.
    """
    from torch.distributed.tensor import DTensor

    if not isinstance(value, DTensor):
        return value
    if value.device_mesh.size() == 1:
        return value.to_local()
    whole = value.full_tensor()
    return whole.cpu() if value.device_mesh.get_rank() == 0 else None


def _placed_like(parameter: "Tensor", value: Any) -> Any:
    """A whole value of `parameter`, divided among the ranks like it. One of another shape, such as a count, stays."""
    from torch import Tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(parameter, DTensor) or not isinstance(value, Tensor) or value.shape != parameter.shape:
        return value
    whole = value.to(parameter.to_local().device)
    if parameter.device_mesh.size() == 1:
        return DTensor.from_local(whole, parameter.device_mesh, parameter.placements, run_check=False)
    # Every rank has read the whole value, so nothing is sent.
    return distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)


class _Tensors:
    """Collects the tensors of one file."""

    def __init__(self) -> None:
        self.by_name: dict[str, Tensor] = {}
        self._places: set[int] = set()

    def keep(self, tensor: "Tensor") -> str:
        whole = tensor.detach().cpu().contiguous()
        # safetensors refuses two tensors that share memory, such as tied embeddings.
        copy = whole.clone() if whole.data_ptr() in self._places else whole
        self._places.add(copy.data_ptr())
        name = str(len(self.by_name))
        self.by_name[name] = copy
        return name


def _encode(value: Any, tensors: _Tensors) -> Any:
    import numpy as np
    import torch

    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [_encode(item, tensors) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [_encode(item, tensors) for item in value]}
    if isinstance(value, Mapping):
        return {"mapping": [[_encode(key, tensors), _encode(item, tensors)] for key, item in value.items()]}
    if isinstance(value, torch.Tensor):
        return {"tensor": tensors.keep(value)}
    if isinstance(value, np.ndarray):
        return {"array": tensors.keep(torch.from_numpy(value))}
    raise TypeError(f"a checkpoint cannot hold a {type(value).__name__}")


def _decode(value: Any, tensors: "Mapping[str, Tensor]") -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, held),) = value.items()
    if kind == "tuple":
        return tuple(_decode(item, tensors) for item in held)
    if kind == "mapping":
        return {_decode(key, tensors): _decode(item, tensors) for key, item in held}
    if kind == "tensor":
        return tensors[held]
    if kind == "array":
        return tensors[held].numpy()
    raise ValueError(f"unknown mark {kind!r}")
