"""The principal investigator's seat on the viewer's pages: a person's verdict after the asking process has ended."""

import asyncio
import json
import re
from html import unescape

import pytest
from ask_kit import QUESTION, QUOTE, ask
from starlette.testclient import TestClient
from view_kit import HOST, KEY, PLANTED, PORT

from evaluation.conduct.kept import Kept
from evaluation.view.app import make_app
from evaluation.view.seat import PersonSeat

REASON = f"too small {PLANTED}"


@pytest.fixture
def waiting(tmp_path, answers, asked_server, abstract, capsys):
    """A question whose GO waits, with the browser of a person: the browser, the question's name, the runs folder."""
    answers["PrincipalInvestigator"] = {**answers["PrincipalInvestigator"], "rationale": f"it holds {PLANTED}"}
    runs = tmp_path / "runs"
    ask(QUESTION, "--context", abstract, *asked_server.overrides, "--confirm", "--json", f"runs_dir={runs}")
    name = json.loads(capsys.readouterr().out)["kept_as"]
    with TestClient(make_app(runs, key=KEY, port=PORT), base_url=HOST) as client:
        client.get(f"/?key={KEY}")
        yield client, name, runs


def say(client, name, **form):
    return client.post(f"/seat/{name}", data=form, headers={"origin": HOST})


def until_done(client, name):
    """The question's page when its verdict has taken effect."""
    client.app.app.state.desk.seat.join(name)
    return unescape(client.get(f"/seat/{name}").text)


def test_a_question_that_waits_is_shown_with_what_it_rests_on(waiting):
    client, name, _ = waiting
    assert "1 decision waits for a person" in client.get("/").text
    assert "waits for a person" in client.get("/seat").text
    page = client.get(f"/seat/{name}").text
    assert f"It rests on “{QUOTE}” (your abstract)" in unescape(page)
    assert "Not medical advice" in page
    assert f"it holds {PLANTED}" in unescape(page)
    assert PLANTED not in page
    assert re.search(r'<form class="verdict" method="post"', page)


def test_an_edit_from_the_page_takes_effect_as_the_commands_does(waiting):
    client, name, runs = waiting
    answer = say(client, name, action="edit", decision="NO-GO", answer="", reason=REASON)
    assert answer.status_code == 200
    page = until_done(client, name)
    assert f"A person changed the decision, which was yes, GO. Why: {REASON}" in page
    assert '<b class="NO-GO">NO-GO</b>' in page
    kept = Kept.open(runs, name)
    state = asyncio.run(kept.state())
    assert (state["final_decision"], state["confirmation"]["action"]) == ("NO-GO", "edit")
    assert "final_evaluation" in state
    (preference,) = (kept.path / "preferences.jsonl").read_text().splitlines()
    assert json.loads(preference)["reason"] == REASON
    again = say(client, name, action="approve")
    assert again.status_code == 404
    assert "has had its verdict, edit: it cannot be given again" in again.text


def test_a_verdict_that_is_not_complete_starts_nothing(waiting):
    client, name, runs = waiting
    for form, reason in (
        ({"action": "reject"}, "reject needs a reason"),
        ({"action": "edit", "reason": "x"}, "an edit names another decision or another answer"),
        ({}, "this verdict cannot be given"),
        ({"action": "reject", "reason": "x" * 70_000}, "more than 65536 bytes"),
    ):
        answer = say(client, name, **form)
        assert (answer.status_code, reason in answer.text) == (400, True), answer.text
    assert PersonSeat(runs).read(name).state == "waits"
    # Fields of an edit are no part of an approval: a browser sends them all the same.
    assert say(client, name, action="approve", decision="NO-GO", reason="").status_code == 200
    assert "A person approved the decision" in until_done(client, name)


def test_a_question_that_cannot_be_read_is_told(waiting):
    client, name, runs = waiting
    states = runs / "asked" / name / "state.sqlite"
    kept = states.read_bytes()
    states.write_bytes(b"no database " * 400)
    assert "file is not a database" in unescape(client.get("/seat").text)
    states.write_bytes(kept)
    assert "waits for a person" in client.get("/seat").text
    (runs / "asked" / name / "question.json").write_text("{")
    assert "is broken" in unescape(client.get("/seat").text)
    assert "is broken" in unescape(client.get(f"/seat/{name}").text)
    assert say(client, name, action="approve").status_code == 404


@pytest.fixture
def unsupported(answers):
    answers["HypothesisRefiner"]["evidence"] = ["Nobody wrote this."]


@pytest.mark.usefixtures("unsupported")
def test_an_answer_that_no_source_supports_is_withheld_on_the_page_too(waiting):
    client, name, _ = waiting
    page = unescape(client.get(f"/seat/{name}").text)
    assert "There is no answer: no quote of the final hypothesis stands word for word in a source" in page
    assert '<b class="UNDECIDED">UNDECIDED</b>' in page
    assert "Not medical advice" in page
    assert 'class="verdict"' not in page
