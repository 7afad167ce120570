"""TRL's DPOTrainer for pairs that are token ids already, with logits of a few tokens at a time.

TRL 1.10 tokenises text whatever it is given, and computes the logits of both answers of all pairs at once.
"""

from contextlib import nullcontext
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor
from torch.nn.functional import logsigmoid, pad
from trl.trainer.dpo_trainer import DPOTrainer

from training.model.chunked_head import ChunkedHead, HeadRequest


class TokenPairs(DPOTrainer):
    """The trainer; a batch is the chosen answers, then the rejected ones, each row behind its prompt."""

    def __init__(self, model: Any, **arguments: Any) -> None:
        self._head = ChunkedHead(model.get_output_embeddings(), model.config.vocab_size)
        super().__init__(model=model, **arguments)

    def _prepare_dataset(self, dataset: Any, processing_class: Any, args: Any, dataset_name: str) -> Any:
        return dataset

    def compute_ref_log_probs(self, model: Any, inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Sums of the first weights' log-probabilities, of the chosen answers (pairs,) and the rejected ones."""
        first = model.disable_adapter() if isinstance(model, PeftModel) else nullcontext()
        with torch.no_grad(), first:
            return self._answer_log_probs(model, inputs)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        """Mean loss of the pairs; what `step_figures` and `held_out` read is noted as TRL does."""
        chosen, rejected = self._answer_log_probs(model, inputs)
        margins = self.beta * ((chosen - inputs["ref_chosen_logps"]) - (rejected - inputs["ref_rejected_logps"]))
        noted = {"rewards/accuracies": (margins > 0).float(), "rewards/margins": margins}
        for name, values in (noted | {"logps/chosen": chosen, "logps/rejected": rejected}).items():
            self._metrics["train" if model.training else "eval"][name].append(values.detach().mean().item())
        preference, imitation = self.loss_weights
        tokens = inputs["completion_mask"].chunk(2)[0].sum()
        return -(preference * logsigmoid(margins).mean() + imitation * chosen.sum() / tokens)

    def _answer_log_probs(self, model: Any, inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
        ids, answered = inputs["input_ids"], inputs["completion_mask"][:, 1:].bool()
        labels = pad(ids[:, 1:], (0, 1))  # Nothing follows the last token, and its score is not used.
        self._head.ask(HeadRequest(labels.flatten(), temperature=1.0, entropy=False))
        scores = model(input_ids=ids, attention_mask=inputs["attention_mask"], use_cache=False).logits
        chosen, rejected = torch.where(answered, scores[:, :-1, 0], 0.0).sum(dim=1).chunk(2)
        return chosen, rejected
