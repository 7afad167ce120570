"""Slots of models: what one inherits from another, and what each kind needs."""

from pathlib import Path

import pytest
from config_kit import CONFIGS, HEIRS, endpoint, written
from message_kit import refused

from chimera.config.sections.models import SLOTS
from chimera.core.errors import ConfigError
from training.configuration import load_config


def test_one_line_replaces_the_trained_model_but_where_an_heir_sets_another():
    models = load_config(None, ["models.junior.path=/my/model"]).models
    assert [models[name].path for name in ("junior", *HEIRS)] == ["/my/model"] * 4
    assert models["board"] == load_config().models["board"]
    overrides = ["models.junior.temperature=0.5", "models.junior.path=a", "models.senior.path=b"]
    models = load_config(None, overrides).models
    assert (models["senior"].path, models["senior"].temperature) == ("b", 0.5)
    assert (models["supervisor"].path, models["supervisor"].temperature) == ("a", 0.5)


def test_an_heir_of_another_kind_inherits_only_what_it_reads():
    overrides = [
        "models.junior.path=a",
        "models.junior.temperature=0.5",
        "models.junior.timeout_s=9",
        *endpoint("senior"),
    ]
    models = load_config(None, overrides).models
    assert (models["senior"].kind, models["senior"].path, models["senior"].temperature) == ("endpoint", "nano", 0.5)
    supervisor = models["supervisor"]
    assert (supervisor.kind, supervisor.path, supervisor.timeout_s) == ("embedded", "a", 9)


@pytest.mark.parametrize("model", ["junior", *HEIRS])
def test_a_rubric_grades_and_cannot_play_a_role_that_writes(model: str):
    with refused(ConfigError, "kind=rubric", "embedded or endpoint"):
        load_config(None, [f"models.{model}.kind=rubric"])


def test_a_key_is_not_inherited_to_another_server():
    overrides = [*endpoint("junior"), "models.junior.api_key_env=MY_KEY", "models.senior.base_url=http://other/v1"]
    models = load_config(None, overrides).models
    senior = models["senior"]
    assert (models["supervisor"].api_key_env, senior.api_key_env, senior.model) == ("MY_KEY", None, "m")


def test_an_inherited_wrong_value_names_where_it_was_written(tmp_path: Path):
    with refused(ConfigError, "models.junior.temperature", 3, "c.yaml:3"):
        load_config(written(tmp_path, "models:\n  junior:\n    temperature: 3\n"))


def test_the_endpoint_example_has_a_server_for_every_model():
    models = load_config(CONFIGS / "endpoint.yaml").models
    assert [name for name in SLOTS if models[name].kind != "endpoint"] == []


@pytest.mark.parametrize(
    ("overrides", "sent"),
    [
        ([], ["always"] * 4),
        (["models.senior.kind=endpoint"], ["always", "always", "final", "always"]),
        (["models.junior.kind=endpoint"], ["final", "final", "final", "always"]),
        (["models.junior.kind=endpoint", "models.senior.structured=always"], ["final", "final", "always", "always"]),
        (["models.junior.structured=never", "models.senior.kind=endpoint"], ["never", "never", "never", "always"]),
        (["models.board.kind=endpoint"], ["always", "always", "always", "final"]),
    ],
)
def test_endpoints_get_a_schema_only_where_no_tools_are_offered_unless_set(overrides, sent):
    kinds = [one.partition(".kind")[0] for one in overrides if one.endswith("kind=endpoint")]
    address = [f"{model}.{key}" for model in kinds for key in ("base_url=http://x/v1", "model=big")]
    models = load_config(None, [*overrides, *address]).models
    assert [models[name].sends_schema for name in ("junior", "supervisor", "senior", "board")] == sent
