"""A lab for tests: the real society and store, with a scripted OpenAI server behind them."""

import asyncio
from contextlib import asynccontextmanager

from rich.console import Console

from chimera.config.tree import Config
from chimera.core.types import ResearchTask, Section
from chimera.data.tasks import Dataset
from chimera.run.directory import Run
from chimera.run.policies import WENT_LIVE, Policy
from chimera.serving.process import serve
from evaluation.records.rollouts import RolloutInput

CONCLUSION = "the conclusion that nobody may read"
SECRET = "sk-a-users-own-secret-key-42"
SECRETS = {"TEST_KEY": SECRET, "TAVILY_API_KEY": "tvly-a-users-own-key"}
PATIENCE = 3600.0
"""Seconds; no test may end by a time limit that it does not set itself."""


def task(name, label="yes"):
    context = (Section("METHODS", f"We studied {name}."), Section("RESULTS", f"The rate of {name} was lower (p=0.01)."))
    return ResearchTask(name, f"Does {name} lower the rate?", context, label, "generated", CONCLUSION, 1)


def config_for(url, folder, **rollouts):
    models = {
        key: {
            "kind": "endpoint",
            "base_url": url,
            "model": f"scripted-{key}",
            "api_key_env": "TEST_KEY",
            "timeout_s": PATIENCE,
        }
        for key in ("junior", "supervisor", "senior", "refiner", "board", "principal", "judge")
    }
    return Config.model_validate(
        {
            "runs_dir": folder,
            "models": models,
            "society": {"node_retries": 0},
            "rollouts": {"concurrency": 2, "timeout_s": PATIENCE, "exploration": 0.0, **rollouts},
        }
    )


@asynccontextmanager
async def open_lab(url, folder, tasks, name="run", config=None, **rollouts):
    config = config or config_for(url, folder, **rollouts)
    with Run.create(name, config) as run:
        async with lab_of(run, config, Dataset(tuple(tasks), (), (), "generated", "test")) as lab:
            yield lab


@asynccontextmanager
async def lab_of(run, config, dataset):
    """The lab of a run, with servers of its own; what the view shows is in the run's `view.txt`."""
    from training.lab.lab import Lab
    from training.watch.metrics import Metrics
    from training.watch.view import make_view

    with (
        serve(config.models, config.serving, SECRETS, log_file=run.path / "logs" / "models.log") as servers,
        (run.path / "view.txt").open("w") as output,
    ):
        view = make_view(Console(file=output, width=120), config.rollouts.concurrency)
        async with Lab(run, config, dataset, servers, SECRETS, view, Metrics(run)) as lab:
            yield lab


async def collect(lab, tasks, phase="gather"):
    inputs = [RolloutInput.of(one, phase, 0, 0) for one in tasks]
    return {episode.record.task_id: episode.record async for episode in lab.rollouts(inputs)}


def choice_goes_live(run, seed=0):
    """From now on a bandit that has learned nothing chooses for the supervisor."""
    from agents.policies.bandit import BanditPolicy, Settings
    from training.algorithms.bandit import BanditSettings

    choice = Policy.made("choice", "Supervisor", "bandit")
    BanditPolicy(Settings.of(BanditSettings(), seed)).save(run.path / choice.folder)
    run.ledger(WENT_LIVE, phase="bandit", policy=choice.dump(), artifacts=[choice.folder])


class AllAtOnce:
    """Every rollout waits in its first call until `go` is set; `together` is, when all of them wait."""

    def __init__(self, openai, names):
        self.begun, self.together, self.go = set(), asyncio.Event(), asyncio.Event()
        self._openai, self._names, self._loop = openai, names, asyncio.get_running_loop()
        openai.hooks.append(self._hook)

    def _hook(self, request):
        if self.go.is_set():
            return None
        self.begun.update(name for name in self._names if name in self._openai.goal(request))
        if len(self.begun) == len(self._names):
            self._loop.call_soon_threadsafe(self.together.set)
        return self._wait()

    async def _wait(self):
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.go.wait(), self._loop))
