"""The engine of a phase whose updates several processes share: of this machine, or actors of a Ray cluster."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from chimera.core.errors import RunError
from training.ppo.engine.base import Watch, with_peers
from training.ppo.engine.batch import Batch, Sample
from training.ppo.verl.settings import PpoSettings


class RankLost(RunError):
    """A rank is gone; the message says which, and how it ended."""

    def __init__(self, ending: str) -> None:
        super().__init__(f"{ending}; its step can be made again: continue with --resume")


class Ranks(Protocol):
    """Processes, each of which has a `training.ppo.ranks.rank.Rank`."""

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of all ranks; returns the first rank's answer.

        Raises:
            ChimeraError: As the method does. All ranks have answered.
            RankLost: A rank is gone. Only `close` can follow.
        """
        ...

    def close(self) -> None:
        """End the processes. Closing twice does nothing."""
        ...


class RanksEngine:
    """A `training.ppo.engine.base.TrainingEngine` of several ranks.

    Args:
        model_folder: The phase's initial weights, as for `training.ppo.engine.update.PpoEngine`.
        settings: The phase's.
        start: Starts the processes.
        temperature: As for `PpoEngine`.
        phase: As for `PpoEngine`.
        options: What else a `PpoEngine` takes; each rank's gets them all.

    Raises:
        ConfigError: As `PpoEngine`.
        RunError: The ranks cannot be started.
    """

    def __init__(
        self,
        model_folder: Path,
        settings: PpoSettings,
        start: Callable[[], Ranks],
        *,
        temperature: float = 1.0,
        phase: str = "ppo",
        **options: Any,
    ) -> None:
        self._settings, self._temperature = settings, temperature
        self.updates = 0
        """Number of updates, including those before a checkpoint."""
        plain = settings.model_dump(mode="json", include=set(PpoSettings.model_fields))
        options |= {"temperature": temperature, "phase": phase}
        self._ranks = start()
        try:
            self._ranks.call("open", model_folder.absolute(), plain, options)
        except BaseException:
            self.close()
            raise

    def update(self, batch: Sequence[Sample], step: int, watch: Watch | None = None) -> dict[str, float]:
        """Learn from one step's samples; see `PpoEngine.update`.

        Raises:
            RunError: As `PpoEngine.update`; or a rank is lost.
        """
        metrics, columns = self._ranks.call("update", list(batch), step, watch is not None)
        self.updates += 1
        if watch is not None:
            seen = Batch(with_peers(batch, self._settings.adv_estimator), self._temperature)
            seen.after = columns.pop("after", None)
            seen.columns |= columns
            watch(seen, metrics)
        return metrics

    def export(self, folder: Path) -> None:
        """Write the actor; see `PpoEngine.export`."""
        self._ranks.call("export", folder.absolute())

    def save(self, folder: Path) -> None:
        """Write the complete state in the format of one rank: any number of ranks can load it."""
        self._ranks.call("save", folder.absolute())

    def load(self, folder: Path) -> None:
        """Restore the state that an engine of any number of ranks has written; see `PpoEngine.load`."""
        self.updates = self._ranks.call("load", folder.absolute())

    def close(self) -> None:
        """End the processes. Closing twice does nothing."""
        self._ranks.close()
