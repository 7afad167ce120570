"""One run from start to end: starts the servers, runs the phases, and stops the servers in any case.

This module imports little, so that the model server loads its libraries while the main process loads its own.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

from rich.console import Console

from chimera.config.tree import Config
from chimera.core.machine import LOOPBACK
from chimera.core.secrets import protect_logging
from chimera.data.tasks import Dataset
from chimera.run.directory import Run
from chimera.serving.process import serve
from evaluation.telemetry.sender import telemetry
from training.interrupt import interruptible
from training.phases import Phase
from training.watch.view import make_view


def train(run: Run, config: Config, dataset: Dataset, phases: Sequence[Phase], secrets: Mapping[str, str]) -> None:
    """Run `phases` and record everything in `run`.

    Raises:
        KeyboardInterrupt: The user stopped the run. Finished work is on disk.
        ChimeraError: A phase or a server failed.
    """
    print("starting model servers ...", flush=True)
    try:
        _log_to(run.path / "logs" / "main.log")
        asyncio.run(_train(run, config, dataset, phases, secrets))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _log_to(file: Path) -> None:
    """Send libraries' warnings to a file, because on the terminal they would break the live view."""
    file.parent.mkdir(exist_ok=True)
    logging.basicConfig(
        filename=file, level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
    logging.raiseExceptions = False  # Otherwise a full disk would cause a traceback for every line of the log.
    protect_logging()


async def _train(
    run: Run, config: Config, dataset: Dataset, phases: Sequence[Phase], secrets: Mapping[str, str]
) -> None:
    task = asyncio.current_task()
    assert task is not None
    with ExitStack() as stack:
        view = stack.enter_context(make_view(Console(), config.rollouts.concurrency))
        stack.enter_context(view.doing("stopping model servers"))
        stack.enter_context(telemetry(run, config.telemetry, secrets, view.note))
        stack.enter_context(interruptible(task))
        log_file = run.path / "logs" / "models.log"
        learning = config.learning()
        serving = serve(
            config.served(),
            config.serving,
            secrets,
            log_file=log_file,
            learning=learning,
            on_warning=view.warn,
            host=config.cluster.host if config.rollouts.on == "ray" else LOOPBACK,
        )
        starting = asyncio.create_task(asyncio.to_thread(stack.enter_context, serving))
        await asyncio.sleep(0)
        with view.doing("starting model servers"):
            from training.lab.lab import Lab
            from training.pipeline import Pipeline
            from training.watch.metrics import Metrics
            from training.watch.wandb.mirror import wandb_mirror

            stack.enter_context(wandb_mirror(run, config, secrets, view.note))
            servers = await starting
        async with AsyncExitStack() as doors:
            with view.doing("loading the society and its tools"):
                lab = await doors.enter_async_context(Lab(run, config, dataset, servers, secrets, view, Metrics(run)))
            await Pipeline(phases, lab).run()
