"""Fixtures of the tests of several ranks: starting them takes many seconds, so that tests share them."""

import pytest
from engine_kit import ppo_settings

from training.ppo.engine.update import PpoEngine
from training.ppo.ranks.here import LocalRanks
from training.ppo.ranks.ranks import RanksEngine


class KeptRanks(LocalRanks):
    """Ranks that outlive their engine while all of them live."""

    @property
    def whole(self):
        return all(child.alive() for child in self._children)

    def close(self):
        if not self.whole:
            super().close()


class Shared:
    """Gives two ranks, and starts new ones if one was lost."""

    def __init__(self, logs):
        self.logs, self.started = logs, []

    def __call__(self):
        if not self.started or not self.started[-1].whole:
            self.started.append(KeptRanks(2, self.logs, "test"))
        return self.started[-1]

    def close(self):
        for ranks in self.started:
            LocalRanks.close(ranks)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    shared = Shared(tmp_path_factory.mktemp("logs"))
    yield shared
    shared.close()


@pytest.fixture
def two(ranks, serving_model):
    """Opens an engine of two ranks, or of those that `start` gives."""

    def open_(*, seed=0, start=ranks, **options):
        settings = ppo(ranks=2, **options)
        return RanksEngine(serving_model(seed=3), settings, start, seed=seed, total_steps=20, device="cpu")

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
    return ppo_settings(**{"lr": 1e-3, "ppo_mini_batch_size": 8, "entropy_coeff": 0.01} | options)
