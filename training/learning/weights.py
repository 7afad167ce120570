"""Exports plain Hugging Face weights from a training engine, and writes model folders whole or not at all."""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chimera.core.errors import RunError

if TYPE_CHECKING:
    from torch import Tensor, nn

COPIED = ("*.json", "*.jinja", "*.txt", "*.model")
"""Files of a model folder beside its weights: settings, tokenizer, chat template."""


def plain_weights(module: "nn.Module") -> "dict[str, Tensor]":
    """A copy of a model's weights in float32 by their Hugging Face names, with merged LoRA adapters.

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
            return {name: value.cpu().clone() for name, value in state.items()}
        adapter = adapters["default"]
        scale = adapter.lora_alpha / (adapter.r**0.5 if adapter.use_rslora else adapter.r)
        plain: dict[str, Tensor] = {}
        for name, value in state.items():
            if ".lora_" in name:
                continue
            if name.endswith(".base_layer.weight"):
                layer = name.removesuffix(".base_layer.weight")
                up, down = (state[f"{layer}.lora_{side}.default.weight"] for side in ("B", "A"))
                value = value + scale * (up @ down)
            plain[name.removeprefix("base_model.model.").replace(".base_layer.", ".")] = value.cpu().clone()
        return plain


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


def write_model(folder: Path, weights: "Mapping[str, Tensor]", source: Path) -> None:
    """Write a model folder: `weights`, with settings, tokenizer and chat template of the folder `source`.

    The folder appears whole or not at all. An existing folder is replaced.

    Raises:
        RunError: The embeddings are tied in `source` and the weights hold two different ones, or the disk is full.
    """
    import torch

    settings = json.loads((source / "config.json").read_text(encoding="utf-8"))
    kept = dict(weights)
    if settings.get("tie_word_embeddings") and "lm_head.weight" in kept:
        head = kept.pop("lm_head.weight")
        if not torch.equal(head, kept["model.embed_tokens.weight"]):
            raise RunError(f"the model of {source} ties its embeddings, and training has set them apart: not exported")
    with whole_folder(folder) as draft:
        for pattern in COPIED:
            for file in sorted(source.glob(pattern)):
                if not file.name.endswith(".index.json"):
                    shutil.copyfile(file, draft / file.name)
        settings.pop("torch_dtype", None)
        settings["dtype"] = "float32"
        (draft / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        whole = {name: value.contiguous() for name, value in kept.items()}
        write_tensors(whole, draft / "model.safetensors", {"format": "pt"})


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
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    try:
        yield draft
        if folder.exists():
            folder.replace(former)
        draft.replace(folder)
        shutil.rmtree(former, ignore_errors=True)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
