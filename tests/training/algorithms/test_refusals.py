"""What the algorithms that learn from branches refuse before anything starts."""

import pytest
from message_kit import refused

from chimera.core.errors import ConfigError
from chimera.data.tasks import load
from training.configuration import load_config
from training.phases import make_phases

REFINER = "roles=[HypothesisRefiner]"
OF_EACH = [
    ("tasks=1000", ("{phase}.tasks=1000", "24 training tasks")),
    ("batch_size=9", ("{phase}.batch_size=9", "{phase}.micro_batch_size=")),
    ("quantile=0.5", ("unknown key pipeline.{phase}.quantile", "config {phase}")),
]
OF_ONE = [
    ("dpo", ["roles=[Supervisor]"], ("Supervisor",)),
    ("rejection", ["roles=[Supervisor]"], ("rejection.right=both", "Supervisor", "set rejection.right=any")),
    ("rejection", ["roles=[ProtocolDesigner]", "right=quotes"], ("rejection.right=quotes", "ProtocolDesigner")),
    ("star", ["roles=[Supervisor]"], ("Supervisor", "star.roles")),
    ("star", [REFINER, "right=any"], ("star.right=any",)),
    ("distil", [REFINER, "teacher=slot"], ("slot is ''", "name the slot", "refiner")),
    ("distil", [REFINER, "teacher=slot", "slot=refiner"], ("slot is 'refiner'", "name the slot")),
    ("distil", [REFINER, "teacher=slot", "slot=nobody"], ("'nobody'",)),
    ("distil", [REFINER, "teacher=slot", "slot=board"], ("distil.slot=board", "rubric", "name another slot")),
    ("distil", [REFINER, "slot=senior"], ("teacher is 'vote'",)),
    ("distil", [REFINER, "teacher=greedy", "answers=9"], ("teacher is 'greedy'",)),
    ("distil", ["roles=[ProtocolDesigner]", "teacher=society"], ("ProtocolDesigner", "hypotheses")),
    ("ppo", ["roles=[juniors]", "states=0", "credit=counterfactual"], ("ppo.credit=counterfactual", "set ppo.credit")),
]


def start(phase: str, *settings: str) -> None:
    named = [setting if setting.startswith("models.") else f"pipeline.{phase}.{setting}" for setting in settings]
    config = load_config(None, ["data.size=40", *named])
    make_phases([phase], config, load(config.data))


@pytest.mark.parametrize("phase", ["dpo", "rejection", "star", "distil"])
@pytest.mark.parametrize(("setting", "pieces"), OF_EACH)
def test_what_no_phase_can_do_is_refused(phase: str, setting: str, pieces: tuple[str, ...]):
    with refused(ConfigError, *(piece.format(phase=phase) for piece in pieces)):
        start(phase, REFINER, setting)


@pytest.mark.parametrize(("phase", "settings", "pieces"), OF_ONE)
def test_what_one_phase_cannot_do_is_refused(phase: str, settings: list[str], pieces: tuple[str, ...]):
    with refused(ConfigError, *pieces):
        start(phase, *settings)


@pytest.mark.parametrize("phase", ["dpo", "distil"])
def test_a_model_that_always_gives_one_answer_is_refused(phase: str):
    with refused(ConfigError, "models.refiner.temperature=0", "set it"):
        start(phase, REFINER, "models.refiner.temperature=0")
