"""Reads a model folder: weights, tokenizer, chat template and end-of-sequence tokens; `shapes` reads the sizes.

Only `config.json`, `*.safetensors`, `tokenizer.json` and the chat template are read; transformers is not imported,
which saves seconds at start-up.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from chimera.config.sections.bundled import ASSETS, BUNDLED, NAMED
from chimera.config.sections.models import Precision
from chimera.core.errors import ConfigError
from chimera.core.files import parse_json
from chimera.serving.embedded.protocol import Sampling
from chimera.serving.embedded.sources.shapes import Shape, expected_tensors, read_shape

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer
    from torch import Tensor

TOKENIZER_FILE = "tokenizer.json"
HUB_FILES = ["*.json", "*.safetensors", "*.jinja"]
TEMPLATE_FILE, MORE_TEMPLATES = "chat_template.jinja", "additional_chat_templates/*.jinja"
TOOL_TEMPLATE = "tool_use"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt")
"""Weight files that can run code when they are read. They are never read."""
GENERATION = "generation_config.json"
SUFFIX = ".safetensors"
MARKS = ("bos_token", "eos_token", "pad_token", "unk_token")
"""What tokenizer_config.json calls the control tokens that chat templates may name."""
BYTES: Mapping[Precision, int] = {"float32": 4, "bfloat16": 2}
"""Bytes of one number."""
WEIGHTS, WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"
"""The names by which transformers finds safetensors. Without them it would look for pickles."""


@dataclass(frozen=True, slots=True)
class Language:
    """How a model reads and writes text: its tokenizer, its chat template, and the ids that end an answer.

    `marks` are the control tokens that templates name, such as Llama's bos_token, by these names. `sampling` is how
    the model's makers sample it.
    """

    tokenizer: "Tokenizer" = field(repr=False)
    template: str = field(repr=False)
    eos: tuple[int, ...]
    marks: Mapping[str, str]
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Checkpoint(Language):
    """Everything the server needs of one model folder; `weights` are by their Hugging Face names."""

    name: str
    folder: Path
    shape: Shape
    weights: "dict[str, Tensor]" = field(repr=False)


def locate(path: str) -> Path:
    """The folder behind a configured path: a bundled model's, a local one, or one in the cache.

    A model of `NAMED` or of the hub is downloaded at its first use, a GGUF file converted.

    Raises:
        ConfigError: the folder, file or model cannot be found, read or fetched.
    """
    if path in BUNDLED:
        if not (ASSETS / path / "config.json").is_file():
            raise ConfigError(f"the bundled model is missing from {ASSETS / path}: reinstall the package")
        return ASSETS / path
    from chimera.serving.embedded.sources.gguf_file import gguf_folder, is_gguf
    from chimera.serving.embedded.sources.named import named_model

    if path in NAMED:
        return named_model(path)
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    if is_gguf(folder):
        return gguf_folder(folder)
    if folder.exists():
        raise ConfigError(
            f"models.*.path {path!r} is a file, and no GGUF file: give the folder that holds the model's config.json"
        )
    if folder.is_absolute() or path.startswith((".", "~")) or path.count("/") != 1:
        raise ConfigError(
            f"models.*.path {path!r} is no folder: give {', '.join((*BUNDLED, *NAMED))}, a folder with config.json, a "
            "GGUF file, or an owner/name of the hub"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(path, allow_patterns=HUB_FILES))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:  # ValueError: no name of the hub
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"models.*.path {path!r} is no local folder and cannot be fetched from the hub ({type(error).__name__}: "
            f"{reason}): download it once with the network on, or use 'nano'"
        ) from error


def load_checkpoint(path: str, dtype: Precision = "float32") -> Checkpoint:
    """Read the model behind a configured path, with weights of `dtype`; see `locate`.

    Raises:
        ConfigError: a file is missing or broken, the engine does not compute the architecture, or memory cannot hold
            the weights.
    """
    folder, shape, language = _without_weights(path)
    return Checkpoint(
        name=path if path in BUNDLED else path.rstrip("/").rpartition("/")[-1],
        folder=folder,
        shape=shape,
        weights=load_weights(folder, shape, dtype),
        **{each.name: getattr(language, each.name) for each in fields(language)},
    )


def check_checkpoint(path: str, dtype: Precision) -> list[str]:
    """Refuse what the server refuses, by the names and sizes of the weights, without reading them.

    Returns:
        Sentences on how the model's chat template is used, if that is not as it was made.

    Raises:
        ConfigError: see `load_checkpoint`; or the tokenizer or chat template is misread.
    """
    folder, shape, language = _without_weights(path)
    _check_weights(folder, shape, dtype)
    if path in BUNDLED:
        return []
    from chimera.serving.embedded.trial import tried

    chat, _ = tried(language, shape.vocab, folder)
    return [f"{folder}: {sentence}" for sentence in chat.manners.sentences()]


def _without_weights(path: str) -> tuple[Path, Shape, Language]:
    folder = locate(path)
    refuse_adapter(folder)
    shape = read_shape(read_settings(folder / "config.json"), folder)
    language = load_language(folder)
    size = language.tokenizer.get_vocab_size(with_added_tokens=True)
    if size > shape.vocab:
        raise ConfigError(
            f"{folder / TOKENIZER_FILE} has {size} tokens, but the model in {folder} embeds only "
            f"{shape.vocab}: use the tokenizer that the model was trained with"
        )
    return folder, shape, language


def load_language(folder: Path) -> Language:
    """Load the parts of a model folder that need no weights; raises ConfigError if a file is missing or broken."""
    from tokenizers import Tokenizer

    file = folder / TOKENIZER_FILE
    if not file.is_file():
        raise ConfigError(f"{folder} has no {TOKENIZER_FILE}: save the model's fast tokenizer beside its weights")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises no more specific class
        raise ConfigError(f"{file} cannot be read ({error}): save the model's tokenizer again") from error
    settings = read_settings(folder / "config.json")
    generation = read_settings(folder / GENERATION, optional=True)
    tokenizer_settings = read_settings(folder / "tokenizer_config.json", optional=True)
    return Language(
        tokenizer,
        _template(folder, tokenizer_settings),
        _eos(folder, settings | generation, tokenizer_settings, tokenizer),
        {name: mark for name in MARKS if (mark := _mark(tokenizer_settings.get(name))) is not None},
        _sampling(folder / GENERATION, generation),
    )


def refuse_adapter(folder: Path) -> None:
    """Refuse a folder with an adapter: transformers would load it, or another base model, instead of the weights.

    Raises:
        ConfigError: The folder holds an adapter.
    """
    if (folder / "adapter_config.json").exists():
        raise ConfigError(f"{folder} holds an adapter (adapter_config.json): merge it into its model and save that")


def check_trainable(folder: Path) -> None:
    """Make sure that transformers, with which training loads models, finds safetensors in the folder and no pickle.

    Raises:
        ConfigError: It would load other files.
    """
    refuse_adapter(folder)
    index = folder / WEIGHTS_INDEX
    if (folder / WEIGHTS).is_file():
        return
    if not index.is_file():
        raise ConfigError(_no_safetensors(folder))
    named = read_settings(index).get("weight_map")
    files = set(named.values()) if isinstance(named, dict) else {None}
    wrong = [
        name for name in files if not isinstance(name, str) or Path(name).name != name or Path(name).suffix != SUFFIX
    ]
    if wrong:
        raise ConfigError(f"{index} names {str(wrong[0])[:60]!r}, which is no safetensors file of its folder")


def _no_safetensors(folder: Path) -> str:
    pickles = sorted(file.name for pattern in PICKLES for file in folder.glob(pattern))
    if pickles:
        return (
            f"{folder} has no *.safetensors file, and {pickles[0]} is a pickle, which could run foreign code when it "
            "is read, so it is never read: have somebody whom you trust save the model as safetensors"
        )
    return f"{folder} has no *.safetensors file: save the model with save_pretrained"


def load_weights(folder: Path, shape: Shape, dtype: Precision = "float32") -> "dict[str, Tensor]":
    """All tensors of a folder's safetensors files as `dtype`, checked against `shape`.

    Raises:
        ConfigError: no or broken safetensors files, a tensor is missing or has another size, or they are larger than
            this machine's memory.
    """
    import torch

    _check_weights(folder, shape, dtype)
    weights: dict[str, Tensor] = {}
    for file in _weight_files(folder):
        with open_weights(file, "pt") as tensors:
            # One at a time: a file's numbers are not in memory twice. Copied, because the file may be replaced.
            for name in list(tensors.keys()):
                weights[name] = _plain(tensors.get_tensor(name), getattr(torch, dtype), name, file)
    return weights


def _weight_files(folder: Path) -> list[Path]:
    files = sorted(folder.glob(f"*{SUFFIX}"))
    if not files:
        raise ConfigError(_no_safetensors(folder))
    return files


def count_weights(folder: Path) -> int:
    """The number of weights in a folder's safetensors files; raises ConfigError for broken ones, or if it has none."""
    return sum(map(math.prod, _sizes(folder).values()))


def _sizes(folder: Path) -> dict[str, list[int]]:
    """The sizes of all tensors of a folder, from the headers of its files."""
    sizes: dict[str, list[int]] = {}
    for file in _weight_files(folder):
        with open_weights(file, "np") as tensors:
            sizes |= {name: tensors.get_slice(name).get_shape() for name in list(tensors.keys())}
    return sizes


@contextmanager
def open_weights(file: Path, framework: Literal["np", "pt"]) -> Iterator[Any]:
    """What safetensors reads of a file in the `with` block; raises ConfigError for a broken one."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework=framework) as tensors:
            yield tensors
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{file} cannot be read ({error}): save the model again") from error


def _check_weights(folder: Path, shape: Shape, dtype: Precision) -> None:
    """Refuse weights that are not those of `shape`, or together larger than this machine's memory."""
    import psutil

    sizes = _sizes(folder)
    need, memory = sum(map(math.prod, sizes.values())) * BYTES[dtype], psutil.virtual_memory().total
    if need > memory:
        raise ConfigError(
            f"{folder}: its weights need {need / 2**30:.0f} GiB as {dtype}, and this machine has "
            f"{memory / 2**30:.0f}: take a smaller model, models.*.dtype=bfloat16, or a server on another machine "
            "(kind: endpoint)"
        )
    for name, size in expected_tensors(shape, sizes):
        if name not in sizes:
            raise ConfigError(f"{folder} lacks the tensor {name}: was a whole model saved?")
        if tuple(sizes[name]) != size:
            raise ConfigError(f"{folder}: {name} is {tuple(sizes[name])}, and config.json says {size}")


def _plain(tensor: "Tensor", dtype: "torch.dtype", name: str, file: Path) -> "Tensor":
    """A copy of the tensor as `dtype`; raises ConfigError if it holds other than finite floating-point numbers."""
    if not tensor.is_floating_point():
        raise ConfigError(
            f"{file}: {name} holds {tensor.dtype}, not floating-point numbers: save the model unquantised"
        )
    plain = tensor.to(dtype, copy=True)
    if not plain.isfinite().all():
        raise ConfigError(f"{file}: {name} holds numbers that are not finite: the model is broken, take another copy")
    return plain


def _template(folder: Path, tokenizer_settings: dict[str, Any]) -> str:
    """The chat template; of several with names, `tool_use` where tools are offered and else `default`.

    As in transformers, the files of a folder count before what tokenizer_config.json holds.
    """
    files = {"default": folder / TEMPLATE_FILE} | {file.stem: file for file in folder.glob(MORE_TEMPLATES)}
    templates = {name: _read_template(file) for name, file in files.items() if file.is_file()}
    templates = templates or _named_templates(tokenizer_settings.get("chat_template"))
    if "default" not in templates:
        others = f" named 'default', only {', '.join(sorted(templates))}" if templates else ""
        raise ConfigError(
            f"{folder} has no chat template{others} ({TEMPLATE_FILE} or tokenizer_config.json): it cannot chat"
        )
    if TOOL_TEMPLATE not in templates:
        return templates["default"]
    # Jinja drops a line's end after a tag and one at the very end; "+" keeps the spaces before a tag.
    tools, plain = (templates[name].removesuffix("\n") for name in (TOOL_TEMPLATE, "default"))
    return f"{{% if tools %}}\n{tools}{{%+ else %}}\n{plain}{{%+ endif %}}"


def _named_templates(value: Any) -> dict[str, str]:
    """The chat templates in tokenizer_config.json by name: one text, a list of named ones, or texts by name."""
    if isinstance(value, list):
        value = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}
    named = value if isinstance(value, dict) else {"default": value}
    return {name: text for name, text in named.items() if isinstance(name, str) and isinstance(text, str)}


def _read_template(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read ({error}): save the model's tokenizer again") from error


def _mark(token: Any) -> str | None:
    """The text of a control token as tokenizer_config.json has it; None if it names none."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _eos(
    folder: Path, settings: dict[str, Any], tokenizer_settings: dict[str, Any], tokenizer: "Tokenizer"
) -> tuple[int, ...]:
    """Ids that end an answer: those of the generation config (or else of the config) and of the tokenizer."""
    listed = settings.get("eos_token_id")
    ids = [] if listed is None else listed if isinstance(listed, list) else [listed]
    token = _mark(tokenizer_settings.get("eos_token"))
    if token is not None and (token_id := tokenizer.token_to_id(token)) is not None:
        ids = [token_id, *ids]
    if not ids:
        raise ConfigError(f"{folder} names no eos token in generation_config, config or tokenizer_config")
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    wrong = [id_ for id_ in ids if isinstance(id_, bool) or not isinstance(id_, int) or not 0 <= id_ < size]
    if wrong:
        raise ConfigError(f"{folder} names {str(wrong[0])[:40]!r} as eos token, and its tokenizer has {size} tokens")
    return tuple(dict.fromkeys(ids))


def _sampling(file: Path, generation: Mapping[str, Any]) -> Sampling:
    """How the model's makers sample it; transformers heeds these settings only with do_sample."""
    if generation.get("do_sample") is not True:
        return Sampling()
    try:
        return Sampling.model_validate(generation)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigError(f"{file}: {first['loc'][0]} is {str(first['input'])[:40]}: {first['msg']}") from error


def read_settings(file: Path, *, optional: bool = False) -> dict[str, Any]:
    """The JSON object in a file of a model folder; raises ConfigError if there is none, unless it is `optional`."""
    if optional and not file.is_file():
        return {}
    try:
        value = parse_json(file.read_bytes())
    except FileNotFoundError as error:
        raise ConfigError(f"{file} is missing: a model folder needs it") from error
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{file} is not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{file} must hold a JSON object, not a {type(value).__name__}")
    return value
