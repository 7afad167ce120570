"""A model's numbers from its config.json: parameters, key/value cache, activations, operations. Pure functions."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from chimera.core.errors import ConfigError
from chimera.core.plain_json import read_json_object
from training.engines.chunked_head import LOGITS

FLOAT32 = 4
"""Bytes of a number. Weights, gradients and optimiser are kept in float32."""
KNOWN = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True)
class Architecture:
    """The sizes of a decoder with gated feed-forward layers and grouped-query attention.

    Attributes:
        qkv_bias: Query, key and value have biases (Qwen2).
        out_bias: The attention's output has one too (Llama with attention_bias).
        head_norms: Queries and keys are normalised by head (Qwen3).
    """

    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    qkv_bias: bool
    out_bias: bool
    head_norms: bool

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The architecture of a Hugging Face folder; its weights need not be there.

        Raises:
            ConfigError: config.json is missing or broken, or of a family whose sizes are not known here.
        """
        file = folder / "config.json"
        try:
            given = read_json_object(file)
            return cls._of(given)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{file} does not tell the model's sizes ({type(error).__name__}: {error})") from error

    @classmethod
    def _of(cls, given: dict[str, Any]) -> Self:
        family = given.get("model_type")
        if family not in KNOWN:
            raise ConfigError(f"model_type {family!r} is not known here: there are {', '.join(KNOWN)}")
        hidden, heads = int(given["hidden_size"]), int(given["num_attention_heads"])
        bias = bool(given.get("attention_bias"))
        return cls(
            layers=int(given["num_hidden_layers"]),
            hidden=hidden,
            inner=int(given["intermediate_size"]),
            heads=heads,
            kv_heads=int(given.get("num_key_value_heads") or heads),
            head_dim=int(given.get("head_dim") or hidden // heads),
            vocab=int(given["vocab_size"]),
            tied=bool(given.get("tie_word_embeddings")),
            qkv_bias=bias or family == "qwen2",
            out_bias=bias and family in ("llama", "qwen3"),
            head_norms=family == "qwen3",
        )

    @property
    def queries(self) -> int:
        """Width of all queries of a token."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Width of all keys of a token, and of all values."""
        return self.kv_heads * self.head_dim

    @property
    def layer_matrices(self) -> tuple[tuple[int, int], ...]:
        """(inputs, outputs) of each matrix of a layer: query, key, value, output, gate, up, down."""
        wide, narrow = (self.hidden, self.queries), (self.hidden, self.keys)
        out, up = (self.queries, self.hidden), (self.hidden, self.inner)
        return wide, narrow, narrow, out, up, up, (self.inner, self.hidden)

    @property
    def layer_parameters(self) -> int:
        biases = self.qkv_bias * (self.queries + 2 * self.keys) + self.out_bias * self.hidden
        norms = 2 * self.hidden + self.head_norms * 2 * self.head_dim
        return sum(inputs * outputs for inputs, outputs in self.layer_matrices) + biases + norms

    @property
    def embedding(self) -> int:
        """Parameters of the embedding, and of the head where that is another matrix."""
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        return self.layers * self.layer_parameters + (1 if self.tied else 2) * self.embedding + self.hidden

    @property
    def critic_parameters(self) -> int:
        """All parameters of a critic: one number a token in place of the vocabulary, with a bias."""
        return self.layers * self.layer_parameters + self.embedding + 2 * self.hidden + 1

    def adapter_parameters(self, rank: int) -> int:
        """Parameters of LoRA adapters of all layers: rank x (inputs + outputs) of each matrix (Hu et al. 2021)."""
        return self.layers * sum(rank * (inputs + outputs) for inputs, outputs in self.layer_matrices)

    def cache_bytes(self, context: int, number: int = FLOAT32) -> int:
        """Key/value cache of one request in the embedded server, with one spare position.

        Args:
            context: Most tokens of the request.
            number: Bytes of a number.
        """
        return 2 * number * self.layers * self.keys * (context + 1)

    def activation_bytes(self, tokens: int, *, recomputed: bool = False) -> int:
        """What a forward pass in float32 keeps for the backward pass.

        Counted by operation, as Korthikanti et al. (2022, section 4.1) do for another layer: of each layer and token,
        two norms keep 3 hidden states each and the residual 1; queries, keys and values are kept before and after they
        are turned, the attention's output twice, and 4 numbers of the inner width. Recomputed, each layer keeps its
        input, and one layer at a time all of it. The logits of at most a chunk of tokens are kept four times (scaled,
        two softmaxes, gradient).

        Args:
            tokens: Of one micro-batch.
            recomputed: With gradient checkpointing.
        """
        layer = 7 * self.hidden + 4 * self.queries + 4 * self.keys + 4 * self.inner
        kept = self.layers * self.hidden + layer if recomputed else self.layers * layer
        return FLOAT32 * (tokens * kept + 4 * min(tokens * self.vocab, max(LOGITS, self.vocab)))

    def operations(self, tokens: int) -> float:
        """Floating-point operations of a forward pass: two for each number of a matrix (Kaplan et al. 2020, table 1).

        A backward pass takes twice as many. Attention over long contexts comes on top.
        """
        matrices = self.layers * sum(inputs * outputs for inputs, outputs in self.layer_matrices) + self.embedding
        return 2.0 * matrices * tokens
