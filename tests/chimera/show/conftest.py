"""Fixtures of tests that ask the society one question."""

import pytest
from ask_kit import ABSTRACT, AskedServer, quoting


@pytest.fixture
def answers(society_kit):
    return quoting(society_kit.answers)


@pytest.fixture
def asked_server(scripted_openai, answers):
    yield AskedServer(scripted_openai, answers)
    scripted_openai.hooks.clear()


@pytest.fixture
def abstract(tmp_path):
    path = tmp_path / "abstract.txt"
    path.write_text(ABSTRACT, encoding="utf-8")
    return path
