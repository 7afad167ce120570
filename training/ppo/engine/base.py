"""What a phase needs of the engine that trains its weights: `update` in this process, `ranks` in several."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from training.ppo.engine.advantages import GROUPED, Estimator, alone

if TYPE_CHECKING:
    from training.ppo.engine.batch import Batch, Sample

Watch = Callable[["Batch", Mapping[str, float]], None]
"""Takes an update's batch, with the columns of `Batch.columns` and `Batch.after`, and its metrics."""


class TrainingEngine(Protocol):
    """A model with its optimiser. Call it from one thread at a time.

    Attributes:
        updates: Number of updates, including those before a checkpoint.
    """

    updates: int

    def update(self, batch: "Sequence[Sample]", step: int, watch: Watch | None = None) -> dict[str, float]:
        """Learn from one step's samples; returns metrics by VeRL's names.

        With grpo and rloo, samples that are alone in their group have no baseline: they are left out and counted in
        `group/alone`.

        Args:
            batch: Samples of the current weights.
            step: The step's number. Together with the seed it determines the order of mini-batches.
            watch: Called after the update with the batch and the metrics.

        Raises:
            RunError: No sample is left, or the model's log-probabilities are not finite.
        """
        ...

    def export(self, folder: Path) -> None:
        """Write the model as a plain Hugging Face folder, whole or not at all."""
        ...

    def save(self, folder: Path) -> None:
        """Write the complete state, so that `load` continues exactly, whole or not at all."""
        ...

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote; nothing in the folder can run code."""
        ...

    def close(self) -> None:
        """Free the model. Closing twice does nothing."""
        ...


def with_peers(samples: "Sequence[Sample]", estimator: Estimator) -> "list[Sample]":
    """The samples that an update learns from: with grpo and rloo, those that are not alone in their group."""
    single = set(alone([sample.group for sample in samples])) if estimator in GROUPED else set[int]()
    return [sample for place, sample in enumerate(samples) if place not in single]
