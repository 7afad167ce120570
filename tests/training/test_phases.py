"""What is refused before anything starts, and which class stands behind an algorithm's name."""

import sys

import pytest
from message_kit import refused

from chimera.core.errors import ConfigError
from chimera.data.tasks import load
from training.configuration import find_algorithm, load_config
from training.phases import choose_names, make_phases

SHARED = ["roles.HypothesisRefiner.model=senior"]
TWO = [
    *("pipeline.refine.algorithm=ppo", "pipeline.refine.roles=[HypothesisRefiner]"),
    *("pipeline.design.algorithm=ppo", "pipeline.design.roles=[ProtocolDesigner]"),
]


def phases(names, *overrides):
    config = load_config(None, overrides)
    return make_phases(choose_names(names, config), config, load(config.data))


def test_two_phases_may_not_train_one_slot_by_the_answers_of_different_roles():
    both = ("pipeline.refine", "pipeline.design", "slot senior", "HypothesisRefiner", "pipeline.design.shared=true")
    with refused(ConfigError, both):
        phases("refine,design", *TWO, *SHARED)
    assert [one.plan.slot for one in phases("refine,design", *TWO)] == ["refiner", "senior"]
    shared = phases("refine,design", *TWO, *SHARED, "design.shared=true")
    assert [one.plan.slot for one in shared] == ["senior", "senior"]


def test_a_plan_has_its_roles_in_the_order_of_the_society_and_each_slot_once():
    (phase,) = phases("sft", "sft.roles=[Neurologist, Geneticist, juniors]")
    assert phase.plan.roles == ("Geneticist", "Pharmacologist", "Neurologist")
    assert phase.plan.slots == ("junior",)


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["sft.roles=[Genetist]"], ("pipeline.sft.roles", "'Genetist'", "'Geneticist'")),
        (["sft.roles=[Judge]"], ("pipeline.sft.roles", "Judge")),
        (["gather.roles=juniors"], ("pipeline.gather.roles", "remove it")),
        (["pipeline.aflow.roles=[juniors]"], ("pipeline.aflow.roles", "remove it")),
        (["bandit.roles=[Supervisor, Geneticist]"], ("pipeline.bandit.roles", "Geneticist", "Supervisor")),
        (
            ["models.senior.kind=endpoint", "models.senior.base_url=http://x/v1", "models.senior.model=m"],
            (
                "ppo and design",
                "models.refiner.kind=endpoint, models.senior.kind=endpoint",
                "--phases gather,sft,bandit",
            ),
        ),
    ],
)
def test_what_cannot_work_is_one_sentence(overrides, complaint):
    with refused(ConfigError, complaint):
        phases(None, *overrides)


GOOD = """
from typing import ClassVar
from chimera.config.pipeline import PhaseSettings
from training.learning.base import Learned

class Mine:
    Settings = PhaseSettings
    part: ClassVar[str | None] = None
    def check(self, plan, settings, config, dataset): ...
    async def learn(self, plan, settings, bench): return Learned()
"""


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        (("class Mine", "class Other"), ("unfit", "Mine")),
        (("    Settings = PhaseSettings\n", ""), ("unfit:Mine", "Settings")),
        (("= None", "= 'prompt'"), ("attribute part", "'guidance' and 'graph'")),
        (
            ("    async def learn(self, plan, settings, bench)", "    async def learn(self, plan)"),
            ("learn takes (plan)", "(plan, settings, bench)"),
        ),
        (("async def learn", "def learn"), ("method learn", "async")),
        (("from typing", "from typping"), ("unfit", "'typping'")),
    ],
)
def test_a_class_that_does_not_fit_is_refused_with_the_reason(tmp_path, monkeypatch, changed, complaint):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "fits.py").write_text(GOOD)
    assert find_algorithm("fits:Mine").part is None
    (tmp_path / "unfit.py").write_text(GOOD.replace(*changed))
    try:
        with refused(ConfigError, complaint):
            load_config(None, ["pipeline.mine.algorithm=unfit:Mine"])
    finally:
        sys.modules.pop("unfit", None)
        sys.modules.pop("fits", None)
