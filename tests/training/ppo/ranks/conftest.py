"""Fixtures of the tests of several ranks: starting them takes many seconds, so that tests share them."""

import pytest
from engine_kit import one_at_a_time, small_steps

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

    def open_(*, start=ranks, **options):
        settings = small_steps(ranks=2, **options)
        return RanksEngine(serving_model(seed=3), settings, start, seed=0, total_steps=20, device="cpu")

    return open_


@pytest.fixture
def one(serving_model):
    with one_at_a_time(serving_model, "cpu") as open_:
        yield open_
