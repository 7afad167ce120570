"""Branches of a recorded rollout: read from a phase's calls and updates, and shown beside the call."""

import json
import math
from dataclasses import replace

import pytest
from message_kit import refused
from test_trace_tree import Story, outline, record

from chimera.core.errors import RunError
from chimera.run.directory import Run
from evaluation.traces.branches import branches_of
from evaluation.traces.conversation import LearnedTokens, page
from evaluation.traces.rollout_index import read_tree
from evaluation.traces.text import branch_line
from evaluation.traces.token_records import Objective, TokenRecord, tokens_file, write_tokens
from evaluation.traces.tree import tree

ASKED = "HypothesisRefiner-1-1-1"
EVIL = "<script>alert(1)</script>"
OBJECTIVE = Objective(0.25, 0.5, 1.0, 0.125, 0.2, 0.28, 3.0)


def line(response_id, texts, *, kind="branch", rollout="ro-1", asked=ASKED):
    choices = [{"index": place, "message": {"content": text}} for place, text in enumerate(texts)]
    response = {"id": response_id, "weights_version": "refiner@ppo-0", "choices": choices}
    return json.dumps({"kind": kind, "request": {"rollout_id": rollout, "response_id": asked}, "response": response})


def token_record(response_id, worth, advantage):
    columns = [1.0, 1.0], [advantage, advantage], [-0.1, -0.2]
    return TokenRecord(
        "ro-1", response_id, "HypothesisRefiner", 1, 1, 1, worth, "refiner@ppo-0", *columns, objective=OBJECTIVE
    )


@pytest.fixture
def run(tmp_path):
    """Two requests of ppo about one call, of which update 3 learned two answers, and one of another phase."""
    for phase, lines in {
        "ppo": [line("r1", ["yes", EVIL]), line("r2", [None]), line("r3", ["x"], rollout="ro-11"),
                line("r4", ["x"], kind="ask")],
        "sft": [line("r5", ["no"])],
    }.items():  # fmt: skip
        (tmp_path / "phases" / phase).mkdir(parents=True)
        (tmp_path / "phases" / phase / "calls.jsonl").write_text("".join(f"{one}\n" for one in lines))
    write_tokens([token_record("r1/0", 1.0, 0.5), token_record("r1/1", 0.0, -0.5)], tokens_file(tmp_path, "ppo", 3))
    return tmp_path


def test_each_answer_comes_with_what_the_update_made_of_it(run):
    found = branches_of(run, "ro-1")
    assert list(found) == [ASKED]
    assert [(one.phase, one.text, one.update, one.worth, one.advantage) for one in found[ASKED]] == [
        ("ppo", "yes", 3, 1.0, 0.5), ("ppo", EVIL, 3, 0.0, -0.5), ("ppo", None, None, None, None),
        ("sft", "no", None, None, None),
    ]  # fmt: skip
    assert branches_of(run, "ro-2") == {}


def test_they_stand_beside_their_call_and_cannot_become_markup(run):
    spans = Story().visit("HypothesisRefiner", [{"answer": "yes"}]).end()
    made = tree(record(), spans, (), branches_of(run, "ro-1"))
    (visit,) = made.visits
    assert len(visit.calls[0].branches) == 4
    shown = outline(made, pieces={})
    assert "ppo asked it again: 3 answers, 2 learned from, worth 0.000 to 1.000" in shown
    assert "sft asked it again: 1 answers" in shown
    html = page(made, run="mine")
    assert "ppo asked it again: 3 answers" in html
    assert EVIL not in html
    assert branch_line(visit.calls[0].branches[0]) == "[refiner@ppo-0, update 3: worth 1.000, advantage +0.500] yes"
    assert branch_line(visit.calls[0].branches[2]).endswith("asked for a tool")


def test_each_token_of_a_branch_is_followed_from_the_reward_to_the_gradient(run):
    """Two answers of two tokens: all tokens weigh 1/4, |A| is 0.5; p is 0.9, 0.5 in one and 0.8, 0.8 in the other."""
    chances = {"r1/0": [0.9, 0.5], "r1/1": [0.8, 0.8]}
    pulls = {name: [0.5 * (1 - p) for p in of_call] for name, of_call in chances.items()}
    whole = sum(map(sum, pulls.values())) / 4
    records = [
        replace(token_record(name, worth, advantage), old_log_probs=[math.log(p) for p in chances[name]],
                objective=replace(OBJECTIVE, gradient=whole), parts={"alignment": worth}, new_log_probs=after)
        for name, worth, advantage, after in (("r1/0", 1.0, 0.5, [math.log(0.99), math.log(0.75)]),
                                              ("r1/1", 0.0, -0.5, None))
    ]  # fmt: skip
    write_tokens(records, tokens_file(run, "ppo", 3))
    made = tree(record(), Story().visit("HypothesisRefiner", [{"answer": "yes"}]).end(), (), branches_of(run, "ro-1"))
    shown = outline(made, pieces={"r1/0": ["ye", "s"]})
    assert "credit 1.000 = right answer 1.000; advantage +0.500; 50.00% of the update's loss and" in shown
    assert "of its gradient, whose norm was 0.125" in shown
    shares = [f"{one / 4 / whole:.3%}" for one in pulls["r1/0"]]
    assert f"'ye' 1 +0.500 -0.105 -0.010 x1.100 25.000% {shares[0]}" in shown
    assert f"'s' 1 +0.500 -0.693 -0.288 x1.500 clipped 25.000% {shares[1]}" in shown
    assert "the call was not read again after the update" in shown
    html = page(made, run="mine", learned=LearnedTokens({"r1/0": ["ye", "s"]}))
    assert "x1.500 clipped" in html
    assert EVIL not in html


def test_a_broken_file_is_an_error_and_a_line_that_is_being_written_is_left(run):
    file = run / "phases" / "ppo" / "calls.jsonl"
    whole = file.read_text()
    file.write_text(whole + line("r9", ["late"])[:40] + " ro-1")
    assert len(branches_of(run, "ro-1")[ASKED]) == 4
    file.write_text(whole + "{ro-1\n")
    with refused(RunError, "phases/ppo/calls.jsonl", "line 1 column 2"):
        read_tree(Run(run), record())
    assert read_tree(Run(run), record(phase="eval-test-base")).record == record(phase="eval-test-base")
