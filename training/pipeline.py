"""The run as an Agent Lightning algorithm: its phases, one after another, over one lab."""

import asyncio
from collections.abc import Sequence
from typing import Any

import agentlightning as agl

from training.lab import Lab
from training.phases import Phase


class Pipeline(agl.Algorithm):
    """Runs the phases in order; the ledger tells what each came to."""

    def __init__(self, phases: Sequence[Phase], lab: Lab) -> None:
        self._phases = tuple(phases)
        self._lab = lab
        self.set_store(lab.store)

    async def run(
        self, train_dataset: agl.Dataset[Any] | None = None, val_dataset: agl.Dataset[Any] | None = None
    ) -> None:
        """Run all phases; tasks come from the lab, so the arguments of Agent Lightning's interface stay unused."""
        run = self._lab.run
        for phase in self._phases:
            run.ledger("phase_started", phase=phase.name, policy_versions=self._lab.policy_versions)
            try:
                figures = await phase.run(self._lab)
            except asyncio.CancelledError:
                run.ledger("phase_interrupted", phase=phase.name)
                raise
            except Exception as error:
                run.ledger("phase_failed", phase=phase.name, error=f"{type(error).__name__}: {error}")
                raise
            file = run.rollouts_file(phase.name)
            artifacts = [file.relative_to(run.path)] if file.exists() else []
            run.ledger("phase_finished", phase=phase.name, artifacts=artifacts, figures=dict(figures))
            run.append_metrics({"phase": phase.name, **figures})
