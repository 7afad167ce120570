"""`ask` for programs and with a person in the principal investigator's seat: JSON, exit codes, waiting, verdicts."""

import json
import os
import signal
import subprocess
import sys

import pytest
from ask_kit import QUESTION, QUOTE, ask
from message_kit import refused

from chimera.ask import WAITS, WITHHELD
from chimera.config.roles import JUNIORS
from chimera.core.errors import ConfigError, RunError
from chimera.train import main as train

pytestmark = pytest.mark.whole

REASON = "the trial was too small"


@pytest.fixture
def asked(tmp_path, asked_server, abstract, capsys):
    """Asks on the scripted server; gives exit code, result and what people read."""

    def run(*arguments, question=(QUESTION, "--context", abstract, *asked_server.overrides)):
        code = ask(*question, "--json", *arguments, f"runs_dir={tmp_path}")
        out, err = capsys.readouterr()
        return code, json.loads(out), err

    run.server = asked_server
    return run


def kept(tmp_path):
    (folder,) = (tmp_path / "asked").iterdir()
    return folder


def test_a_program_gets_the_answer_with_its_sources(asked, tmp_path):
    code, result, read_by_people = asked("--out", tmp_path / "answer.json")
    assert code == 0
    assert (result["answer"], result["decision"], result["withheld"]) == ("yes", "GO", None)
    assert result["evidence"] == [{"quote": QUOTE, "where": "your abstract"}]
    assert result["sources"] == [
        {"where": "your abstract", "title": "given with your question", "url": None, "real": True}
    ]
    assert result["notice"].startswith("Not medical advice")
    assert result["toy_models"] == []
    assert json.loads((tmp_path / "answer.json").read_text()) == result
    assert "Refined hypothesis: yes" in read_by_people


def test_an_answer_without_evidence_is_withheld_from_programs_and_persons_and_stays_so(asked, answers, tmp_path):
    answers["HypothesisRefiner"]["evidence"] = ["Nobody wrote this."]
    code, first, _ = asked("--confirm")
    assert (code, first["answer"], first["decision"], first["evidence"]) == (WITHHELD, None, "UNDECIDED", [])
    assert (first["withheld"]["decision"], first["waits_for_a_person"]) == ("GO", False)
    name = kept(tmp_path).name
    code, again, _ = asked("--continue", name, question=())
    same = ("answer", "decision", "withheld")
    assert (code, [again[key] for key in same]) == (WITHHELD, [first[key] for key in same])
    with refused(RunError, name, "waits for no verdict", lines=None):
        asked("--continue", name, "--verdict", "reject", "--reason", REASON, question=())
    with refused(ConfigError, "society.max_tool_calls", "no effect"):
        asked("--continue", name, "society.max_tool_calls=0", question=())


def test_confirm_adds_to_the_decisions_that_are_confirmed(asked, answers):
    answers["SafetyOfficer"] = {"issues": ["no stopping rule"], "severity": "CRITICAL", "verdict": "REVISE"}
    assert asked("--confirm", "society.confirm=[NO-GO]")[0] == WAITS


def test_a_decision_that_needs_no_confirmation_does_not_wait(asked, tmp_path):
    code, result, _ = asked("society.confirm=[NO-GO,UNDECIDED]")
    assert (code, result["decision"], result["confirmation"]) == (0, "GO", None)
    assert not (kept(tmp_path) / "preferences.jsonl").exists()


@pytest.mark.parametrize(
    ("verdict", "decision", "answer"),
    [
        (("approve",), "GO", "yes"),
        (("edit", "--decision", "NO-GO", "--answer", "maybe", "--reason", REASON), "NO-GO", "maybe"),
        (("reject", "--reason", REASON), "UNDECIDED", "yes"),
    ],
)
def test_a_decision_waits_for_a_verdict_and_takes_effect_with_it(asked, tmp_path, verdict, decision, answer):
    code, result, read_by_people = asked("--confirm")
    name = kept(tmp_path).name
    assert (code, result["waits_for_a_person"], result["kept_as"]) == (WAITS, True, name)
    assert f"python -m chimera ask --continue {name} runs_dir={tmp_path} --verdict approve" in read_by_people
    calls = len(asked.server.requests)
    code, result, _ = asked("--continue", name, "--verdict", *verdict, question=())
    assert (code, result["decision"], result["answer"]) == (0, decision, answer)
    assert result["waits_for_a_person"] is False
    assert result["confirmation"]["action"] == verdict[0]
    assert result["confirmation"]["before"]["final_decision"] == "GO"
    assert len(asked.server.requests) == calls + 1, "only the judge is asked after the verdict"
    preferences = kept(tmp_path) / "preferences.jsonl"
    if verdict[0] == "approve":
        assert not preferences.exists()
        return
    (one,) = [json.loads(line) for line in preferences.read_text().splitlines()]
    assert (one["role"], one["reason"], one["rejected"]["decision"]) == ("PrincipalInvestigator", REASON, "GO")
    assert one["prompt"][0]["role"] == "system"
    chosen = one["chosen"] and (one["chosen"]["decision"], one["chosen"]["answer"])
    assert chosen == (("NO-GO", "maybe") if verdict[0] == "edit" else None)
    assert REASON in result["rationale"]


def test_a_killed_process_that_waited_or_worked_goes_on(tmp_path, asked_server, abstract):
    """kill -9 in the middle of the work: what had ended is not done again."""
    command = [sys.executable, "-m", "chimera", "ask"]
    first = [QUESTION, "--context", str(abstract), "--confirm", *asked_server.overrides, f"runs_dir={tmp_path}"]
    process = subprocess.Popen([*command, *first], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("Protocol"):
            os.kill(process.pid, signal.SIGKILL)
            break
    process.wait()
    process.stdout.close()
    name, before = kept(tmp_path).name, len(asked_server.requests)
    go_on = [*command, "--continue", name, "--json", f"runs_dir={tmp_path}"]
    done = subprocess.run(go_on, capture_output=True, text=True, check=False)
    assert done.returncode == WAITS, done.stderr
    asked_again = [body["messages"][0]["content"].partition(".")[0] for body in asked_server.requests[before:]]
    assert not [one for one in asked_again if any(junior in one for junior in JUNIORS)]
    done = subprocess.run([*go_on, "--verdict", "approve"], capture_output=True, text=True, check=False)
    result = json.loads(done.stdout)
    assert (done.returncode, result["decision"]) == (0, "GO")
    assert result["evidence"] == [{"quote": QUOTE, "where": "your abstract"}]


def test_a_critical_review_forbids_go_to_a_person_too(asked, tmp_path, answers):
    answers["SafetyOfficer"] = {"issues": ["no stopping rule"], "severity": "CRITICAL", "verdict": "REVISE"}
    code, _, _ = asked("society.confirm=[NO-GO]")
    assert code == WAITS
    verdict = ("--verdict", "edit", "--decision", "GO", "--reason", REASON)
    with refused(RunError, "GO", "CRITICAL", "no stopping rule", lines=None):
        asked("--continue", kept(tmp_path).name, *verdict, question=())


def test_a_verdict_must_be_complete(asked, tmp_path):
    asked("--confirm")
    for verdict, message in (
        (("reject",), ("reject", "reason")),
        (("edit", "--reason", REASON), ("edit", "decision", "answer")),
        (("approve", "--decision", "NO-GO"), ("edit", "decision")),
    ):
        with refused(ConfigError, message):
            asked("--continue", kept(tmp_path).name, "--verdict", *verdict, question=())
    for where, needed in ((("--continue", kept(tmp_path).name), "--verdict"), ((QUESTION,), "--continue")):
        with refused(ConfigError, "--reason", needed):
            asked("--reason", REASON, question=where)


def test_an_unknown_question_is_named_with_those_that_are_kept(tmp_path):
    with refused(RunError, "'x'", "there are none"):
        ask("--continue", "x", f"runs_dir={tmp_path}")


def test_training_does_not_wait_for_people(tmp_path):
    with refused(ConfigError, "society.confirm=['GO']"):
        train(["society.confirm=[GO]", f"runs_dir={tmp_path}"])
