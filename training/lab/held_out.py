"""Rollouts on held-out tasks, made in the main process directly with the model servers.

No algorithm learns from their tokens, so they need no runners, gateway or store, and take two thirds of the time. They
are recorded like all rollouts: a resumed run finds them and makes only the missing ones.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from agents.context import Selector, Tools
from chimera.config.tree import Config
from chimera.core.errors import UnreachableError
from chimera.run.directory import Run
from chimera.serving.client import HttpModel
from chimera.serving.process import ModelServers
from evaluation.conduct.answering import answering
from evaluation.records.rollouts import RolloutInput, RolloutRecord
from evaluation.records.study import Stage
from training.lab.recorder import Recorder, identity

if TYPE_CHECKING:
    from evaluation.conduct.direct import DirectRollouts


class HeldOut:
    """Makes a run's rollouts on held-out tasks, `evaluation.concurrency` at a time.

    Args:
        check: Raises an error if all further rollouts would fail.
    """

    def __init__(
        self,
        run: Run,
        config: Config,
        servers: ModelServers,
        recorder: Recorder,
        toolbox: Callable[[], Tools],
        check: Callable[[], None],
    ) -> None:
        self._run = run
        self._config = config
        self._servers = servers
        self._recorder = recorder
        self._toolbox = toolbox
        self._check = check

    async def rollouts(
        self, inputs: Sequence[RolloutInput], stage: Stage, selector: Selector
    ) -> AsyncGenerator[RolloutRecord, None]:
        """Yield the rollouts of `inputs` after they are recorded: first those from disk, then new ones.

        Raises:
            RunError: The model server has ended.
            UnreachableError: A model server cannot be reached.
        """
        missing: list[RolloutInput] = []
        for given in inputs:
            record = self._recorder.recorded(given.phase).get(identity(given))
            if record is None:
                missing.append(given)
            else:
                yield record
        if not missing:
            return
        sampled = answering(self._servers.endpoints, self._config, self._run.gate_temperature)
        model = HttpModel(sampled, max_retries=self._config.evaluation.retries)
        try:
            # Loading the society's libraries and index of abstracts takes a second, so a thread does it.
            direct = await asyncio.to_thread(self._direct, model)
            async with aclosing(direct.rollouts(missing, stage, selector)) as records:
                async for record in records:
                    self._recorder.note(record)
                    yield record
        except UnreachableError:
            self._check()
            raise
        finally:
            await model.aclose()

    def _direct(self, model: HttpModel) -> "DirectRollouts":
        from evaluation.conduct.direct import DirectRollouts

        return DirectRollouts(self._run, self._config, model, self._toolbox(), self._check)
