"""VeRL's engine of a language model, with shared beginnings computed once (see `prefix_tree`).

Log-probabilities and entropies are computed for response tokens only; for the others they are 0, and VeRL's losses
leave them out.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from verl.utils import tensordict_utils as tu
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from training.engines import varlen_attention
from training.engines.prefix_tree import grow

if TYPE_CHECKING:
    from tensordict import TensorDict

TREE = "prefix_tree"
OTHERS = ("use_fused_kernels", "calculate_sum_pi_squared", "distillation_use_topk", "distillation_only")
"""Options of VeRL that need the logits of all tokens."""


Engine: Any = FSDPEngineWithLMHead  # VeRL's registry returns it as a plain object.


class TreeEngine(Engine):
    """VeRL's engine; a micro-batch without shared beginnings, or with another attention, is computed as by VeRL."""

    def prepare_model_inputs(self, micro_batch: "TensorDict") -> tuple[dict[str, Any], dict[str, Any]]:
        """The model's inputs, of which the tokens are those of the tree."""
        inputs, outputs = super().prepare_model_inputs(micro_batch)
        if not self._fits(micro_batch):
            return inputs, outputs
        ids = micro_batch["input_ids"]
        tree = grow(ids.values(), ids.offsets().diff().tolist())
        if len(tree.kept) == len(tree.place):
            return inputs, outputs
        places = _before_responses(micro_batch)
        needed, which = tree.place[places].unique(return_inverse=True)
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
        logits = output.logits.squeeze(0).float()
        if not output_args["temperature_is_one"]:
            # All calls of an update were sampled at one temperature.
            logits = logits / output_args["temperature_rmpad"][0].clamp(min=1e-8)
        total = logits.logsumexp(dim=-1)
        labels = output_args["input_ids_rmpad_rolled"][places]
        found = {"log_probs": logits[which, labels] - total[which]}
        if tu.get_non_tensor_data(data=micro_batch, key="calculate_entropy", default=False):
            found["entropy"] = (total - (logits.softmax(dim=-1) * logits).sum(dim=-1))[which]
        ids = micro_batch["input_ids"]
        empty = torch.zeros(len(ids.values()), device=logits.device)
        return {
            name: torch.nested.nested_tensor_from_jagged(empty.index_put((places,), values), ids.offsets())
            for name, values in found.items()
        }

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


def _before_responses(micro_batch: "TensorDict") -> Tensor:
    """Places in the pack whose next token is one of a response."""
    offsets = micro_batch["input_ids"].offsets().tolist()
    lengths = micro_batch["responses"].offsets().diff().tolist()
    return torch.cat(
        [torch.arange(end - length - 1, end - 1) for end, length in zip(offsets[1:], lengths, strict=True)]
    )
