"""Families of Holm's correction: declared in the configuration, recorded at the run's start, and compared later."""

import pytest
from message_kit import refused

from chimera.config.sections.evaluation import PRIMARY
from chimera.core.errors import ConfigError
from chimera.run.directory import Run
from evaluation.measures import families
from evaluation.measures.metrics import metrics_of
from training.configuration import load_config

DEFAULT = load_config().evaluation.families
OTHER = load_config(overrides=["evaluation.families={all: ['*/*']}"])


def test_by_default_the_main_question_stands_alone():
    assert families.family_of("base:final", "reward", DEFAULT, "base:final") == "main"
    assert families.family_of("base:sft", "reward", DEFAULT, "base:final") == "elsewhere"
    assert families.family_of("base:final", "turns", DEFAULT, "base:final") == "everything else"
    assert families.family_of("base:final", "alignment", DEFAULT, None) == "elsewhere"


def test_the_primary_metrics_are_those_that_the_default_names():
    assert tuple(metric.name for metric in metrics_of(load_config()) if metric.primary) == PRIMARY


@pytest.mark.parametrize(
    ("patterns", "said"),
    [
        ("[main/aligment]", ("families.f", "'main/aligment'", "'aligment'", "'alignment'")),
        ("['*/part_nope*']", ("'*/part_nope*'", "'part_novelty'")),
        ("[main/cost]", ("'main/cost'", "'cost'", "reward")),
    ],
)
def test_unknown_metrics_are_refused_by_name(patterns, said):
    with refused(ConfigError, said):
        families.check(load_config(overrides=[f"evaluation.families.f={patterns}"]))


def test_known_metrics_are_not():
    families.check(load_config())
    families.check(OTHER)
    priced = ["evaluation.families.f=['*/part_*', main/cost]", "evaluation.prices={junior: [1, 2]}"]
    families.check(load_config(overrides=priced))


@pytest.mark.parametrize("value", ["reward", "[]", "[reward]", "[a b/reward]", "[3]"])
def test_what_is_no_pattern_is_refused(value):
    with refused(ConfigError, "families.f"):
        load_config(overrides=[f"evaluation.families.f={value}"])


def test_a_report_says_when_its_families_were_declared_or_that_they_were_not(tmp_path):
    config = load_config(overrides=[f"runs_dir={tmp_path}"])
    with Run.create("run", config) as run:
        undeclared = families.about(run, config, {"main": 3, "everything else": 2})
        assert undeclared["used"]["elsewhere"]["tests"] == 0
        assert "declares no families" in families.note(undeclared)
        run.ledger("planned", phases=["gather"], families=config.evaluation.families)
        as_declared = families.about(run, config, {"main": 3, "everything else": 2})
        assert families.note(as_declared) is None
        assert as_declared["declared"] == list(run.events())[-1]["time"]
        assert as_declared["used"]["main"] == {"patterns": DEFAULT["main"], "tests": 3}
        assert as_declared["used"]["everything else"] == {"patterns": [], "tests": 2}
        changed = families.about(run, OTHER, {"all": 5})
        assert f"not those that the run declared at its start, {changed['declared']}" in families.note(changed)


def test_the_first_declaration_counts_also_when_the_run_is_continued_with_others(tmp_path):
    config = load_config(overrides=[f"runs_dir={tmp_path}"])
    with Run.create("run", config) as run:
        run.ledger("planned", phases=["gather"], families=config.evaluation.families)
        run.ledger("planned", phases=["gather"], families=OTHER.evaluation.families)
        assert families.declared(run)["families"] == DEFAULT
        assert families.note(families.about(run, OTHER, {"all": 1})) is not None


def test_another_order_of_families_is_another_declaration(tmp_path):
    """The first family that matches takes a test, so a run directory keeps the order."""
    config = load_config(overrides=[f"runs_dir={tmp_path}", "evaluation.families={z: [main/reward], a: ['*/reward']}"])
    with Run.create("run", config) as run:
        run.ledger("planned", phases=["gather"], families={"a": ["*/reward"], "z": ["main/reward"]})
        assert list(run.config.evaluation.families) == ["z", "a"]
        assert families.note(families.about(run, run.config, {})) is not None
