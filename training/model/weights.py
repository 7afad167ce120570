"""Exports plain Hugging Face weights from a training engine, and writes model folders whole or not at all.

Weights that were learned as LoRA adapters are merged, and the adapter lies beside them in PEFT's format.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chimera.core.errors import RunError
from chimera.serving.embedded.checkpoint import MORE_TEMPLATES
from chimera.serving.vllm.adapters import ADAPTER, BASE, SETTINGS, TENSORS

if TYPE_CHECKING:
    from torch import Tensor, nn

COPIED = ("*.json", "*.jinja", MORE_TEMPLATES, "*.txt", "*.model")
"""Files of a model folder beside its weights: settings, tokenizer, chat templates."""


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """A LoRA adapter in PEFT's format: its settings, and its tensors A (rank, inputs) and B (outputs, rank).

    `beside` is the type of the weights that it was learned beside, such as "float32".
    """

    beside: str
    settings: Mapping[str, Any]
    tensors: "Mapping[str, Tensor]"


def plain_weights(module: "nn.Module") -> "tuple[dict[str, Tensor], LoraAdapter | None]":
    """A copy of a model's weights in float32 by their Hugging Face names, with merged LoRA adapters; and the adapter.

    VeRL 0.9.1's exports either write adapters under names that load wrongly without an error, or round the merged
    weights to bfloat16. The merge is W + s B A with s = alpha / rank (Hu et al. 2021, section 4.1), or
    alpha / sqrt(rank) for rank-stabilised LoRA.
    """
    import torch
    from torch.distributed.tensor import DTensor

    with torch.no_grad():
        state: dict[str, Tensor] = {
            name: (value.full_tensor() if isinstance(value, DTensor) else value).detach().float().cpu()
            for name, value in module.state_dict().items()
        }
        adapters: Any = getattr(module, "peft_config", None)
        if not adapters:
            return {name: value.cpu().clone() for name, value in state.items()}, None
        adapter = adapters["default"]
        scale = adapter.lora_alpha / (adapter.r**0.5 if adapter.use_rslora else adapter.r)
        plain: dict[str, Tensor] = {}
        tensors: dict[str, Tensor] = {}
        for name, value in state.items():
            if ".lora_" in name:
                tensors[name.replace(".default.weight", ".weight")] = value.clone()
                continue
            if name.endswith(".base_layer.weight"):
                layer = name.removesuffix(".base_layer.weight")
                up, down = (state[f"{layer}.lora_{side}.default.weight"] for side in ("B", "A"))
                value = value + scale * (up @ down)
            plain[name.removeprefix("base_model.model.").replace(".base_layer.", ".")] = value.cpu().clone()
        dtype = next(value.dtype for name, value in module.named_parameters() if name.endswith(".base_layer.weight"))
        return plain, LoraAdapter(str(dtype).removeprefix("torch."), _settings(adapter, tensors), tensors)


def _settings(adapter: Any, tensors: "Mapping[str, Tensor]") -> dict[str, Any]:
    """What PEFT and vLLM need to know of an adapter."""
    return {
        **{"peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none", "inference_mode": True},
        **{"r": adapter.r, "lora_alpha": adapter.lora_alpha, "use_rslora": adapter.use_rslora},
        "target_modules": sorted({name.split(".lora_")[0].rpartition(".")[2] for name in tensors}),
    }


def gather_weights(module: "nn.Module") -> None:
    """Take part in another rank's `plain_weights`, which needs every rank's part of each tensor; keep nothing."""
    from torch.distributed.tensor import DTensor

    for value in module.state_dict().values():
        if isinstance(value, DTensor):
            value.full_tensor()


def copy_model(source: Path, folder: Path) -> None:
    """Copy the files of a model folder, whole or not at all; an existing folder is replaced."""
    with whole_folder(folder) as draft:
        for file in sorted(source.iterdir()):
            if file.is_file():
                shutil.copyfile(file, draft / file.name)


def write_model(
    folder: Path, weights: "Mapping[str, Tensor]", source: Path, adapter: LoraAdapter | None = None
) -> None:
    """Write a model folder: `weights`, with settings, tokenizer and chat template of the folder `source`.

    The folder appears whole or not at all. An existing folder is replaced.

    Args:
        adapter: What made these weights of those in `source`, to be written beside them; unless the learner had rounded
            those, so that with the adapter they are others than `weights`.

    Raises:
        RunError: The embeddings are tied in `source` and the weights hold two different ones, or the disk is full.
    """
    import torch

    settings = json.loads((source / "config.json").read_text(encoding="utf-8"))
    tensors = dict(weights)
    if settings.get("tie_word_embeddings") and "lm_head.weight" in tensors:
        head = tensors.pop("lm_head.weight")
        if not torch.equal(head, tensors["model.embed_tokens.weight"]):
            raise RunError(f"the model of {source} ties its embeddings, and training has set them apart: not exported")
    saved_as = settings.pop("torch_dtype", None)  # The name of transformers 4.
    exact = adapter is not None and adapter.beside in ("float32", settings.get("dtype") or saved_as)
    with whole_folder(folder) as draft:
        for pattern in COPIED:
            for file in sorted(source.glob(pattern)):
                if not file.name.endswith(".index.json"):
                    (draft / file.relative_to(source)).parent.mkdir(exist_ok=True)
                    shutil.copyfile(file, draft / file.relative_to(source))
        settings["dtype"] = "float32"
        (draft / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        whole = {name: value.contiguous() for name, value in tensors.items()}
        write_tensors(whole, draft / "model.safetensors", {"format": "pt"})
        if adapter is not None and exact:
            adapter_folder = draft / ADAPTER
            adapter_folder.mkdir()
            content = json.dumps({**adapter.settings, BASE: str(source.absolute())}, indent=2)
            (adapter_folder / SETTINGS).write_text(content + "\n", encoding="utf-8")
            write_tensors(adapter.tensors, adapter_folder / TENSORS, {"format": "pt"})


def write_tensors(tensors: "Mapping[str, Tensor]", file: Path, metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file; raises RunError if it cannot be written, for example because the disk is full."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(dict(tensors), file, metadata)
    except (SafetensorError, OSError) as error:
        raise RunError(f"{file} cannot be written ({error}): make room there and continue with --resume") from error


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A draft folder that replaces `folder` at the end. After an error `folder` is unchanged."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft, former = (folder.with_name(f".{folder.name}.{state}") for state in ("draft", "former"))
    for left in (draft, former):  # by a kill
        shutil.rmtree(left, ignore_errors=True)
    draft.mkdir()
    try:
        yield draft
        if folder.exists():
            folder.replace(former)
        draft.replace(folder)
        shutil.rmtree(former, ignore_errors=True)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
