"""All keys: described, bounded and read; what was loaded can be dumped and loaded again."""

import ast
import re
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml
from config_kit import CONFIGS, HEIRS, endpoint, written
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from message_kit import refused
from pydantic.fields import FieldInfo

from chimera.config.loader import AnyPath, ConfigSection, absent, effective, keys, sections, validate
from chimera.config.names_elsewhere import GONE, NAMES, OPTIONS
from chimera.config.pipeline import SETTINGS_OF
from chimera.config.sections.models import SLOTS
from chimera.config.source import parse_overrides, parse_yaml, to_yaml
from chimera.config.tree import dump_config
from chimera.core.errors import ConfigError
from training.configuration import load_config, settings_of

ROOT = Path(__file__).parents[3]
KNOWN = {key.name.removeprefix("pipeline.") for key in keys(load_config())}


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tree.items():
        section = isinstance(value, dict) and value
        found |= flat(value, f"{prefix}{key}.") if section else {f"{prefix}{key}": value}
    return found


@settings(max_examples=50)
@given(
    st.text(st.characters(categories=["Ll"]), min_size=1), st.sampled_from(["", "data.", "models.junior.", "nothing."])
)
def test_any_unknown_key_names_a_valid_one_or_where_they_are_listed(name: str, section: str):
    assume(not any(f"{other}.".startswith(f"{section}{name}.") for other in KNOWN))
    assume("token" not in name and "secret" not in name and "key" not in name and "pass" not in name)
    with pytest.raises(ConfigError) as caught:
        load_config(None, [f"{section}{name}=1"])
    nearest = re.search(r"the nearest key is (\S+) ", str(caught.value))
    assert nearest[1].removeprefix("pipeline.") in KNOWN if nearest else "python -m chimera config" in str(caught.value)


@pytest.mark.parametrize("place", ["provider_options", "extra_body.more"])
def test_a_secret_within_free_fields_is_refused_and_where_one_lies_is_not(place: str):
    slot = "models.junior={kind: endpoint, model: m, base_url: 'http://127.0.0.1/v1'}"
    slot = slot.replace("base_url: 'http://127.0.0.1/v1'", "provider: anthropic") if "provider" in place else slot
    for key, value in (
        ("api_key", "sk-ant-1"), ("x-api-key", "sk-ant-1"), ("Authorization", "Bearer sk-ant-1"),
        ("x", "[{api_key: sk-ant-1}]"), ("x", "{more: [[{hf_token: sk-ant-1}]]}"),
    ):  # fmt: skip
        with refused(ConfigError, f"models.junior.{place}.{key}", "environment or .env"):
            load_config(None, [slot, f"models.junior.{place}.{key}={value}"])
    load_config(None, [slot, f"models.junior.{place}.credentials_profile_name=lab"])


def test_a_path_may_begin_with_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_config(None, ["runs_dir=~/runs"]).runs_dir == tmp_path / "runs"


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("sft.learning_rate=1e-3", "the nearest key is pipeline.sft.lr "),
        ("design.learning_rate=1e-3", "the nearest key is pipeline.design.lr "),
        ("ppo.num_generations=4", "the nearest key is pipeline.ppo.n "),
        ("ppo.epochs=2", "set pipeline.ppo.verl.actor.ppo_epochs=2"),
        ("ppo.mini_batch_size=8", "the nearest key is pipeline.ppo.ppo_mini_batch_size "),
        ("sft.num_train_epochs=2", "the nearest key is pipeline.sft.epochs "),
        ("gahter.tasks=2", "the nearest key is pipeline.gather.tasks "),
        ("senior.path=x", "the nearest key is models.senior.path "),
        ("data.columns.question=q", "the nearest key is data.columns.goal "),
        ("evaluation.tasks=5", "is no setting but --limit N of python -m chimera.eval"),
        ("sft.zzz=5", "no key is like it (python -m chimera config sft lists the keys of pipeline.sft)"),
        ("zzz.qqq=5", "no key is like it (python -m chimera config --all lists all)"),
    ],
)
def test_an_unknown_key_is_answered_with_what_was_meant(override: str, hint: str):
    with refused(ConfigError, f"{override.partition('=')[0]} on the command line: ", hint):
        load_config(None, [override])


def test_names_that_other_software_uses_lead_to_keys_that_exist():
    lasts = {key.rpartition(".")[2] for key in (*GONE, *(key.name for key in keys(load_config())))}
    assert set(NAMES.values()) <= lasts
    assert not {*OPTIONS, *GONE} & {key.name for key in keys(load_config(), examples=True)}


@pytest.mark.parametrize("key", [*GONE, "gateway.engine", "cluster.tls.on"])
def test_a_key_of_an_earlier_version_is_answered_with_what_became_of_it(tmp_path: Path, key: str):
    became = GONE.get(key) or GONE[key.rpartition(".")[0]]
    key = key.replace("models.*", "models.junior").replace("pipeline.*", "pipeline.ppo")
    became = became.format(above=key.rpartition(".")[0], value=1)
    file = written(tmp_path, f"{key}: 1\n")
    for arguments, place in (((file,), f"at {file}:1"), ((None, [f"{key}=1"]), "on the command line")):
        with pytest.raises(ConfigError) as caught:
            load_config(*arguments)
        assert str(caught.value) == f"unknown key {key} {place}: {became}"


def test_a_run_of_an_earlier_version_is_read_with_that_version(tmp_path: Path):
    file = written(tmp_path, "gate: {confidence: 0.9}\n")
    with refused(ConfigError, "gate.confidence", f"{file}:1", "with that version", "environment.json"):
        load_config(file, recorded=True)


def test_every_key_is_read_by_some_code():
    packages = ("chimera", "agents", "evaluation", "training")
    files = [file for package in packages for file in (ROOT / package).rglob("*.py")]
    nodes = (node for file in files for node in ast.walk(ast.parse(file.read_text())))
    words = {getattr(node, "attr", None) or str(getattr(node, "value", "")) for node in nodes}
    assert [key.name for key in keys(load_config()) if key.name.rpartition(".")[2] not in words] == []


def test_the_tree_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        load_config().seed = 1  # pyright: ignore[reportAttributeAccessIssue]


def test_every_key_is_described_and_typed():
    table = list(keys(load_config()))
    assert [key.name for key in table if not key.description.strip() or not key.type] == []
    within_mappings = sum(len(key.default) - 1 for key in table if isinstance(key.default, dict) and key.default)
    no_entries = 2  # tools.mcp and society.guidance, tables of what the user names
    others = len(flat(load_config().model_dump())) - within_mappings - no_entries
    assert len({key.name for key in table}) == len(table) == others
    by_name = {key.name: key for key in table}
    assert by_name["data.size"].type == "whole number >= 10 <= 100000"
    assert by_name["data.test_ids"].type == "path | null"
    assert by_name["models.board.kind"].default == "rubric"


def test_every_number_has_bounds_which_refuse_what_would_be_absurd():
    """A seed of -1 or 2**40 would end a run hours later, when numpy is given it."""
    config = load_config()
    numbers = [key for key in keys(config) if "number" in key.type and not key.type.startswith("read")]
    assert len(numbers) > 80
    assert [key.name for key in numbers if not re.search("<=? ", key.type) or not re.search(">=? ", key.type)] == []
    for key in numbers:
        for value in ("1e300", "-1e300") if key.type.startswith("number") else ("9" * 40, "-" + "9" * 40):
            with refused(ConfigError, key.name, "on the command line"):
                validate(config, parse_overrides([f"{key.name}={value}"]), {SETTINGS_OF: settings_of})


def test_the_local_configuration_spells_out_the_defaults():
    config = load_config(CONFIGS / "local.yaml")
    assert config == load_config()
    heirs = tuple(f"models.{heir}." for heir in HEIRS)
    expected = {key for key in flat(effective(load_config())) if not key.startswith(heirs) or key.endswith(".like")}
    assert set(parse_yaml((CONFIGS / "local.yaml").read_text(), "local.yaml")) == expected


OURS = sorted(CONFIGS.glob("*.yaml"))


@pytest.mark.parametrize("file", OURS, ids=lambda file: file.name)
def test_every_committed_configuration_loads_and_dumps(file: Path, tmp_path: Path):
    config = load_config(file)
    assert load_config(written(tmp_path, dump_config(config))) == config


TRICKY = [
    "no", "1e-5", "on", "1:30", "2026-01-01", "null", "~", " x ", "#x", "[x]", "a: b", "'", '"', "\\", "é\n", "=",
    "0x1",
]  # fmt: skip
TEXT = st.one_of(
    st.sampled_from(TRICKY), st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1)
)
URL = st.from_regex(r"https?://[a-z0-9.]{1,12}(:[0-9]{2,4})?/v1", fullmatch=True)
SPECIAL: dict[str, st.SearchStrategy[Any]] = {
    "base_url": URL,
    "urls": st.lists(URL, min_size=1, max_size=2),
    "api_key_env": st.from_regex(r"[A-Z][A-Z0-9_]{0,9}", fullmatch=True),
    "headers_env": st.sampled_from(["OTLP_HEADERS"]),
    "labels": st.lists(TEXT.filter(lambda text: text.strip() == text != "none"), min_size=2, max_size=4, unique=True),
}


def values(field: FieldInfo, name: str, annotation: Any = None) -> st.SearchStrategy[Any]:
    annotation = annotation or field.annotation
    bounds = {
        bound: getattr(item, bound)
        for item in field.metadata
        for bound in ("ge", "gt", "le", "lt")
        if hasattr(item, bound)
    }
    low, high = bounds.get("ge", bounds.get("gt")), bounds.get("le", bounds.get("lt"))
    if name in SPECIAL:
        return st.none() | SPECIAL[name]
    if get_origin(annotation) is Literal:
        return st.sampled_from(get_args(annotation))
    if get_origin(annotation) in (tuple, list):
        return st.lists(values(field, name, get_args(annotation)[0]), min_size=1, max_size=4)
    if type(None) in get_args(annotation):
        return st.none() | values(field, name, get_args(annotation)[0])
    if annotation is bool:
        return st.booleans()
    if get_origin(annotation) is dict:
        leaf = st.booleans() | st.integers() | st.sampled_from(["a", "1", "no"])
        return st.dictionaries(st.sampled_from("abc"), leaf | st.dictionaries(st.sampled_from("xy"), leaf, min_size=1))
    if annotation is int:
        return st.integers(low, high)
    if annotation is float:
        return st.floats(
            low, high, allow_nan=False, allow_infinity=False, exclude_min="gt" in bounds, exclude_max="lt" in bounds
        )
    if annotation == AnyPath:
        return TEXT
    assert annotation in (str, Path), f"no strategy for {name}: {annotation}"
    return TEXT


def settings_below(section: ConfigSection, prefix: str = "") -> list[st.SearchStrategy[list[str]]]:
    found: list[st.SearchStrategy[list[str]]] = []
    below = sections(section)
    for name, one in below.items():
        found += settings_below(one, f"{prefix}{name}.")
    for name, field in type(section).model_fields.items():
        if not any(key == name or key.startswith(f"{name}.") for key in below):
            key = f"{prefix}{name}"
            found.append(values(field, name).map(lambda value, key=key: [f"{key}={to_yaml({'v': value})[3:]}"]))
    return found


MODEL_KINDS = [st.just(endpoint(model)) for model in SLOTS]


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(*settings_below(load_config()), *MODEL_KINDS), max_size=8))
def test_a_dumped_configuration_loads_back_to_an_equal_tree(tmp_path: Path, wanted: list[list[str]]):
    overrides: list[str] = []
    config = load_config()
    for more in wanted:
        try:
            config = load_config(None, [*overrides, *more])
        except ConfigError:
            continue
        overrides += more
    dumped = dump_config(config)
    assert load_config(written(tmp_path, dumped)) == config
    assert not set(flat(yaml.safe_load(dumped))) & set(absent(config))


def test_dumped_text_means_the_same_to_any_yaml_reader():
    for text in TRICKY:
        assert yaml.safe_load(to_yaml({"v": text})) == {"v": text}
