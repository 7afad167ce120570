"""Fine-tuning by several processes: each computes its share of every optimiser step, and gradients are summed.

The conversations of a step, and the order of steps, are those of one process, so weights equal its up to rounding.
"""

import os
import socket
from collections.abc import Iterator, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasets import Dataset
    from torch.utils.data import Sampler
    from trl.trainer.sft_trainer import SFTTrainer


ALONE = {"RANK": "0", "WORLD_SIZE": "1"}
"""The place of a process without others. The parent gives each rank its own in these variables."""


def rank_of() -> tuple[int, int]:
    """This process's rank and the number of ranks."""
    rank, ranks = (int(os.environ.get(name, usual)) for name, usual in ALONE.items())
    return rank, ranks


def hold_meeting(descriptor: int) -> Any:
    """The store where ranks meet, on a listening socket, for rank 0; keep it. By itself torch listens everywhere."""
    from torch._C._distributed_c10d import TCPStore

    with socket.socket(fileno=os.dup(descriptor)) as listening:
        host, port = listening.getsockname()
    return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=descriptor)


def accumulation(batch: int, micro: int, ranks: int) -> int:
    """Forward passes of one rank in an optimiser step."""
    return ceil(ceil(batch / ranks) / micro)


def share(rows: Sequence[int], rank: int, ranks: int, micro: int, spare: int) -> list[list[int]]:
    """One rank's micro-batches of a step's rows: as many as each other rank has.

    Rows that follow each other are of similar length and are dealt out in turn. A micro-batch for which no row is left
    gets the row `spare`, which counts for nothing: all ranks must take part in every backward pass.
    """
    rank_rows = list(rows[rank::ranks])
    starts = range(0, accumulation(len(rows), micro, ranks) * micro, micro)
    return [rank_rows[first : first + micro] or [spare] for first in starts]


class SharedBatches:
    """The micro-batches of one rank, as a batch sampler.

    Args:
        order: Gives the rows of a pass over the data, in the order of one process.
        batch: Rows of an optimiser step.
        micro: Rows of a micro-batch.
        spare: See `share`.
    """

    def __init__(self, order: "Sampler[int]", count: int, batch: int, micro: int, spare: int) -> None:
        self._order = order
        self._count, self._batch, self._micro, self._spare = count, batch, micro, spare

    def __iter__(self) -> Iterator[list[int]]:
        rows = list(self._order)
        for first in range(0, len(rows), self._batch):
            yield from share(rows[first : first + self._batch], *rank_of(), self._micro, self._spare)

    def __len__(self) -> int:
        _, ranks = rank_of()
        whole, rest = divmod(self._count, self._batch)
        return whole * accumulation(self._batch, self._micro, ranks) + accumulation(rest, self._micro, ranks)


def with_spare(dataset: "Dataset") -> "Dataset":
    """The data with one more row, whose tokens count for nothing."""
    from datasets import Dataset, concatenate_datasets

    ids = dataset[0]["input_ids"][:2]
    spare = {"input_ids": ids, "labels": [-100] * len(ids), "length": len(ids)}
    return concatenate_datasets([dataset, Dataset.from_list([spare], features=dataset.features)])


def sharing_trainer(batch: int) -> "type[SFTTrainer]":
    """TRL's trainer, whose data have a spare row at the end, as one rank of several; `batch` is of all ranks."""
    from torch.utils.data import DataLoader
    from transformers.trainer_pt_utils import LengthGroupedSampler
    from trl.trainer.sft_trainer import SFTTrainer

    class SharingTrainer(SFTTrainer):
        def get_train_dataloader(self) -> DataLoader[Any]:
            whole: Any = self.train_dataset
            data: Any = self._remove_unused_columns(whole, description="training")
            lengths = list(whole["length"])[:-1]
            micro, count = self.args.per_device_train_batch_size, len(lengths)
            order = LengthGroupedSampler(batch, lengths=lengths)
            shares: Any = SharedBatches(order, count, batch, micro, spare=count)
            # Accelerate would divide the data in its own way, so it does not get the loader.
            return DataLoader(data, batch_sampler=shares, collate_fn=self.data_collator)

    return SharingTrainer
