"""The engine of a phase whose updates several processes share. A rank that dies ends the update, not the phase.

Then all ranks are started again from the newest checkpoint, the updates since it are made again from their samples, and
then the one that was broken off. Updates are deterministic, so the weights are those of a run without the loss.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from chimera.core.errors import RunError
from chimera.serving.embedded.checkpoint import check_trainable
from training.algorithms.ppo.batch import Batch, Sample
from training.algorithms.ppo.settings import PpoSettings
from training.cluster.rank import plain_sample
from training.cluster.team import RankLost, Team
from training.engines.base import Watch, with_peers
from training.engines.verl_config import check_verl

T = TypeVar("T")


class TeamEngine:
    """A `training.engines.base.TrainingEngine` of `settings.ranks` processes.

    Args:
        model_folder: The phase's initial weights, as for `training.engines.local.PpoEngine`.
        settings: The phase's.
        seed: As for `PpoEngine`.
        total_steps: As for `PpoEngine`.
        team: Starts the processes.
        newest: The folder of the newest checkpoint that `save` wrote; None before the first.
        note: Is told of every loss.
        device: As for `PpoEngine`.
        temperature: As for `PpoEngine`.
        phase: As for `PpoEngine`.

    Raises:
        ConfigError: As `PpoEngine`.
        RunError: The ranks cannot be started.
    """

    def __init__(
        self,
        model_folder: Path,
        settings: PpoSettings,
        *,
        seed: int,
        total_steps: int,
        team: Callable[[], Team],
        newest: Callable[[], Path | None],
        note: Callable[[str], None],
        device: Literal["auto", "cpu", "cuda"] = "auto",
        temperature: float = 1.0,
        phase: str = "ppo",
    ) -> None:
        check_verl(settings.verl, phase)
        check_trainable(model_folder)
        self._settings, self._temperature, self._phase = settings, temperature, phase
        self._start, self._newest, self._note = team, newest, note
        self._opening: Mapping[str, Any] = {
            "do": "open",
            "folder": str(model_folder.absolute()),
            "settings": settings.model_dump(mode="json", include=set(PpoSettings.model_fields)),
            "seed": seed,
            "total_steps": total_steps,
            "device": device,
            "temperature": temperature,
            "phase": phase,
        }
        self._team: Team | None = None
        self._since: list[Mapping[str, Any]] = []
        """The orders of all updates since the newest checkpoint."""
        self._kept = False
        """True if the newest checkpoint is of this engine."""
        self.updates = 0
        """Number of updates, including those before a checkpoint."""
        self._surely(lambda team: None)

    @property
    def team(self) -> Team | None:
        """The processes; None after a loss, until they are needed."""
        return self._team

    def update(self, batch: Sequence[Sample], step: int, watch: Watch | None = None) -> dict[str, float]:
        """Learn from one step's samples; see `PpoEngine.update`.

        Raises:
            RunError: As `PpoEngine.update`; or ranks died more often than `ppo.restarts` allows.
        """
        order = {"do": "update", "samples": [plain_sample(one) for one in batch], "step": step}
        (answer, tensors), *_ = self._surely(lambda team: team.call({**order, "watch": watch is not None}))
        self.updates = answer["updates"]
        self._since.append({**order, "watch": False})
        if watch is not None:
            seen = Batch(with_peers(batch, self._settings.adv_estimator), self._temperature)
            seen.after = tensors.pop("after", None)
            seen.columns |= tensors
            watch(seen, answer["metrics"])
        return answer["metrics"]

    def export(self, folder: Path) -> None:
        """Write the actor; see `PpoEngine.export`."""
        self._surely(lambda team: team.call({"do": "export", "folder": str(folder.absolute())}))

    def save(self, folder: Path) -> None:
        """Write the complete state in the format of one rank: any number of ranks can load it."""
        self._surely(lambda team: team.call({"do": "save", "folder": str(folder.absolute())}))
        self._since, self._kept = [], True

    def load(self, folder: Path) -> None:
        """Restore the state that an engine of any number of ranks has written; see `PpoEngine.load`."""
        answer, *_ = self._surely(lambda team: team.call({"do": "load", "folder": str(folder.absolute())}))
        self.updates, self._since, self._kept = answer[0]["updates"], [], True

    def close(self) -> None:
        """End the processes. Closing twice does nothing."""
        if self._team is not None:
            self._team.end()
        self._team = None

    def _surely(self, work: Callable[[Team], T]) -> T:
        """Do something with the ranks, again if one is lost."""
        left = self._settings.restarts
        while True:
            try:
                return work(self._ready())
            except RankLost as lost:
                self.close()
                if not left:
                    raise RunError(
                        f"{lost}; the ranks were started again {self._settings.restarts} times for this step "
                        f"({self._phase}.restarts): find out why, then continue with --resume"
                    ) from lost
                left -= 1
                self._note(f"{lost}: the ranks are started again, and the step is made again")

    def _ready(self) -> Team:
        """The ranks with the current weights; they are started if there are none."""
        if self._team is not None:
            return self._team
        folder = self._newest() if self._kept else None
        load = [] if folder is None else [{"do": "load", "folder": str(folder.absolute())}]
        self._team = self._start()
        try:
            made = [self._team.call(order)[0][0]["updates"] for order in (self._opening, *load, *self._since)]
        except BaseException:
            self.close()
            raise
        if made[-1] != self.updates:
            raise RunError(
                f"the ranks were started again and made {made[-1]} updates, not {self.updates}: the checkpoint was "
                "removed meanwhile; continue with --resume"
            )
        return self._team
