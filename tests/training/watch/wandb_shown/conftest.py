"""W&B as a user has it who waits, without the settings of who runs the tests."""

import os

import pytest
from mirror_kit import PATIENCE, WAIT_SECONDS
from wandb_kit import FakeWandb

SET_FOR_A_RUN = ("WANDB_SILENT", "WANDB_ERROR_REPORTING", "WANDB_DATA_DIR", "WANDB_CACHE_DIR")
"""A process that shows a run in W&B is that run's own; here the next test is another one."""


@pytest.fixture(scope="module", autouse=True)
def patient():
    """W&B's time limits are those of a user who waits; on a busy machine it would be cut off."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("training.watch.wandb.mirror.CLOSE_SECONDS", WAIT_SECONDS)
        for name, value in PATIENCE.items():
            patch.setenv(name, value)
        for name in SET_FOR_A_RUN:
            patch.setenv(name, "")
            patch.delenv(name)
        yield


@pytest.fixture(autouse=True)
def no_wandb_of_the_user(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("WANDB_") and name not in PATIENCE]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "wandb-config"))


@pytest.fixture
def server(monkeypatch):
    fake = FakeWandb()
    monkeypatch.setenv("WANDB_BASE_URL", fake.url)
    yield fake
    fake.close()
