"""The architectures that the engine computes: Qwen2, Qwen3 and Llama, as their config.json describes them.

They are one decoder (rotary positions, RMS norms, gated feed-forward layers, grouped-query attention) and differ in
biases, in norms of queries and keys by head, and in how rotary positions are scaled. Others are refused.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from chimera.core.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

FAMILIES: Mapping[str, str] = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}
"""Values of model_type, and their names."""
ELSEWHERE = (
    "serve it elsewhere (with vLLM, or with llama.cpp's server, which Ollama runs too) and use kind: endpoint; "
    "docs/models.md says how"
)


class RopeScaling(BaseModel):
    """Llama 3's scaling of rotary frequencies: long wavelengths are stretched by `factor`, short ones stay."""

    model_config = ConfigDict(allow_inf_nan=False, frozen=True)

    factor: float = Field(gt=0)
    low_freq_factor: float = Field(gt=0)
    high_freq_factor: float = Field(gt=0)
    original_max_position_embeddings: int = Field(ge=2)

    @model_validator(mode="after")
    def _ordered(self) -> "RopeScaling":
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError("high_freq_factor must be larger than low_freq_factor")
        return self


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model that a forward pass needs.

    Attributes:
        qkv_bias: Query, key and value have biases (Qwen2).
        out_bias: The attention's output has one too (Llama and Qwen3 with attention_bias).
        head_norms: Queries and keys are normalised by head (Qwen3).
        rope_scaling: None if rotary frequencies are not scaled.
    """

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
    qkv_bias: bool = True
    out_bias: bool = False
    head_norms: bool = False
    rope_scaling: RopeScaling | None = None

    def rotary_frequencies(self) -> "Tensor":
        """Angle by which each pair of numbers of a head turns from one position to the next: (D / 2,) float32."""
        import torch

        plain = 1.0 / self.rope_theta ** (torch.arange(0, self.head_dim, 2).float() / self.head_dim)
        scaling = self.rope_scaling
        if scaling is None:
            return plain
        # How often a wave fits into the length that the model was first trained on tells how far it is stretched.
        fits = scaling.original_max_position_embeddings * plain / (2 * math.pi)
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        weight = ((fits - low) / (high - low)).clamp(0, 1)
        return weight * plain + (1 - weight) * plain / scaling.factor


class _Sizes(BaseModel):
    """What is read of a config.json; other keys are left alone."""

    model_config = ConfigDict(allow_inf_nan=False)

    vocab_size: int = Field(ge=1, le=10_000_000)
    hidden_size: int = Field(ge=1, le=1_000_000)
    num_hidden_layers: int = Field(ge=1, le=10_000)
    num_attention_heads: int = Field(ge=1, le=100_000)
    num_key_value_heads: int | None = Field(default=None, ge=1, le=100_000)
    head_dim: int | None = Field(default=None, ge=2, le=100_000, multiple_of=2)
    rope_theta: float | None = Field(default=None, gt=0)
    rms_norm_eps: float = Field(default=1e-6, gt=0, lt=1)
    max_position_embeddings: int = Field(default=32_768, ge=2, le=100_000_000)
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    rope_scaling: RopeScaling | None = None


def family_of(name: object, place: Path) -> str:
    """The name of a model's architecture; raises ConfigError if the embedded server does not run it."""
    if not isinstance(name, str) or name not in FAMILIES:
        raise ConfigError(
            f"the embedded server runs {', '.join(FAMILIES.values())} models, and {place} holds {name!r}: {ELSEWHERE}"
        )
    return name


def read_shape(settings: dict[str, Any], folder: Path) -> Shape:
    """The model's sizes from its config.json.

    Raises:
        ConfigError: The engine cannot compute this model, or a size is missing or wrong.
    """
    family = family_of(settings.get("model_type"), folder)
    rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    _refuse_other_parts(settings, rope, family, folder)
    sizes = _sizes(settings, rope, folder)
    heads = sizes.num_attention_heads
    kv_heads = sizes.num_key_value_heads or heads
    # transformers takes 128 for a Qwen3 model that does not say it.
    head_dim = sizes.head_dim or (128 if family == "qwen3" else sizes.hidden_size // heads)
    derived = sizes.head_dim is None and family != "qwen3"
    if heads % kv_heads or (derived and sizes.hidden_size % heads) or head_dim % 2:
        raise ConfigError(
            f"{folder / 'config.json'}: {heads} attention heads, {kv_heads} key/value heads and a hidden size of "
            f"{sizes.hidden_size} do not fit each other: was it saved with these weights?"
        )
    return Shape(
        vocab=sizes.vocab_size,
        hidden=sizes.hidden_size,
        layers=sizes.num_hidden_layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rope_theta=sizes.rope_theta or 10_000.0,
        norm_eps=sizes.rms_norm_eps,
        max_positions=sizes.max_position_embeddings,
        tied=sizes.tie_word_embeddings,
        qkv_bias=family == "qwen2" or sizes.attention_bias,
        out_bias=family != "qwen2" and sizes.attention_bias,
        head_norms=family == "qwen3",
        rope_scaling=sizes.rope_scaling,
    )


def _refuse_other_parts(settings: Mapping[str, Any], rope: Any, family: str, folder: Path) -> None:
    """Refuse settings of a known family that the engine does not compute."""
    kind, activation = _rope_type(rope), settings.get("hidden_act", "silu")
    kinds = ("default", "llama3") if family == "llama" else ("default",)
    parts = {
        f"scales its rotary positions ({kind!r}), which is": kind not in kinds,
        "uses sliding-window attention, which is": settings.get("use_sliding_window"),
        "has biases in its feed-forward layers, which are": settings.get("mlp_bias"),
        f"uses the activation {activation!r}, which is": activation != "silu",
        "holds quantised weights, which are": settings.get("quantization_config"),
    }
    for part, there in parts.items():
        if there:
            raise ConfigError(f"{folder} {part} not supported: {ELSEWHERE}")


def _rope_type(rope: Any) -> Any:
    return rope.get("rope_type", rope.get("type", "default")) if isinstance(rope, dict) else rope


def _sizes(settings: Mapping[str, Any], rope: Any, folder: Path) -> _Sizes:
    """The numbers of a config.json; raises ConfigError if a value is missing, no number, or out of range."""
    theta = (rope.get("rope_theta") if isinstance(rope, dict) else None) or settings.get("rope_theta")
    scaling = rope if _rope_type(rope) == "llama3" else None
    try:
        return _Sizes.model_validate({**settings, "rope_theta": theta, "rope_scaling": scaling})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        *_, name = map(str, first["loc"])
        there: Mapping[str, Any] = rope if first["loc"][0] == "rope_scaling" else settings
        state = f"is {str(there[name])[:40]}" if name in there else "is missing"
        raise ConfigError(
            f"{folder / 'config.json'}: {name} {state} ({first['msg']}): was it saved with these weights?"
        ) from error


def expected_tensors(shape: Shape, sizes: Mapping[str, Sequence[int]]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and sizes of all tensors. A generator, because config.json can name more layers than memory holds."""
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield "model.embed_tokens.weight", (shape.vocab, shape.hidden)
    yield "model.norm.weight", (shape.hidden,)
    if not shape.tied:
        yield "lm_head.weight", (shape.vocab, shape.hidden)
    for layer in range(shape.layers):
        at = f"model.layers.{layer}."
        yield f"{at}input_layernorm.weight", (shape.hidden,)
        yield f"{at}post_attention_layernorm.weight", (shape.hidden,)
        for part, width in (("q", q), ("k", kv), ("v", kv)):
            yield f"{at}self_attn.{part}_proj.weight", (width, shape.hidden)
            if shape.qkv_bias:
                yield f"{at}self_attn.{part}_proj.bias", (width,)
        if shape.head_norms:
            yield f"{at}self_attn.q_norm.weight", (shape.head_dim,)
            yield f"{at}self_attn.k_norm.weight", (shape.head_dim,)
        yield f"{at}self_attn.o_proj.weight", (shape.hidden, q)
        if shape.out_bias:
            yield f"{at}self_attn.o_proj.bias", (shape.hidden,)
        inner = next(iter(sizes.get(f"{at}mlp.gate_proj.weight", ())), 0)
        yield f"{at}mlp.gate_proj.weight", (inner, shape.hidden)
        yield f"{at}mlp.up_proj.weight", (inner, shape.hidden)
        yield f"{at}mlp.down_proj.weight", (shape.hidden, inner)
