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
from training.ppo.engine.update import PpoEngine
from training.ppo.ranks.shares import plan
from training.ppo.verl.runtime import OwnRandomness

if TYPE_CHECKING:
    from tensordict import TensorDict
    from torch import Tensor

MICRO_BATCHES = "micro_batch_sizes"
MASKS = ("loss_mask", "response_mask")


class SharedBatch(Batch):
    """A step's calls, of which this rank computes its share.

    A micro-batch without rows is computed with one row whose tokens do not count, because all ranks must take part in
    every forward and backward pass.
    """

    def share(self, bundles: Sequence[Sequence[int]], budget: int) -> Sequence[Sequence[int]]:
        """This rank's micro-batches."""
        import torch.distributed as dist

        prompts = [len(one.prompt_ids) for one in self.samples]
        return plan(bundles, self.sizes, prompts, ranks=dist.get_world_size(), budget=budget)[dist.get_rank()]

    def gathered(self, own: Sequence[Sequence[int]], values: "Tensor") -> "Tensor":
        """The values that all ranks have computed."""
        import torch
        import torch.distributed as dist

        whole = torch.zeros(self.mask.shape, dtype=values.dtype, device=values.device)
        for place, row in enumerate(_padded(own)):
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
            counts = [torch.zeros_like(one) if row is None else one for row, one in masks]
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
        _plan_micro_batches()
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
        return _weighted(loss)

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

        from training.ppo.engine.state import worker_state

        if dist.get_rank() == 0:
            super().save(folder)
        else:
            for _, worker in self._trained():
                worker_state(worker)


def _weighted(loss: Callable[..., Any]) -> Callable[..., Any]:
    """`loss`, whose mean metrics become sums: each micro-batch's value by its share of the mini-batch's tokens.

    VeRL takes the mean over micro-batches, which would depend on how rows are divided among ranks.
    """
    from verl.utils.metric import AggregationType, Metric

    def compute(model_output: Any, data: Any, dp_group: Any = None) -> tuple[Any, dict[str, Any]]:
        share = float(data["response_mask"].values().sum()) * data["dp_size"] / data["batch_num_tokens"]
        value, metrics = loss(model_output=model_output, data=data, dp_group=dp_group)
        found = {}
        for name, one in metrics.items():
            plain = not isinstance(one, Metric)
            if plain or one.aggregation == AggregationType.MEAN:
                one = Metric(AggregationType.SUM, share * (one if plain else one.aggregate()))
            found[name] = one
        return value, found

    return compute


def _plan_micro_batches() -> None:
    """Make VeRL's engines take the micro-batches of `SharedBatch` instead of their own."""
    import verl.workers.engine.fsdp.transformer_impl as fsdp
    from verl.utils import tensordict_utils as tu

    def planned(data: "TensorDict", **_: Any) -> "tuple[list[TensorDict], list[list[int]]]":
        places, first = [], 0
        for size in tu.get_non_tensor_data(data, MICRO_BATCHES, default=[]):
            places.append(list(range(first, first + size)))
            first += size
        return [tu.index_select_tensor_dict(data, rows) for rows in places], places

    fsdp.__dict__["prepare_micro_batches"] = planned
