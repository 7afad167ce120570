"""A new run with its lab, as benchmarks of rollouts need it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from chimera.config.tree import Config
from chimera.data.tasks import Dataset
from chimera.run.directory import Run
from chimera.serving.process import serve

if TYPE_CHECKING:
    from training.lab.lab import Lab


@asynccontextmanager
async def open_lab(config: Config, dataset: Dataset, folder: Path) -> "AsyncIterator[tuple[Run, Lab]]":
    """A new run and its lab, which watch nothing and print nothing. The model servers write their log in `folder`."""
    from training.lab.lab import Lab
    from training.watch.metrics import Metrics
    from training.watch.view import make_view

    view = make_view(Console(file=StringIO()), config.rollouts.runners)
    with (
        Run.create(None, config) as run,
        serve(config.models, config.serving, {}, log_file=folder / "models.log") as servers,
    ):
        async with Lab(run, config, dataset, servers, {}, view, Metrics(run)) as lab:
            yield run, lab
