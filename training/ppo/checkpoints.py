"""Checkpoints of a PPO phase: the engine's state and the phase's progress, written whole or not at all.

checkpoints/<phase>/<step>/  engine/ (weights, optimiser, schedules, random states)  phase.json
models/<slot>/<phase>-<step>/  the weights with which the next step samples; ahead: also those one version older
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from chimera.core.errors import RunError
from chimera.core.files import read_json_object
from chimera.run.directory import Run
from chimera.run.policies import Policy
from chimera.run.seals import checked, seal
from training.learning.base import PhasePlan
from training.ppo.curriculum import Course

FIRST = "first"
"""Ends the name of the weights that a phase began with, where they are needed beside the live ones."""
STATE = "phase.json"
ENGINE = "engine"


@dataclass(slots=True)
class Progress:
    """Progress of the phase.

    Attributes:
        step: The last finished step, trained or skipped; 0 before the first.
        updates: Number of trained steps.
        left_out: Number of rollouts that were not learned from, by reason.
        skipped: Number of steps without an update.
        stale_calls: Number of calls that were not learned from because other weights had sampled them.
        live: The slot's weights after `step`; None if they are still those from before the phase.
        course: What the curriculum has drawn for the steps so far.
        asked: ahead: the slot's weights that were live when the next step's samples were asked for, which is one update
            before `live`; None if they were those from before the phase.
        older_calls: ahead: number of calls that were learned from and that weights one version older had sampled.
    """

    step: int = 0
    updates: int = 0
    skipped: list[int] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)
    stale_calls: int = 0
    live: Policy | None = None
    course: Course = field(default_factory=Course)
    asked: Policy | None = None
    older_calls: int = 0

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> "Progress":
        policies = {name: data.get(name) and Policy.load(data[name]) for name in ("live", "asked")}
        return cls(**{**data, **policies, "course": Course(**data["course"])})


class Checkpoints:
    """The phase's checkpoints in one run.

    Args:
        run: The run, owned by this process.
        keep: Number of newest checkpoints to keep.
    """

    def __init__(self, run: Run, plan: PhasePlan, keep: int) -> None:
        self._run = run
        self._plan = plan
        self._name = f"checkpoints/{plan.name}"
        self._folder = run.path / self._name
        self._keep = keep

    def latest(self) -> tuple[Path, Progress] | None:
        """The newest checkpoint: the engine's folder and the progress; None if there is none.

        Raises:
            RunError: It is broken, or differs from what the run wrote.
        """
        steps = self._steps()
        for draft in self._folder.glob(".*"):
            shutil.rmtree(draft)  # An interrupted write. Only one process at a time writes a run.
        if not steps:
            return None
        remedy = f"remove the folder {self._folder / str(steps[-1])} to continue from before it"
        folder = checked(self._run, f"{self._name}/{steps[-1]}", remedy)
        return folder / ENGINE, self._progress(folder)

    def write(self, progress: Progress, save_engine: Callable[[Path], None]) -> None:
        """Write the checkpoint of `progress.step` and its hashes, and remove old checkpoints."""
        from training.model.weights import whole_folder

        with whole_folder(self._folder / str(progress.step)) as draft:
            save_engine(draft / ENGINE)
            (draft / STATE).write_text(json.dumps(asdict(progress), indent=2) + "\n", encoding="utf-8")
        seal(self._run, f"{self._name}/{progress.step}")
        for step in self._steps()[: -self._keep]:
            shutil.rmtree(self._folder / str(step))

    def remove_old_weights(self, now: Progress) -> None:
        """Remove exported weights that are neither live nor part of a checkpoint."""
        progresses = [now, *(self._progress(self._folder / str(step)) for step in self._steps())]
        policies = [policy for progress in progresses for policy in (progress.live, progress.asked)]
        folders = {self._run.path / policy.folder for policy in policies if policy is not None}
        for folder in (self._run.path / "models" / self._plan.slot).glob(f"{self._plan.name}-*"):
            if folder not in folders and folder.name != f"{self._plan.name}-{FIRST}":
                shutil.rmtree(folder)

    def _steps(self) -> list[int]:
        """Steps with a whole checkpoint. Drafts of interrupted writes have other names."""
        return sorted(int(folder.name) for folder in self._folder.glob("*") if folder.name.isdecimal())

    def _progress(self, folder: Path) -> Progress:
        try:
            return Progress.load(read_json_object(folder / STATE))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"the checkpoint {folder} is broken ({error}): remove this folder to continue from an earlier one"
            ) from error
