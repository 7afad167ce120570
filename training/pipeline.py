"""The run as an Agent Lightning algorithm: runs its phases in order with one lab."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import agentlightning as agl
import psutil

from chimera.run.chain import head
from chimera.run.directory import LEDGER
from chimera.run.policies import Policy
from chimera.run.seals import seal
from training.bench.lab_bench import LabBench
from training.gate.decide import Gate
from training.lab.lab import Lab
from training.learning.base import Learned
from training.phases import Phase, expected_costs

LEDGER_PHASE = "ledger"
"""The phase name of the run's last line in metrics.jsonl: times, and the ledger's last hash, which W&B publishes."""


class Pipeline(agl.Algorithm):
    """Runs the phases in order. The ledger records their results, so a resumed run knows what is left."""

    def __init__(self, phases: Sequence[Phase], lab: Lab) -> None:
        self._phases = tuple(phases)
        self._lab = lab
        self.set_store(lab.store)

    async def run(
        self, train_dataset: agl.Dataset[Any] | None = None, val_dataset: agl.Dataset[Any] | None = None
    ) -> None:
        """Run all phases. Tasks come from the lab, so the arguments of Agent Lightning's interface are unused."""
        lab = self._lab
        done = {event["phase"] for event in lab.run.events() if event["event"] == "phase_finished"}
        costs = expected_costs(self._phases, lab.config, done)
        lab.view.plan([phase.name for phase in self._phases], done=sorted(done), costs=costs)
        gate = Gate(lab)
        laps = Laps(psutil.Process().create_time())
        laps.lap("start")
        for phase in self._phases:
            if phase.name in done:
                lab.view.note(f"{phase.name}: finished before")
                continue
            with self._noted(phase):
                if phase.learns:
                    with lab.view.doing("the gate evaluates what is live"):
                        await gate.open()
                    laps.lap("gate")
                with lab.view.part(phase.name):
                    result = await self._learn(phase)
                laps.lap(phase.name)
                with lab.view.doing(f"the gate decides on {phase.name}"):
                    is_live = None if result.policy is None else await gate.decide(phase.name, result.policy)
                laps.lap("gate")
            with lab.view.doing(f"recording what {phase.name} has made"):
                self._finish(phase, result, is_live)
                await self._seal()
        with lab.view.doing("comparing all stages"):
            await asyncio.to_thread(gate.summary)
        lab.view.note(laps.words())
        seconds = {f"seconds/{stage}": spent for stage, spent in laps.seconds.items()}
        lab.metrics.log(LEDGER_PHASE, None, {"hash": head(lab.run.path / LEDGER), **seconds})

    async def _learn(self, phase: Phase) -> Learned:
        """The phase's result: from the ledger if it is there, else by running the phase."""
        for event in self._lab.run.events():
            if event["event"] == "phase_learned" and event["phase"] == phase.name:
                return Learned(event["figures"], Policy.load(event["policy"]))
        result = await phase.algorithm.learn(phase.plan, phase.settings, LabBench(self._lab, phase.name))
        if result.policy is not None:
            self._lab.run.ledger(
                "phase_learned",
                phase=phase.name,
                policy=result.policy.dump(),
                figures=dict(result.figures),
                artifacts=[result.policy.folder],
            )
        return result

    @contextmanager
    def _noted(self, phase: Phase) -> Iterator[None]:
        run = self._lab.run
        run.ledger("phase_started", phase=phase.name, policy_versions=self._lab.policy_versions)
        try:
            yield
        except asyncio.CancelledError:
            run.ledger("phase_interrupted", phase=phase.name)
            raise
        except Exception as error:
            run.ledger("phase_failed", phase=phase.name, error=f"{type(error).__name__}: {error}")
            raise

    async def _seal(self) -> None:
        """Write the hashes of the run's files into its ledger. Large models take seconds."""
        for name in await asyncio.to_thread(seal, self._lab.run):
            self._lab.view.warn(f"{name} was changed after the run had written it")

    def _finish(self, phase: Phase, result: Learned, is_live: bool | None) -> None:
        run = self._lab.run
        file = run.rollouts_file(phase.name)
        artifacts = [file.relative_to(run.path)] if file.exists() else []
        run.ledger("phase_finished", phase=phase.name, artifacts=artifacts, figures=dict(result.figures), kept=is_live)
        self._lab.metrics.log(phase.name, None, result.figures)
        if result.policy is not None and is_live:
            self._lab.metrics.artifact(result.policy)


class Laps:
    """Wall time of a process's stages, from its start on.

    Args:
        started: When the process was started, in seconds since 1970.
    """

    def __init__(self, started: float) -> None:
        self._last = started
        self._seconds: dict[str, float] = {}

    def lap(self, stage: str) -> None:
        """All time since the last lap was spent on `stage`."""
        now = time.time()
        self._seconds[stage] = self._seconds.get(stage, 0.0) + now - self._last
        self._last = now

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of each stage, in the order of their first laps."""
        return dict(self._seconds)

    def words(self) -> str:
        """All stages that took a second or more, with their share of the whole, and the sum."""
        whole = sum(self._seconds.values())
        parts = (
            f"{stage} {seconds:.0f} s ({seconds / whole:.0%})"
            for stage, seconds in self._seconds.items()
            if seconds >= 1
        )
        return f"time: {', '.join(parts)}; {whole:.0f} s altogether"
