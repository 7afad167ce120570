"""The PPO engine as one rank of several: each computes its share of the rows, and gradients are summed over all.

Means of the loss are taken over the whole mini-batch, so an update is that of one rank up to rounding. All ranks get
the same samples and must make the same calls in the same order. Only the first rank writes files.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.model.weights import gather_weights
from training.ppo.engine.base import Watch
from training.ppo.engine.batch import Batch, Sample
from training.ppo.engine.state import worker_state
from training.ppo.engine.update import PpoEngine
from training.ppo.ranks.shares import plan
from training.ppo.verl.patches import MICRO_BATCHES, sum_metrics, take_planned_micro_batches
from training.ppo.verl.runtime import OwnRandomness

if TYPE_CHECKING:
    from tensordict import TensorDict
    from torch import Tensor

MASKS = ("loss_mask", "response_mask")


class SharedBatch(Batch):
    """A step's calls, of which this rank computes its share.

    A micro-batch without rows is computed with one row whose tokens do not count, because all ranks must take part in
    every forward and backward pass.
    """

    def share(self, bundles: Sequence[Sequence[int]], budget: int) -> Sequence[Sequence[int]]:
        """This rank's micro-batches."""
        import torch.distributed as dist

        prompts = [len(sample.prompt_ids) for sample in self.samples]
        return plan(bundles, self.sizes, prompts, ranks=dist.get_world_size(), budget=budget)[dist.get_rank()]

    def gathered(self, bundles: Sequence[Sequence[int]], values: "Tensor") -> "Tensor":
        """The values that all ranks have computed."""
        import torch
        import torch.distributed as dist

        whole = torch.zeros(self.mask.shape, dtype=values.dtype, device=values.device)
        for place, row in enumerate(_padded(bundles)):
            if row is not None:
                whole[row, : values.shape[1]] = values[place]
        dist.all_reduce(whole)  # Every row has one rank; the others add zeros.
        return whole

    def packed(self, bundles: Sequence[Sequence[int]], columns: Sequence[str] = (), **settings: Any) -> "TensorDict":
        """The jagged batch of this rank's micro-batches."""
        import torch

        rows = _padded(bundles)
        sizes = [max(1, len(micro_batch)) for micro_batch in bundles]
        data = super().packed([[row or 0] for row in rows], columns, **{MICRO_BATCHES: sizes}, **settings)
        for name in MASKS if None in rows else ():
            masks = zip(rows, data[name].unbind(), strict=True)
            counts = [torch.zeros_like(mask) if row is None else mask for row, mask in masks]
            data[name] = torch.nested.as_nested_tensor(counts, layout=torch.jagged)
        return data


def _padded(bundles: Sequence[Sequence[int]]) -> list[int | None]:
    """The rows of micro-batches; None for each that has none."""
    return [row for bundle in bundles for row in (bundle or [None])]


class RankEngine(PpoEngine):
    """One rank's engine. The process is a member of the ranks' process group already, and stays one.

    Its random states are set by seed, update and rank, so that they need not be kept for each rank in a checkpoint.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        take_planned_micro_batches()
        super().__init__(*args, **kwargs)

    def _environment(self) -> AbstractContextManager[None]:
        return nullcontext()

    def _join(self) -> None:
        pass

    def _leave(self) -> None:
        pass

    def _batch(self, samples: Sequence[Sample]) -> Batch:
        return SharedBatch(samples, self._temperature)

    def _loss(self, loss: Callable[..., Any]) -> Callable[..., Any]:
        return sum_metrics(loss)

    def update(self, batch: Sequence[Sample], step: int, watch: Watch | None = None) -> dict[str, float]:
        """Learn from one step's samples, which all ranks get; the metrics are those of all."""
        import numpy as np
        import torch.distributed as dist

        mixed = np.random.SeedSequence([self._seed, self.updates, dist.get_rank()])
        self._random = OwnRandomness(int(mixed.generate_state(1)[0]))
        return super().update(batch, step, watch)

    def export(self, folder: Path) -> None:
        """Gather the weights; the first rank writes them."""
        import torch.distributed as dist

        if dist.get_rank() == 0:
            super().export(folder)
        else:
            engine: Any = self._actor.engine
            gather_weights(engine.module)

    def save(self, folder: Path) -> None:
        """Gather the state; the first rank writes it, in the format of one rank."""
        import torch.distributed as dist

        if dist.get_rank() == 0:
            super().save(folder)
        else:
            for _, worker in self._trained():
                worker_state(worker)
