"""The bundled models are toys that know invented studies only. Users who give them real questions are warned."""

from collections.abc import Mapping
from pathlib import Path

from chimera.config.sections.models import ModelConfig
from chimera.core.files import read_json_object
from chimera.core.types import Source

ASSETS = Path(__file__).parents[2] / "assets"
NANO = ASSETS / "nano"
BUNDLED = ("nano", "nano_review")
NAMED = ("smollm2",)
"""Names of the models that are fetched at their first use."""
SAME_SIZES = ("hidden_size", "num_hidden_layers", "vocab_size")
"""Sizes in config.json by which weights trained from the bundled model are recognised."""
TEMPLATE = "chat_template.jinja"
FIRST_LINE = "message.content.split('\\n')[0]"
"""What the template of models that read only the first line of a system prompt does with it."""


def toy_parts(models: Mapping[str, ModelConfig]) -> list[str]:
    """The slots that the bundled model plays, either as shipped or after training."""
    return [key for key, model in models.items() if model.has_weights and is_bundled(model.path)]


def is_bundled(path: str) -> bool:
    """True if the model at `path` is the bundled one, or has exactly its sizes and so was trained from it."""
    return path in BUNDLED or _sizes(Path(path).expanduser()) == _sizes(NANO)


def heeds_guidance(path: str) -> bool:
    """False for the bundled models, and what was trained from them, unless their chat template was changed.

    It shows only the first line of a system prompt, and they never saw lessons, examples or skills.
    """
    if not is_bundled(path):
        return True
    template = (ASSETS / path if path in BUNDLED else Path(path).expanduser()) / TEMPLATE
    # A template may also stand in tokenizer_config.json, but not that of the bundled models.
    return not template.is_file() or FIRST_LINE not in template.read_text(encoding="utf-8")


def unread(models: Mapping[str, ModelConfig], source: Source) -> str | None:
    """Says that the bundled model understands no real task; None if `source` is generated, or if it plays no slot."""
    parts = toy_parts(models) if source != "generated" else []
    if not parts:
        return None
    return (
        f"the bundled model plays {', '.join(parts)}: a toy that knows invented studies only. Real ones it does not "
        "understand, so its answers to them are as good as chance, and figures say nothing about medicine: name a real "
        "model, models.junior.path=FOLDER, or take --config configs/endpoint.yaml"
    )


def _sizes(folder: Path) -> list[object] | None:
    try:
        config = read_json_object(folder / "config.json")
    except (OSError, ValueError):
        return None  # This folder holds no model; loading it raises the error.
    return [config.get(name) for name in SAME_SIZES]
