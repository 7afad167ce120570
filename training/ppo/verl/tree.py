"""VeRL's engine of a language model: shared beginnings are computed once, and logits never all at a time.

See `prefix_tree` and `chunked_head`. Log-probabilities and entropies are computed for response tokens only; for the
others they are 0, and VeRL's losses leave them out.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from verl.utils import tensordict_utils as tu
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from training.model import chunked_head, varlen_attention
from training.model.chunked_head import ChunkedHead, HeadRequest
from training.model.prefix_tree import grow

if TYPE_CHECKING:
    from tensordict import TensorDict

TREE = "prefix_tree"
OTHERS = ("use_fused_kernels", "calculate_sum_pi_squared", "distillation_use_topk", "distillation_only")
"""Options of VeRL that need the logits of all tokens."""


Engine: Any = FSDPEngineWithLMHead  # VeRL's registry returns it as a plain object.


class TreeEngine(Engine):
    """VeRL's engine.

    A micro-batch without shared beginnings and with few logits, or with another attention, is computed as by VeRL.
    """

    _head: ChunkedHead | None = None

    def prepare_model_inputs(self, micro_batch: "TensorDict") -> tuple[dict[str, Any], dict[str, Any]]:
        """The model's inputs, of which the tokens are those of the tree."""
        inputs, outputs = super().prepare_model_inputs(micro_batch)
        if not self._fits(micro_batch):
            return inputs, outputs
        ids = micro_batch["input_ids"]
        tree = grow(ids.values(), ids.offsets().diff().tolist())
        large = len(tree.kept) * self.module.config.vocab_size > chunked_head.LOGITS
        if len(tree.kept) == len(tree.place) and not large:
            return inputs, outputs
        places = _before_responses(micro_batch)
        # Of a token that ends several prompts' beginnings logits are computed once; scores have one label each.
        needed, which = (tree.place[places], None) if large else tree.place[places].unique(return_inverse=True)
        if large:
            self._ask(places, outputs, micro_batch)
        inputs |= {
            "input_ids": inputs["input_ids"][:, tree.kept],
            "position_ids": inputs["position_ids"][:, tree.kept],
            "logits_to_keep": needed,
            TREE: tree,
        }
        return inputs, outputs | {TREE: (places, which)}

    def prepare_model_outputs(
        self, output: Any, output_args: dict[str, Any], micro_batch: "TensorDict", logits_processor_func: Any
    ) -> dict[str, Tensor]:
        """`log_probs`, and `entropy` if asked for: jagged, (calls, tokens)."""
        if TREE not in output_args:
            return super().prepare_model_outputs(output, output_args, micro_batch, logits_processor_func)
        places, which = output_args[TREE]
        given = output.logits.squeeze(0).float()
        if which is None:
            columns = ("log_probs", "entropy")[: 1 + _wants_entropy(micro_batch)]
            found = dict(zip(columns, given.unbind(-1), strict=False))
        else:
            found = self._scores(given, which, places, output_args, micro_batch)
        ids = micro_batch["input_ids"]
        empty = torch.zeros(len(ids.values()), device=given.device)
        return {
            name: torch.nested.nested_tensor_from_jagged(empty.index_put((places,), values), ids.offsets())
            for name, values in found.items()
        }

    def _scores(
        self, logits: Tensor, which: Tensor, places: Tensor, output_args: dict[str, Any], micro_batch: "TensorDict"
    ) -> dict[str, Tensor]:
        """Log-probabilities and, if asked for, entropies of response tokens, from the logits of shared places."""
        if not output_args["temperature_is_one"]:
            logits = logits / _temperature(output_args)
        total = logits.logsumexp(dim=-1)
        labels = output_args["input_ids_rmpad_rolled"][places]
        found = {"log_probs": logits[which, labels] - total[which]}
        if _wants_entropy(micro_batch):
            found["entropy"] = (total - (logits.softmax(dim=-1) * logits).sum(dim=-1))[which]
        return found

    def _ask(self, places: Tensor, output_args: dict[str, Any], micro_batch: "TensorDict") -> None:
        """Make the next forward pass score the labels of these places, a chunk at a time."""
        if self._head is None:
            self._head = ChunkedHead(self.module.get_output_embeddings(), self.module.config.vocab_size)
        temperature = 1.0 if output_args["temperature_is_one"] else float(_temperature(output_args))
        labels = output_args["input_ids_rmpad_rolled"][places]
        self._head.ask(HeadRequest(labels, temperature, _wants_entropy(micro_batch)))

    def _fits(self, micro_batch: "TensorDict") -> bool:
        packed = tu.get_non_tensor_data(data=micro_batch, key="use_remove_padding", default=True)
        others = any(tu.get_non_tensor_data(data=micro_batch, key=name, default=False) for name in OTHERS)
        attention = self.module.config._attn_implementation
        return (
            packed
            and not others
            and not self.use_ulysses_sp
            and not self.pad_to_length
            and attention == varlen_attention.NAME
        )


def _temperature(output_args: dict[str, Any]) -> Tensor:
    """That of all calls of an update."""
    return output_args["temperature_rmpad"][0].clamp(min=1e-8)


def _wants_entropy(micro_batch: "TensorDict") -> bool:
    return bool(tu.get_non_tensor_data(data=micro_batch, key="calculate_entropy", default=False))


def _before_responses(micro_batch: "TensorDict") -> Tensor:
    """Places in the pack whose next token is one of a response."""
    offsets = micro_batch["input_ids"].offsets().tolist()
    lengths = micro_batch["responses"].offsets().diff().tolist()
    return torch.cat(
        [torch.arange(end - length - 1, end - 1) for end, length in zip(offsets[1:], lengths, strict=True)]
    )
