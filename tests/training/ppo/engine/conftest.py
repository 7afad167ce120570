"""Fixtures of the PPO engine's tests."""

import gc

import pytest
from engine_kit import one_at_a_time

from training.ppo.verl.runtime import load_verl


@pytest.fixture(scope="module", autouse=True)
def quick_collections():
    """Closing an engine collects garbage, which takes a second with VeRL's hundred thousands of objects among it."""
    load_verl("cpu")
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def engine(serving_model):
    with one_at_a_time(serving_model) as open_:
        yield open_
