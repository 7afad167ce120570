"""Secrets: where they come from, and that nothing shows them."""

import io
import json
import logging
import os
import pickle
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from message_kit import refused

from chimera.core.errors import ConfigError
from chimera.core.secrets import (
    SECRETS,
    SHORTEST_SECRET,
    RedactingFilter,
    Redactor,
    Secrets,
    load_secrets,
    protect_logging,
    redact,
    redact_tree,
    register_secret,
)

VALUES = st.text(min_size=SHORTEST_SECRET, max_size=40)


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in (*SECRETS, "MY_SERVER_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_nothing_is_required(clean: Path):
    assert dict(load_secrets()) == {}


def test_the_environment_wins_over_the_file_and_empty_values_are_unset(clean: Path, monkeypatch: pytest.MonkeyPatch):
    (clean / ".env").write_text(
        "OPENAI_API_KEY=from-the-file\nTAVILY_API_KEY='from # file'\nHF_TOKEN=\nWANDB_API_KEY=  \n"
    )
    monkeypatch.setenv("OPENAI_API_KEY", "from-environment")
    monkeypatch.setenv("TAVILY_API_KEY", "")
    assert dict(load_secrets()) == {"OPENAI_API_KEY": "from-environment", "TAVILY_API_KEY": "from # file"}


def test_only_known_names_and_those_of_the_models_are_read(clean: Path, monkeypatch: pytest.MonkeyPatch):
    (clean / ".env").write_text("MY_SERVER_KEY=my-server-key\nOTHER=other-value\n")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-for-us")
    names = ("MY_SERVER_KEY",)
    assert dict(load_secrets()) == {}
    assert dict(load_secrets(names)) == {"MY_SERVER_KEY": "my-server-key"}


def test_dollar_signs_in_the_file_are_taken_literally(clean: Path):
    (clean / ".env").write_text("OPENAI_API_KEY=a$HOME-${PATH}b\n")
    assert load_secrets()["OPENAI_API_KEY"] == "a$HOME-${PATH}b"


def test_what_libraries_look_up_themselves_is_put_into_the_environment(clean: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("HF_TOKEN", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "")
    (clean / ".env").write_text("HF_TOKEN=hf-from-the-file\nOPENAI_API_KEY=sk-from-the-file\n")
    load_secrets()
    assert (os.environ["HF_TOKEN"], os.environ["OPENAI_API_KEY"]) == ("hf-from-the-file", "")


def test_an_unreadable_file_is_one_clear_error_and_hides_no_other(clean: Path):
    (clean / ".env").write_bytes(b"TAVILY_API_KEY=\xff\xfe\x00")
    with refused(ConfigError, ".env", "UTF-8"):
        load_secrets()
    command = [sys.executable, "-m", "chimera", "trian"]
    ended = subprocess.run(command, check=False, cwd=clean, capture_output=True, text=True)
    assert ended.returncode == 2
    assert "train" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_secrets_show_names_only():
    secrets = Secrets({"OPENAI_API_KEY": "sk-123456789"})
    for shown in (repr(secrets), str(secrets), f"{secrets}", f"{[secrets]!r}"):
        assert "sk-123456789" not in shown
        assert "OPENAI_API_KEY" in shown
    assert pickle.loads(pickle.dumps(secrets)) == secrets


@settings(deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=4), st.data())
def test_no_secret_survives_redaction_however_it_is_spelled(values: list[str], data: st.DataObject):
    redactor = Redactor()
    names = ["OPENAI_API_KEY", "TAVILY_API_KEY", "HF_TOKEN", "AAAAAAAAAA"]
    for name, value in zip(names, values, strict=False):
        redactor.add(name, value)
    spellings = [spelled for v in values for spelled in (v, json.dumps(v)[1:-1], quote(v, safe=""), quote(v))]
    pieces = st.lists(st.sampled_from(spellings) | st.text(max_size=5) | st.sampled_from(names), max_size=8)
    text = redactor.redact("".join(data.draw(pieces)))
    assert [value for value in values if value in text] == []


@given(st.text())
def test_text_without_secrets_is_left_alone(text: str):
    redactor = Redactor()
    redactor.add("OPENAI_API_KEY", "sk-123456789-abcdef")
    assert redactor.redact(text) == text


def test_a_secret_is_replaced_by_its_name_and_the_longest_match_counts():
    redactor = Redactor()
    redactor.add("SHORT", "abcdefgh")
    redactor.add("LONG", "abcdefghijkl")
    assert redactor.redact("x abcdefghijkl abcdefgh y") == "x [LONG] [SHORT] y"


def test_a_secret_that_occurs_in_a_placeholder_does_not_survive():
    redactor = Redactor()
    redactor.add("OPENAI_API_KEY", "OPENAI_API")
    assert "OPENAI_API" not in redactor.redact("key OPENAI_API, OPENAI_API")


def test_placeholders_of_local_servers_are_no_secrets():
    redactor = Redactor()
    for value in ("EMPTY", "ollama", "none"):
        redactor.add("OPENAI_API_KEY", value)
    assert redactor.redact("http://ollama EMPTY none") == "http://ollama EMPTY none"


def test_plain_data_is_redacted_everywhere_and_keeps_its_shape():
    register_secret("TREE_KEY", "tree-secret-1")
    tree = {"a tree-secret-1": ["tree-secret-1", {"b": ("x", 1, None, 2.5, True)}], "n": 3}
    assert redact_tree(tree) == {"a [TREE_KEY]": ["[TREE_KEY]", {"b": ["x", 1, None, 2.5, True]}], "n": 3}


def test_loaded_secrets_are_redacted(clean: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_SERVER_KEY", "loaded-secret-1")
    load_secrets(["MY_SERVER_KEY"])
    assert redact("Bearer loaded-secret-1") == "Bearer [MY_SERVER_KEY]"


def test_logs_show_no_secret_in_message_arguments_exception_or_stack():
    register_secret("LOG_KEY", "log-secret-123")
    stream, logger = io.StringIO(), logging.getLogger("chimera-test-secrets")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.propagate = False
    protect_logging(logger)
    protect_logging(logger)
    assert sum(isinstance(item, RedactingFilter) for item in handler.filters) == 1
    child = logging.getLogger("chimera-test-secrets.child")
    child.warning("plain %d %s", 3, "log-secret-123")
    child.warning("percent 100% log-secret-123")
    try:
        raise ValueError("log-secret-123")
    except ValueError:
        child.exception("failed", stack_info=True)
    shown = stream.getvalue()
    assert "WARNING plain 3 [LOG_KEY]\n" in shown
    assert "WARNING percent 100% [LOG_KEY]\n" in shown
    assert "ValueError: [LOG_KEY]\n" in shown
    assert "Stack (most recent call last)" in shown
    assert "log-secret-123" not in shown
    logger.removeHandler(handler)
