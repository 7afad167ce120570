"""Fixtures of the PPO engine's tests."""

import gc

import pytest
from engine_kit import ppo_settings

from training.ppo.engine.update import PpoEngine
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
    """Opens one engine at a time; the last one is closed at the end."""
    opened: list[PpoEngine] = []

    def open_(config=None, *, folder=None, seed=0, total_steps=20, temperature=1.0, phase="ppo", **options):
        if opened:
            opened.pop().close()
        config = config or ppo_settings(**{"lr": 1e-3, "ppo_mini_batch_size": 8, "entropy_coeff": 0.01} | options)
        folder = folder or serving_model(seed=3)
        of_phase = {"seed": seed, "total_steps": total_steps, "temperature": temperature, "phase": phase}
        opened.append(PpoEngine(folder, config, **of_phase))
        return opened[0]

    yield open_
    for one in opened:
        one.close()
