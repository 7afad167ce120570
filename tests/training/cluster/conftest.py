"""Fixtures of the tests of several ranks: starting a team takes many seconds, so that tests share one."""

import psutil
import pytest

from training.algorithms.ppo.settings import PpoSettings
from training.cluster.team import Team
from training.cluster.team_engine import TeamEngine
from training.engines.local import PpoEngine


class KeptTeam(Team):
    """A team that outlives its engine while all of its ranks live."""

    @property
    def whole(self):
        return all(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in self.pids)

    def end(self):
        if not self.whole:
            super().end()


class Teams:
    """Gives a team, and starts a new one if the last has lost a rank."""

    def __init__(self, logs):
        self.logs, self.started = logs, []

    def __call__(self):
        if not self.started or not self.started[-1].whole:
            self.started.append(KeptTeam(2, self.logs, "test"))
        return self.started[-1]

    def close(self):
        for team in self.started:
            Team.end(team)


@pytest.fixture(scope="module")
def teams(tmp_path_factory):
    made = Teams(tmp_path_factory.mktemp("logs"))
    yield made
    made.close()


@pytest.fixture
def two(teams, serving_model):
    """Opens an engine of two ranks; `newest` is its newest checkpoint."""

    def open_(*, newest=lambda: None, note=lambda text: None, seed=0, team=teams, **options):
        return TeamEngine(
            serving_model(seed=3), ppo(ranks=2, **options), seed=seed, total_steps=20, team=team, newest=newest,
            note=note, device="cpu",
        )  # fmt: skip

    return open_


@pytest.fixture
def one(serving_model):
    """Opens an engine of one rank, which is this process; the last one is closed at the end."""
    opened = []

    def open_(*, seed=0, **options):
        if opened:
            opened.pop().close()
        opened.append(PpoEngine(serving_model(seed=3), ppo(**options), seed=seed, total_steps=20, device="cpu"))
        return opened[0]

    yield open_
    for engine in opened:
        engine.close()


def ppo(**options):
    return PpoSettings(**{"lr": 1e-3, "ppo_mini_batch_size": 8, "entropy_coeff": 0.01} | options)
