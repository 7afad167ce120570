"""A folder with a model as vLLM reloads it truly.

vLLM 0.32 leaves a head that is tied to the embedding as it was when weights are reloaded, without a word. So such a
model is served with a head of its own. All other files are links: nothing large is copied.
"""

import json
import shutil
from pathlib import Path

from chimera.core.errors import ConfigError
from chimera.serving.embedded.checkpoint import (
    MORE_TEMPLATES,
    WEIGHTS,
    WEIGHTS_INDEX,
    check_trainable,
    open_weights,
    read_settings,
)

CONFIG = "config.json"
BESIDE = ("*.json", "*.jinja", MORE_TEMPLATES, "*.txt", "*.model")
"""The files beside the weights that vLLM reads."""
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
HEAD_FILE = "lm_head.safetensors"


def prepare(source: Path, target: Path) -> Path:
    """Make `target` a folder of links to the model in `source`, with a head of its own; returns `target`.

    Raises:
        ConfigError: `source` holds no model, or its weights are a pickle.
    """
    check_trainable(source)
    settings = read_settings(source / CONFIG)
    places = _places(source)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    further = {file for pattern in BESIDE for file in source.glob(pattern)} - {source / CONFIG, source / WEIGHTS_INDEX}
    for file in further | {source / name for name in places.values()}:
        (target / file.relative_to(source)).parent.mkdir(exist_ok=True)
        (target / file.relative_to(source)).symlink_to(file.resolve())
    if HEAD not in places:
        _write_head(source / _of(places, EMBEDDING, source), target / HEAD_FILE)
        places[HEAD] = HEAD_FILE
    (target / CONFIG).write_text(json.dumps(settings | {"tie_word_embeddings": False}))
    (target / WEIGHTS_INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return target


def _places(folder: Path) -> dict[str, str]:
    """The file of each tensor, as transformers finds it."""
    file = folder / WEIGHTS
    if not file.is_file():
        return dict(read_settings(folder / WEIGHTS_INDEX)["weight_map"])
    with open_weights(file, "np") as tensors:
        return dict.fromkeys(tensors.keys(), file.name)


def _of(places: dict[str, str], tensor: str, folder: Path) -> str:
    if tensor not in places:
        raise ConfigError(f"{folder} lacks the tensor {tensor}: was a whole model saved?")
    return places[tensor]


def _write_head(source: Path, target: Path) -> None:
    from safetensors.torch import save_file

    with open_weights(source, "pt") as tensors:
        head = tensors.get_tensor(EMBEDDING).contiguous()
    save_file({HEAD: head}, target, {"format": "pt"})
