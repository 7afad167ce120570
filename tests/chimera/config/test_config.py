"""Configuration: files and overrides, and each that is wrong is one located sentence."""

from pathlib import Path
from typing import Any

import pytest
from config_kit import written
from message_kit import refused

from chimera.core.errors import ConfigError
from training.configuration import load_config


def test_overrides_win_over_the_file_and_the_file_over_defaults(tmp_path: Path):
    file = written(tmp_path, "gather:\n  tasks: 3\n  repeats: 4\n")
    config = load_config(file, ["gather.tasks=5", "gather.tasks=6"])
    assert (config.pipeline["gather"].tasks, config.pipeline["gather"].repeats, config.rollouts) == (
        6,
        4,
        load_config().rollouts,
    )


def test_setting_one_key_of_a_model_keeps_that_models_other_defaults():
    config = load_config(None, ["models.junior.timeout_s=7"])
    assert (config.models["junior"].path, config.models["junior"].timeout_s) == ("nano", 7)


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("models.junior.temperature=1e-1", 0.1),
        ("models.junior.timeout_s=1", 1.0),
        ("data.levels=[1, 3]", (1, 3)),
        ("data.path=no", "no"),
        ("data.path=1:30", "1:30"),
        ("data.path=a=b", "a=b"),
        ("tools.database=null", None),
        ("tools.database=x/y.db", Path("x/y.db")),
        ("gather={tasks: 3}", 3),
    ],
)
def test_override_values_are_yaml(override: str, value: object):
    key = override.partition("=")[0] if "{" not in override else "pipeline.gather.tasks"
    loaded: Any = load_config(None, [override])
    for part in key.split("."):
        loaded = loaded[part] if isinstance(loaded, dict) else getattr(loaded, part)
    assert loaded == value


HALF = r'"Be brief \ud800"'


def test_half_a_character_is_refused_with_key_and_place(tmp_path: Path):
    file = written(tmp_path, f"society:\n  guidance:\n    Juniors:\n      lessons: [{HALF}]\n")
    for arguments, place in (
        ((file,), f"society.guidance.Juniors.lessons at {file}:4"),
        ((None, [f"society.guidance.Juniors.examples=[{{goal: {HALF}}}]"]), "examples on the command line"),
    ):
        with refused(ConfigError, f"{place}: ", r"'\ud800'", "write the text in UTF-8"):
            load_config(*arguments)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("gather:\n  taks: 3\n", 2, ["unknown key pipeline.gather.taks", "nearest key is pipeline.gather.tasks"]),
        ("gater:\n  tasks: 3\n", 2, ["unknown key gater.tasks", "nearest key is "]),
        ("modles:\n  senior: {path: x}\n", 2, ["nearest key is models.senior.path"]),
        ("evidence: given\n", 1, ["nearest key is society.evidence"]),
        ("data:\n\n  size: many\n", 3, ["data.size", '"many"', "whole number", "10"]),
        ("data:\n  size: 9\n", 2, ["data.size", "9", "10"]),
        ("data:\n  levels: [1, 5]\n", 2, ["data.levels", "[1, 5]", "1, 2, 3 or 4"]),
        ("data:\n  levels: []\n", 2, ["data.levels", "[]", "at least 1"]),
        ("models:\n  junior:\n    kind: vlm\n", 3, ["models.junior.kind", "vlm", "'endpoint'"]),
        ("data:\n  size: true\n", 2, ["data.size", "true"]),
        ("serving:\n  threads: '2'\n", 2, ["serving.threads", '"2"']),
        ("rollouts:\n  timeout_s: .inf\n", 2, ["rollouts.timeout_s"]),
        ("rollouts: 8\n", 1, ["rollouts", "section", "rollouts.concurrency"]),
        ("seed:\n  gather: 1\n", 2, ["seed", "one value"]),
        ("1: 2\n", 1, ["key must be a name"]),
        ("- gather\n", 1, ["mapping of sections"]),
        ("data: &a\n  b: *a\n", 1, ["nested more than"]),
        ("models:\n  junior:\n    extra_body: {a.b: 1}\n", 3, ["'a.b'", "without a dot"]),
        ("models:\n  junior: {api_key: sk-verysecret1}\n", 2, ["models.junior.api_key", "environment"]),
        ("tavily_api_key: sk-verysecret1\n", 1, ["tavily_api_key", ".env"]),
        ("hf_token: sk-verysecret1\n", 1, ["hf_token", "secret"]),
    ],
)
def test_a_wrong_file_is_one_sentence_with_key_line_and_remedy(tmp_path: Path, text: str, line: int, words: list[str]):
    file = written(tmp_path, text)
    with refused(ConfigError, f"{file}:{line}", *words) as caught:
        load_config(file)
    assert "sk-verysecret1" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["seed: 1\nseed: 2\n", "gather: {tasks: 1}\ngather.tasks: 2\n", "gather: {}\ngather: 1"]
)
def test_a_key_set_twice_in_a_file_is_an_error_that_names_both_lines(tmp_path: Path, text: str):
    with refused(ConfigError, "set twice", "c.yaml:1", "c.yaml:2", "keep one"):
        load_config(written(tmp_path, text))


@pytest.mark.parametrize("text", ["a: [1", "a: b: c", "!!python/object:os.system {}", "a: 1\n---\nb: 2\n", "\x00"])
def test_a_file_that_is_not_yaml_is_an_error_that_names_it(tmp_path: Path, text: str):
    with pytest.raises(ConfigError, match=r"c\.yaml"):
        load_config(written(tmp_path, text))


def test_a_missing_or_unreadable_file_is_an_error_that_names_it(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"nope\.yaml does not exist"):
        load_config(tmp_path / "nope.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ConfigError, match=r"bytes\.yaml cannot be read"):
        load_config(tmp_path / "bytes.yaml")


def test_an_empty_file_and_empty_sections_keep_the_defaults(tmp_path: Path):
    assert load_config(written(tmp_path, "# nothing\n")) == load_config()
    assert load_config(written(tmp_path, "gather:\ndata: {}\n")) == load_config()


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("gather.task=3", ["unknown key pipeline.gather.task on the command line", "gather.tasks"]),
        ("gather.tasks", ["not an override", "key=value"]),
        ("=3", ["not an override"]),
        ("data.levels=[1", ["data.levels", "not valid YAML"]),
        ("gather.tasks=0", ["gather.tasks is 0 on the command line", "greater than or equal to 1"]),
        ("gather.tasks=", ["gather.tasks is null"]),
        ("gather={tasks: 1, tasks: 2}", ["gather.tasks is set twice"]),
        ("models.junior.api_key=sk-verysecret1", ["environment or .env"]),
        ("models.junior.api_key_env=sk-verysecret1", ["models.junior.api_key_env", "name of an environment variable"]),
        ("models.junior.base_url=http://me:sk-verysecret1@host/v1", ["models.junior.base_url", "without user"]),
        ("models.junior.base_url=localhost:11434", ["models.junior.base_url", "http"]),
        ("models.junior.base_url=http://[::1", ["models.junior.base_url", "HOST:PORT"]),
        ("models.junior.base_url=http://a:99999/v1", ["models.junior.base_url", "HOST:PORT"]),
        ("data.path=''", ["data.path"]),
        ("models.board={kind: endpoint, model: m}", ["models.board on the command line", "base_url and model"]),
        (f"pipeline.{'a' * 41}.algorithm=gepa", [f"pipeline.{'a' * 41}", "at most 40"]),
    ],
)
def test_a_wrong_override_is_one_sentence(override: str, words: list[str]):
    with refused(ConfigError, *words) as caught:
        load_config(None, [override])
    assert "sk-verysecret1" not in str(caught.value)


@pytest.mark.parametrize("key", ["seed", "data.seed"])
def test_a_seed_is_what_numpy_takes(key: str):
    assert load_config(None, [f"{key}={2**32 - 1}"])
    for wrong in (-1, 2**32):
        with refused(ConfigError, key, wrong, "on the command line", "4294967295"):
            load_config(None, [f"{key}={wrong}"])


@pytest.mark.parametrize("text", ["[" * 1000, "a: " + "[" * 1000 + "]" * 1000, "seed: " + "9" * 5000])
def test_what_python_cannot_read_is_one_sentence(tmp_path: Path, text: str):
    with refused(ConfigError, "c.yaml", "not valid YAML"):
        load_config(written(tmp_path, text))
    with refused(ConfigError, "seed on the command line"):
        load_config(None, ["seed=" + text.removeprefix("a: ").removeprefix("seed: ")])


def test_the_config_command_prints_what_is_in_effect(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    from chimera.config.command import main

    main(["gather.tasks=3", "--yaml", "models.junior.path=p"])
    config = load_config(written(tmp_path, capsys.readouterr().out))
    assert (config.pipeline["gather"].tasks, config.models["senior"].path) == (3, "p")


def test_a_free_mapping_takes_any_keys_below_it(tmp_path: Path):
    file = written(tmp_path, "ppo:\n  verl:\n    actor:\n      a: 1\n      b: {c: no}\n")
    config = load_config(file, ["ppo.verl.actor.a=2", "ppo.verl.optim={betas: [0.9, 0.95]}"])
    added = {"actor": {"ppo_epochs": 2, "a": 2, "b": {"c": "no"}}, "optim": {"betas": [0.9, 0.95]}}
    assert config.pipeline["ppo"].verl == {"algorithm": {"norm_adv_by_std_in_grpo": False}, **added}
    assert load_config(file, ["ppo.verl.actor={}", "ppo.verl.actor.ppo_epochs=1"]).pipeline["ppo"].verl["actor"] == {
        "ppo_epochs": 1
    }
