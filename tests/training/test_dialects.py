"""Whole questions and rollouts through servers that speak almost OpenAI's protocol, and through one that is busy."""

import gzip
import time
from email.utils import formatdate

import pytest
from ask_kit import ask, endpoints, printed_by
from dialect_kit import DIALECTS, speaking
from message_kit import refused

from chimera.core.errors import ModelError
from chimera.run.directory import Run

pytestmark = pytest.mark.whole


def gather(runs_dir, url, *settings):
    few = ("--name", "mine", "--phases", "gather", "gather.tasks=5", "wandb.mode=disabled", f"runs_dir={runs_dir}")
    few += ("society.quotes=free", "society.refiner_max_chars=0", "rollouts.concurrency=2")
    return printed_by("chimera.train", *few, *endpoints(url), *settings)


@pytest.fixture(autouse=True)
def scripted(scripted_openai):
    scripted_openai.hooks[:] = [scripted_openai.justified]
    scripted_openai.requests.clear()
    return scripted_openai


@pytest.mark.parametrize("name", DIALECTS)
def test_a_question_is_answered(scripted, name, tmp_path, capsys):
    with speaking(scripted, DIALECTS[name]()) as dialect:
        settings = ("society.quotes=free", "society.refiner_max_chars=0", f"runs_dir={tmp_path}")
        assert ask("--task", "generated-0-5", *endpoints(scripted.url), *settings) == 0
    shown = capsys.readouterr()
    assert dialect.thoughts
    assert "secret thought" not in shown.out + shown.err


@pytest.mark.parametrize("name", DIALECTS)
def test_rollouts_are_gathered_and_keep_what_the_server_wrote_in_their_traces(scripted, name, tmp_path, capfd):
    with speaking(scripted, DIALECTS[name]()) as dialect:
        shown = gather(tmp_path, scripted.url)
    printed = capfd.readouterr()
    assert "secret thought" not in shown + printed.out + printed.err
    run = Run.open("mine", tmp_path)
    records = list(run.rollouts("gather"))
    assert [record["status"] for record in records] == ["succeeded"] * 5
    assert all(record["counts"]["tool_calls"] and not record["counts"]["repairs"] for record in records)
    traces = "".join(gzip.decompress((run.path / record["trace"]).read_bytes()).decode() for record in records)
    assert all(thought in traces for thought in dialect.thoughts)


def test_a_rate_limit_pauses_the_run_and_costs_no_rollout(scripted, tmp_path):
    """Longer than a rollout and a role may take; the server names a date, and refuses every call until then."""
    until = []

    def limit(_request):
        until[:] = until or [time.time() + 10]
        date = formatdate(until[0] + 1, usegmt=True)
        return (429, "slow down", ("Retry-After", date)) if time.time() < until[0] else None

    scripted.hooks.insert(0, limit)
    shown = gather(tmp_path, scripted.url, "rollouts.timeout_s=9", "rollouts.retries=0")
    assert [record["status"] for record in Run.open("mine", tmp_path).rollouts("gather")] == ["succeeded"] * 5
    (line,) = [line for line in shown.splitlines() if "slow down" in line]
    assert "rollouts.pause_s=3600" in line


def test_a_rate_limit_that_does_not_end_ends_the_run_with_its_own_words(scripted, tmp_path):
    scripted.hooks.insert(0, lambda _request: (429, "slow down", ("Retry-After", "90")))
    with refused(ModelError, "429", "slow down", "rollouts.pause_s", "2 s") as caught:
        gather(tmp_path, scripted.url, "rollouts.pause_s=2")
    assert caught.value.exit_code == 4
    assert list(Run.open("mine", tmp_path).rollouts("gather")) == []
