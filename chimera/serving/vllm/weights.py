"""A folder with a model as vLLM reloads it truly.

vLLM 0.32 leaves a head that is tied to the embedding as it was when weights are reloaded, without a word. So such a
model is served with a head of its own. All other files are links: nothing large is copied.
"""

import json
import shutil
from pathlib import Path

from chimera.core.errors import ConfigError
from chimera.core.files import read_json_object
from chimera.serving.embedded.checkpoint import MORE_TEMPLATES, WEIGHTS, WEIGHTS_INDEX, check_trainable

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
    try:
        settings = read_json_object(source / CONFIG)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{source / CONFIG} cannot be read ({error}): save the model again") from error
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
    from safetensors import SafetensorError, safe_open

    file = folder / WEIGHTS
    try:
        if not file.is_file():
            return dict(read_json_object(folder / WEIGHTS_INDEX)["weight_map"])
        with safe_open(file, framework="pt") as tensors:
            return dict.fromkeys(tensors.keys(), file.name)
    except (SafetensorError, OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read ({error}): save the model again") from error


def _of(places: dict[str, str], tensor: str, folder: Path) -> str:
    if tensor not in places:
        raise ConfigError(f"{folder} lacks the tensor {tensor}: was a whole model saved?")
    return places[tensor]


def _write_head(source: Path, target: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    with safe_open(source, framework="pt") as tensors:
        save_file({HEAD: tensors.get_tensor(EMBEDDING).contiguous()}, target, {"format": "pt"})
