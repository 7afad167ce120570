"""Configuration: a key set wrongly is one located sentence, and what was loaded can be dumped and loaded again."""

import ast
import re
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic.fields import FieldInfo

from chimera.config.loader import ConfigSection, effective, keys, sections, unused_keys, validate
from chimera.config.sections.models import SLOTS
from chimera.config.source import parse_overrides, parse_yaml, to_yaml
from chimera.config.tree import Config, dump_config, load_config
from chimera.core.errors import ConfigError

ROOT = Path(__file__).parents[3]
HEIRS = ("supervisor", "senior", "refiner")
CONFIGS = ROOT / "configs"
ENDPOINT = ["kind=endpoint", "base_url=http://127.0.0.1:9/v1", "model=m"]


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    return file


def endpoint(model: str) -> list[str]:
    return [f"models.{model}.{setting}" for setting in ENDPOINT]


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tree.items():
        section = isinstance(value, dict) and value
        found |= flat(value, f"{prefix}{key}.") if section else {f"{prefix}{key}": value}
    return found


def test_without_file_and_overrides_the_defaults_apply():
    assert load_config() == Config()


def test_overrides_win_over_the_file_and_the_file_over_defaults(tmp_path: Path):
    file = written(tmp_path, "gather:\n  tasks: 3\n  repeats: 4\n")
    config = load_config(file, ["gather.tasks=5", "gather.tasks=6"])
    assert (config.pipeline["gather"].tasks, config.pipeline["gather"].repeats, config.rollouts) == (
        6,
        4,
        Config().rollouts,
    )


def test_setting_one_key_of_a_model_keeps_that_models_other_defaults():
    config = load_config(None, ["models.board.timeout_s=7"])
    assert (config.models["board"].kind, config.models["board"].timeout_s) == ("rubric", 7)


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("models.junior.temperature=1e-1", 0.1),
        ("models.junior.top_p=1", 1.0),
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
        ("rollouts: 8\n", 1, ["rollouts", "section", "rollouts.runners"]),
        ("seed:\n  gather: 1\n", 2, ["seed", "one value"]),
        ("1: 2\n", 1, ["key must be a name"]),
        ("- gather\n", 1, ["mapping of sections"]),
        ("models:\n  junior: {api_key: sk-verysecret1}\n", 2, ["models.junior.api_key", "environment"]),
        ("tavily_api_key: sk-verysecret1\n", 1, ["tavily_api_key", ".env"]),
        ("hf_token: sk-verysecret1\n", 1, ["hf_token", "secret"]),
    ],
)
def test_a_wrong_file_is_one_sentence_with_key_line_and_remedy(tmp_path: Path, text: str, line: int, words: list[str]):
    file = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    message = str(caught.value)
    assert f"{file}:{line}" in message
    assert [word for word in words if word not in message] == []
    assert "\n" not in message
    assert "sk-verysecret1" not in message


@pytest.mark.parametrize(
    "text", ["seed: 1\nseed: 2\n", "gather: {tasks: 1}\ngather.tasks: 2\n", "gather: {}\ngather: 1"]
)
def test_a_key_set_twice_in_a_file_is_an_error_that_names_both_lines(tmp_path: Path, text: str):
    with pytest.raises(ConfigError, match=r"set twice, at .*c\.yaml:1 and at .*c\.yaml:2"):
        load_config(written(tmp_path, text))


@pytest.mark.parametrize("text", ["a: [1", "a: b: c", "!!python/object:os.system {}", "a: 1\n---\nb: 2\n", "\x00"])
def test_a_file_that_is_not_yaml_is_an_error_that_names_it(tmp_path: Path, text: str):
    with pytest.raises(ConfigError, match=r"c\.yaml"):
        load_config(written(tmp_path, text))


def test_a_mapping_that_contains_itself_is_an_error(tmp_path: Path):
    with pytest.raises(ConfigError, match="nested more than"):
        load_config(written(tmp_path, "data: &a\n  b: *a\n"))


def test_a_missing_or_unreadable_file_is_an_error_that_names_it(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"nope\.yaml does not exist"):
        load_config(tmp_path / "nope.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ConfigError, match=r"bytes\.yaml cannot be read"):
        load_config(tmp_path / "bytes.yaml")


def test_an_empty_file_and_empty_sections_keep_the_defaults(tmp_path: Path):
    assert load_config(written(tmp_path, "# nothing\n")) == Config()
    assert load_config(written(tmp_path, "gather:\ndata: {}\n")) == Config()


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
        ("data.path=''", ["data.path"]),
    ],
)
def test_a_wrong_override_is_one_sentence(override: str, words: list[str]):
    with pytest.raises(ConfigError) as caught:
        load_config(None, [override])
    message = str(caught.value)
    assert [word for word in words if word not in message] == []
    assert "sk-verysecret1" not in message


@pytest.mark.parametrize(
    ("overrides", "key", "because"),
    [
        (["models.junior.base_url=http://h/v1"], "models.junior.base_url", "'embedded'"),
        (["models.junior.model=m"], "models.junior.model", "'embedded'"),
        (["models.junior.api_key_env=OPENAI_API_KEY"], "models.junior.api_key_env", "'embedded'"),
        ([*endpoint("senior"), "models.senior.path=x"], "models.senior.path", "'endpoint'"),
        (["models.board.path=x"], "models.board.path", "'rubric'"),
        (["models.judge.temperature=1"], "models.judge.temperature", "'rubric'"),
        (["models.principal.max_tokens=256"], "models.principal.max_tokens", "'rubric'"),
        (["models.board.structured=final"], "models.board.structured", "'rubric'"),
        (["data.path=hub", "data.size=1000"], "data.size", "'hub'"),
        (["data.path=x.json", "data.levels=[1]"], "data.levels", "'x.json'"),
        (["data.test_ids=ids.json"], "data.test_ids", "'generated'"),
        (["tools.protein=uniprot", "tools.ontology=quickgo", "tools.database=x.db"], "tools.database", "live"),
        (["tools.retries=3"], "tools.retries", "'local'"),
        (["tools.timeout_s=3"], "tools.timeout_s", "'local'"),
        (["society.max_revisions=0", "society.max_major_revisions=1"], "society.max_major_revisions", "is 0"),
        (["society.max_revisions=3"], "society.max_revisions", "only 2 in total"),
        (["society.max_major_revisions=0", "society.max_revisions=2"], "society.max_revisions", "only 1 in total"),
        (["society.evidence=given", "society.max_tool_calls=0", "tools.results=5"], "tools.results", "is 0"),
        ([*endpoint("junior"), "serving.slots=4"], "serving.slots", "embedded"),
    ],
)
def test_a_key_that_has_no_effect_is_an_error_even_at_its_default(overrides: list[str], key: str, because: str):
    with pytest.raises(ConfigError) as caught:
        load_config(None, overrides)
    message = str(caught.value)
    assert message.startswith(f"{key} on the command line has no effect because")
    assert because in message


@pytest.mark.parametrize(
    "overrides",
    [
        ["data.path=hub"],
        ["society.max_revisions=0"],
        ["society.max_critical_revisions=0"],
        ["society.evidence=given", "society.max_tool_calls=0"],
        endpoint("junior"),
        endpoint("board"),
    ],
)
def test_an_override_may_leave_settings_of_the_file_without_effect(overrides: list[str]):
    assert load_config(CONFIGS / "local.yaml", overrides) == load_config(None, overrides)


def test_what_has_no_effect_in_the_file_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = written(tmp_path, "data:\n  path: hub\n  size: 20\n")
    for overrides in ([], ["data.path=x.json"], ["gather.tasks=3"]):
        load_config(file, overrides)
        told = capsys.readouterr().err
        assert re.match(r"warning: data\.size at .*c\.yaml:3 has no effect because .*: remove it\n$", told)
    assert load_config(file, ["data.path=generated"]).data.size == 20
    assert capsys.readouterr().err == ""


def test_an_endpoint_needs_its_address_and_model():
    with pytest.raises(
        ConfigError, match=r"models\.board on the command line: kind 'endpoint' needs both base_url and"
    ):
        load_config(None, ["models.board.kind=endpoint", "models.board.model=m"])


@pytest.mark.parametrize("backend", ["pubmed", "tavily"])
def test_retrieved_evidence_needs_the_local_index_unless_the_question_is_the_users_own(backend: str):
    with pytest.raises(ConfigError, match="blocked in live searches"):
        load_config(None, [f"tools.literature={backend}"])
    assert load_config(None, [f"tools.literature={backend}", "society.evidence=given"]).tools.literature == backend
    assert load_config(None, [f"tools.literature={backend}"], own_question=True).tools.literature == backend


def test_retrieved_evidence_needs_a_tool_call():
    with pytest.raises(ConfigError, match=r"society\.max_tool_calls=0"):
        load_config(None, ["society.max_tool_calls=0"])


def test_one_line_replaces_the_trained_model_everywhere():
    models = load_config(None, ["models.junior.path=/my/model"]).models
    assert [models[name].path for name in ("junior", *HEIRS)] == ["/my/model"] * 4
    assert models["board"] == Config().models["board"]


def test_an_heir_keeps_what_it_sets_itself():
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
    with pytest.raises(ConfigError, match=r"models\.\w+\.kind=rubric cannot work for \w+: .* endpoint"):
        load_config(None, [f"models.{model}.kind=rubric"])


def test_a_key_is_not_inherited_to_another_server():
    overrides = [*endpoint("junior"), "models.junior.api_key_env=MY_KEY", "models.senior.base_url=http://other/v1"]
    models = load_config(None, overrides).models
    senior = models["senior"]
    assert (models["supervisor"].api_key_env, senior.api_key_env, senior.model) == ("MY_KEY", None, "m")


def test_an_inherited_wrong_value_names_where_it_was_written(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"models\.junior\.temperature is 3 at .*c\.yaml:3"):
        load_config(written(tmp_path, "models:\n  junior:\n    temperature: 3\n"))


@given(
    st.text(st.characters(categories=["Ll"]), min_size=1), st.sampled_from(["", "data.", "models.junior.", "nothing."])
)
def test_any_unknown_key_names_a_valid_one(name: str, section: str):
    known = {key.name for key in keys(Config())}
    assume(not any(f"{other}.".startswith(f"{section}{name}.") for other in known))
    assume("token" not in name and "secret" not in name and "key" not in name and "pass" not in name)
    with pytest.raises(ConfigError) as caught:
        load_config(None, [f"{section}{name}=1"])
    nearest = re.search(r"the nearest key is (\S+) ", str(caught.value))
    assert nearest
    assert nearest[1] in known


def test_every_key_is_read_by_some_code():
    words: set[str] = set()
    for file in (
        file for package in ("chimera", "agents", "evaluation", "training") for file in (ROOT / package).rglob("*.py")
    ):
        if not file.name.startswith("config"):
            for node in ast.walk(ast.parse(file.read_text())):
                words.add(getattr(node, "attr", None) or str(getattr(node, "value", "")))
    assert [key.name for key in keys(Config()) if key.name.rpartition(".")[2] not in words] == []


def test_the_tree_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        Config().seed = 1  # pyright: ignore[reportAttributeAccessIssue]


def test_every_key_is_described_and_typed():
    table = list(keys(Config()))
    assert [key.name for key in table if not key.description.strip() or not key.type] == []
    within_mappings = sum(len(key.default) - 1 for key in table if isinstance(key.default, dict) and key.default)
    no_entries = 2  # tools.mcp and society.guidance, tables of what the user names
    others = len(flat(Config().model_dump())) - within_mappings - no_entries
    assert len({key.name for key in table}) == len(table) == others
    by_name = {key.name: key for key in table}
    assert by_name["data.size"].type == "whole number >= 10 <= 100000"
    assert by_name["data.test_ids"].type == "path | null"
    assert by_name["models.board.kind"].default == "rubric"


def test_every_number_has_bounds_which_refuse_what_would_be_absurd():
    """A seed of -1 or 2**40 would end a run hours later, when numpy is given it."""
    numbers = [key for key in keys(Config()) if "number" in key.type and not key.type.startswith("read")]
    assert len(numbers) > 80
    assert [key.name for key in numbers if not re.search("<=? ", key.type) or not re.search(">=? ", key.type)] == []
    for key in numbers:
        for value in ("1e300", "-1e300") if key.type.startswith("number") else ("9" * 40, "-" + "9" * 40):
            with pytest.raises(ConfigError, match=rf"^{re.escape(key.name)} is .* on the command line, but [^\n]*$"):
                validate(Config(), parse_overrides([f"{key.name}={value}"]))


@pytest.mark.parametrize("key", ["seed", "data.seed"])
def test_a_seed_is_what_numpy_takes(key: str):
    assert load_config(None, [f"{key}={2**32 - 1}"])
    for wrong in (-1, 2**32):
        with pytest.raises(ConfigError, match=rf"^{key} is {wrong} on the command line, but it must be "):
            load_config(None, [f"{key}={wrong}"])


@pytest.mark.parametrize("text", ["[" * 10_000, "a: " + "[" * 5000 + "]" * 5000, "seed: " + "9" * 5000])
def test_what_python_cannot_read_is_one_sentence(tmp_path: Path, text: str):
    with pytest.raises(ConfigError, match=r"^[^\n]*c\.yaml is not valid YAML: [^\n]*$"):
        load_config(written(tmp_path, text))
    with pytest.raises(ConfigError, match=r"^the value of seed on the command line [^\n]*$"):
        load_config(None, ["seed=" + text.removeprefix("a: ").removeprefix("seed: ")])


def test_the_local_configuration_spells_out_the_defaults():
    config = load_config(CONFIGS / "local.yaml")
    assert config == Config()
    heirs = tuple(f"models.{heir}." for heir in HEIRS)
    expected = {key for key in flat(effective(Config())) if not key.startswith(heirs) or key.endswith(".like")}
    assert set(parse_yaml((CONFIGS / "local.yaml").read_text(), "local.yaml")) == expected


OURS = sorted(file for file in CONFIGS.glob("*.yaml") if file.name != "ray-cluster.yaml")  # Which is Ray's.


@pytest.mark.parametrize("file", OURS, ids=lambda file: file.name)
def test_every_committed_configuration_loads_and_dumps(file: Path, tmp_path: Path):
    config = load_config(file)
    assert load_config(written(tmp_path, dump_config(config))) == config


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["rollouts.on=cluster"], r"rollouts\.on=cluster needs a Ray cluster: set cluster\.address"),
        (["cluster.host=10.0.0.1"], r"cluster\.host=10\.0\.0\.1 can be reached from outside: set cluster\.key_file"),
        (
            ["cluster.host=0.0.0.0", "cluster.key_file=k"],
            r"cluster\.host=0\.0\.0\.0 is no address that others can be told",
        ),
        (["cluster.token_file=t"], r"cluster\.token_file .* has no effect because address is null"),
        (["cluster.address=ray://h:1"], r"cluster\.address"),
    ],
)
def test_a_cluster_that_cannot_be_meant_is_refused(overrides: list[str], message: str):
    with pytest.raises(ConfigError, match=message):
        load_config(None, overrides)


def test_a_cluster_is_what_the_overrides_say():
    config = load_config(None, ["cluster.address=10.0.0.1:6379", "cluster.host=127.0.0.2", "rollouts.on=cluster"])
    assert (config.cluster.address, config.cluster.host, config.rollouts.on) == (
        "10.0.0.1:6379",
        "127.0.0.2",
        "cluster",
    )


def test_the_endpoint_example_has_a_server_for_every_model():
    models = load_config(CONFIGS / "endpoint.yaml").models
    assert [name for name in SLOTS if models[name].kind != "endpoint"] == []


TRICKY = [
    "no",
    "1e-5",
    "on",
    "1:30",
    "2026-01-01",
    "null",
    "~",
    " x ",
    "#x",
    "[x]",
    "a: b",
    "'",
    '"',
    "\\",
    "é\n",
    "=",
    "0x1",
]
TEXT = st.one_of(
    st.sampled_from(TRICKY), st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1)
)
URL = st.from_regex(r"https?://[a-z0-9.]{1,12}(:[0-9]{2,4})?/v1", fullmatch=True)
SPECIAL: dict[str, st.SearchStrategy[Any]] = {
    "base_url": URL,
    "urls": st.lists(URL, min_size=1, max_size=2),
    "api_key_env": st.from_regex(r"[A-Z][A-Z0-9_]{0,9}", fullmatch=True),
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
    assert annotation in (str, Path), f"no strategy for {name}: {annotation}"
    return TEXT


def settings_of(section: ConfigSection, prefix: str = "") -> list[st.SearchStrategy[list[str]]]:
    found: list[st.SearchStrategy[list[str]]] = []
    below = sections(section)
    for name, one in below.items():
        found += settings_of(one, f"{prefix}{name}.")
    for name, field in type(section).model_fields.items():
        if not any(key == name or key.startswith(f"{name}.") for key in below):
            key = f"{prefix}{name}"
            found.append(values(field, name).map(lambda value, key=key: [f"{key}={to_yaml({'v': value})[3:]}"]))
    return found


MODEL_KINDS = [st.just(endpoint(model)) for model in SLOTS]


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(*settings_of(Config()), *MODEL_KINDS), max_size=8))
def test_a_dumped_configuration_loads_back_to_an_equal_tree(tmp_path: Path, wanted: list[list[str]]):
    overrides: list[str] = []
    config = Config()
    for more in wanted:
        try:
            config = load_config(None, [*overrides, *more])
        except ConfigError:
            continue
        overrides += more
    dumped = dump_config(config)
    assert load_config(written(tmp_path, dumped)) == config
    assert not set(flat(yaml.safe_load(dumped))) & set(unused_keys(config))


def test_dumped_text_means_the_same_to_any_yaml_reader():
    for text in TRICKY:
        assert yaml.safe_load(to_yaml({"v": text})) == {"v": text}


def test_the_readable_table_lists_every_key(capsys: pytest.CaptureFixture[str]):
    from chimera.config.command import main

    assert main([]) in (None, 0)
    shown = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert [key.name for key in keys(Config()) if key.name not in shown] == []


def test_the_config_command_prints_what_is_in_effect(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    from chimera.config.command import main

    main(["gather.tasks=3", "--yaml", "models.junior.path=p"])
    config = load_config(written(tmp_path, capsys.readouterr().out))
    assert (config.pipeline["gather"].tasks, config.models["senior"].path) == (3, "p")


def test_a_free_mapping_takes_any_keys_below_it(tmp_path: Path):
    file = written(tmp_path, "ppo:\n  verl:\n    actor:\n      a: 1\n      b: {c: no}\n")
    config = load_config(file, ["ppo.verl.actor.a=2", "ppo.verl.optim={betas: [0.9, 0.95]}"])
    assert config.pipeline["ppo"].verl == {"actor": {"a": 2, "b": {"c": "no"}}, "optim": {"betas": [0.9, 0.95]}}


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
