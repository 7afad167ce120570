"""Settings that contradict each other, or have no effect, are one sentence with the remedy."""

import re
from pathlib import Path

import pytest
from config_kit import CONFIGS, endpoint, written
from message_kit import refused

from chimera.core.errors import ConfigError
from training.configuration import load_config

VOTE = "society.graph.choose=vote"
NO_REVIEWS = ["society.graph.reviews=false", "society.graph.waives=[SafetyOfficer]"]


@pytest.mark.parametrize(
    ("overrides", "key", "because"),
    [
        (["models.junior.api_key_env=OPENAI_API_KEY"], "models.junior.api_key_env", "'embedded'"),
        ([*endpoint("senior"), "models.senior.path=x"], "models.senior.path", "'endpoint'"),
        (["models.board.path=x"], "models.board.path", "'rubric'"),
        (["society.graph.refine=false", "society.refiner_max_chars=9"], "society.refiner_max_chars", "refine"),
        ([*NO_REVIEWS, "society.max_major_revisions=2"], "society.max_major_revisions", "no reviews"),
        (["data.path=hub", "data.size=1000"], "data.size", "'hub'"),
        (["data.test_ids=ids.json"], "data.test_ids", "'generated'"),
        (["tools.protein=uniprot", "tools.ontology=quickgo", "tools.database=x.db"], "tools.database", "live"),
        (["tools.retries=3"], "tools.retries", "'local'"),
        (["tools.timeout_s=3"], "tools.timeout_s", "'local'"),
        (["society.evidence=given", "society.max_tool_calls=0", "tools.results=5"], "tools.results", "is 0"),
        ([*endpoint("junior"), "serving.slots=4"], "serving.slots", "embedded"),
        (["gate.tasks=0", "gate.alarm=refuse"], "gate.alarm", "gate.tasks is 0"),
        (["evaluation.auditor.kind=none", "gate.alarm=refuse"], "gate.alarm", "no second judge"),
        ([VOTE, "society.guidance.Supervisor.prompt=x"], "society.guidance.Supervisor.prompt", "does not work in"),
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


@pytest.mark.parametrize("backend", ["pubmed", "tavily"])
def test_retrieved_evidence_needs_the_local_index_unless_the_question_is_the_users_own(backend: str):
    with pytest.raises(ConfigError, match="blocked in live searches"):
        load_config(None, [f"tools.literature={backend}"])
    assert load_config(None, [f"tools.literature={backend}", "society.evidence=given"]).tools.literature == backend
    assert load_config(None, [f"tools.literature={backend}"], own_question=True).tools.literature == backend


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["cluster.host=0.0.0.0"], ("cluster.host=0.0.0.0", "this machine's own")),
        (["rollouts.actors=4"], ("rollouts.actors", "rollouts.on", "'here'", "remove it")),
        (["cluster.token_file=t"], ("cluster.token_file", "address is null", "remove it")),
        (["cluster.address=ray://h:1"], "cluster.address"),
        (["society.max_tool_calls=0"], ("society.max_tool_calls=0", "society.evidence=given")),
    ],
)
def test_what_cannot_be_meant_is_refused(overrides: list[str], message: str):
    with refused(ConfigError, message):
        load_config(None, overrides)


def test_a_cluster_is_what_the_overrides_say():
    config = load_config(None, ["cluster.address=10.0.0.1:6379", "cluster.host=127.0.0.2", "rollouts.on=ray"])
    assert (config.cluster.address, config.cluster.host, config.rollouts.on) == ("10.0.0.1:6379", "127.0.0.2", "ray")
