"""A model folder read from disk: shape, weights, tokenizer, chat template and end-of-sequence tokens.

Only `config.json`, `*.safetensors`, `tokenizer.json` and the chat template are read; transformers is not imported,
which saves seconds at start-up.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chimera.errors import ConfigError

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import Tensor

NANO = Path(__file__).parent.parent / "assets" / "nano"
TOKENIZER_FILE = "tokenizer.json"
HUB_FILES = ["*.json", "*.safetensors", "*.jinja"]


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a Qwen2 model that a forward pass needs."""

    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rope_theta: float
    norm_eps: float
    max_positions: int
    tied: bool


@dataclass(frozen=True, slots=True)
class Language:
    """How a model reads and writes text: its tokenizer, its chat template, and the ids that end an answer."""

    tokenizer: "Tokenizer" = field(repr=False)
    template: str = field(repr=False)
    eos: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything the server needs of one model folder; `weights` are float32 by their Hugging Face names."""

    name: str
    folder: Path
    shape: Shape
    weights: "dict[str, Tensor]" = field(repr=False)
    tokenizer: "Tokenizer" = field(repr=False)
    template: str = field(repr=False)
    eos: tuple[int, ...]


def locate(path: str) -> Path:
    """The folder behind a configured model path: 'nano', a local folder, or a hub name (downloaded if need be).

    Raises:
        ConfigError: the folder or hub model cannot be found or fetched.
    """
    if path == "nano":
        if not (NANO / "config.json").is_file():
            raise ConfigError(
                f"the bundled model is missing from {NANO}: reinstall the package or run python -m training.nano"
            )
        return NANO
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    if folder.is_absolute() or path.startswith((".", "~")) or path.count("/") != 1:
        raise ConfigError(
            f"models.*.path {path!r} is no folder: give 'nano', a folder with config.json, or an owner/name of the hub"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(path, allow_patterns=HUB_FILES))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"models.*.path {path!r} is no local folder and cannot be fetched from the hub ({type(error).__name__}: "
            f"{reason}): download it once with the network on, or use 'nano'"
        ) from error


def load_checkpoint(path: str) -> Checkpoint:
    """Read the model behind a configured path; see `locate`.

    Raises:
        ConfigError: a file is missing or broken, or the architecture is not Qwen2.
    """
    folder = locate(path)
    settings = _read_json(folder / "config.json")
    shape = read_shape(settings, folder)
    language = load_language(folder)
    size = language.tokenizer.get_vocab_size(with_added_tokens=True)
    if size > shape.vocab:
        raise ConfigError(
            f"{folder / TOKENIZER_FILE} has {size} tokens, but the model in {folder} embeds only "
            f"{shape.vocab}: use the tokenizer that the model was trained with"
        )
    return Checkpoint(
        name=path if folder == NANO else path.rstrip("/").rpartition("/")[-1],
        folder=folder,
        shape=shape,
        weights=load_weights(folder, shape),
        tokenizer=language.tokenizer,
        template=language.template,
        eos=language.eos,
    )


def load_language(folder: Path) -> Language:
    """The part of a model folder that needs no weights.

    Raises:
        ConfigError: a file is missing or broken.
    """
    from tokenizers import Tokenizer

    file = folder / TOKENIZER_FILE
    if not file.is_file():
        raise ConfigError(f"{folder} has no {TOKENIZER_FILE}: save the model's fast tokenizer beside its weights")
    tokenizer = Tokenizer.from_file(str(file))
    settings = _read_json(folder / "config.json")
    tokenizer_settings = _read_json(folder / "tokenizer_config.json", optional=True)
    return Language(
        tokenizer, _template(folder, tokenizer_settings), _eos(folder, settings, tokenizer_settings, tokenizer)
    )


def read_shape(settings: dict[str, Any], folder: Path) -> Shape:
    """The model's sizes from its config.json; anything that the engine would compute wrongly is refused."""
    kind = settings.get("model_type")
    remedy = "serve it elsewhere (for example with vLLM or Ollama) and use kind: endpoint"
    if kind != "qwen2":
        raise ConfigError(f"the embedded server runs Qwen2 models, and {folder} holds model_type {kind!r}: {remedy}")
    rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type != "default":
        raise ConfigError(f"{folder} scales its rotary positions ({rope_type!r}), which is not supported: {remedy}")
    if settings.get("use_sliding_window"):
        raise ConfigError(f"{folder} uses sliding-window attention, which is not supported: {remedy}")
    if settings.get("hidden_act", "silu") != "silu":
        raise ConfigError(f"{folder} uses the activation {settings['hidden_act']!r}, which is not supported: {remedy}")
    heads = settings["num_attention_heads"]
    return Shape(
        vocab=settings["vocab_size"],
        hidden=settings["hidden_size"],
        layers=settings["num_hidden_layers"],
        heads=heads,
        kv_heads=settings.get("num_key_value_heads") or heads,
        head_dim=settings.get("head_dim") or settings["hidden_size"] // heads,
        rope_theta=float(rope.get("rope_theta") or settings.get("rope_theta") or 10_000.0),
        norm_eps=settings.get("rms_norm_eps", 1e-6),
        max_positions=settings.get("max_position_embeddings", 32_768),
        tied=settings.get("tie_word_embeddings", False),
    )


def load_weights(folder: Path, shape: Shape) -> "dict[str, Tensor]":
    """All tensors of a folder's safetensors files in float32, checked against `shape`.

    Raises:
        ConfigError: no or broken safetensors files, or a tensor is missing or has another size.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ConfigError(f"{folder} has no *.safetensors file: save the model with save_pretrained")
    weights: dict[str, Tensor] = {}
    for file in files:
        try:
            weights.update({name: tensor.float() for name, tensor in load_file(file).items()})
        except (SafetensorError, OSError) as error:
            raise ConfigError(f"{file} cannot be read ({error}): save the model again") from error
    for name, size in _expected(shape).items():
        if name not in weights:
            raise ConfigError(f"{folder} lacks the tensor {name}: was a whole Qwen2 model saved?")
        if tuple(weights[name].shape) != size:
            raise ConfigError(f"{folder}: {name} is {tuple(weights[name].shape)}, and config.json says {size}")
    return weights


def _expected(shape: Shape) -> dict[str, tuple[int, ...]]:
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    sizes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (shape.vocab, shape.hidden),
        "model.norm.weight": (shape.hidden,),
    }
    if not shape.tied:
        sizes["lm_head.weight"] = (shape.vocab, shape.hidden)
    for layer in range(shape.layers):
        at = f"model.layers.{layer}."
        sizes[f"{at}input_layernorm.weight"] = sizes[f"{at}post_attention_layernorm.weight"] = (shape.hidden,)
        for part, width in (("q", q), ("k", kv), ("v", kv)):
            sizes[f"{at}self_attn.{part}_proj.weight"] = (width, shape.hidden)
            sizes[f"{at}self_attn.{part}_proj.bias"] = (width,)
        sizes[f"{at}self_attn.o_proj.weight"] = (shape.hidden, q)
    return sizes


def _template(folder: Path, tokenizer_settings: dict[str, Any]) -> str:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = tokenizer_settings.get("chat_template")
    if not isinstance(template, str):
        raise ConfigError(
            f"{folder} has no chat template (chat_template.jinja or tokenizer_config.json): it cannot chat"
        )
    return template


def _eos(
    folder: Path, settings: dict[str, Any], tokenizer_settings: dict[str, Any], tokenizer: "Tokenizer"
) -> tuple[int, ...]:
    """Ids that end an answer: the generation config's (else the config's) and the tokenizer's own."""
    generation = _read_json(folder / "generation_config.json", optional=True)
    listed = generation.get("eos_token_id", settings.get("eos_token_id"))
    ids = [] if listed is None else listed if isinstance(listed, list) else [listed]
    token = tokenizer_settings.get("eos_token")
    token = token.get("content") if isinstance(token, dict) else token
    if token is not None and (own := tokenizer.token_to_id(token)) is not None:
        ids = [own, *ids]
    if not ids:
        raise ConfigError(f"{folder} names no eos token in generation_config, config or tokenizer_config")
    return tuple(dict.fromkeys(ids))


def _read_json(file: Path, *, optional: bool = False) -> dict[str, Any]:
    if optional and not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{file} is missing: a model folder needs it") from error
    except ValueError as error:
        raise ConfigError(f"{file} is not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{file} must hold a JSON object, not a {type(value).__name__}")
    return value
