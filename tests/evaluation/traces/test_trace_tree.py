"""A rollout as a tree: a trace made by hand, in which every visit, call and reason is known beforehand."""

import ast
import json
import re
from dataclasses import asdict, replace
from html import unescape
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from message_kit import lacking
from rich.console import Console
from web_kit import Page

from agents.visit.record import ModelCall, ToolUse
from chimera.show import terminal
from evaluation.records.rollouts import RolloutRecord
from evaluation.scores.judge import CRITERIA
from evaluation.traces.conversation import LearnedTokens, conversation, page
from evaluation.traces.spans import RAW, Position, exchange_span, operation_span, outcome_span
from evaluation.traces.text import gist, tool_texts
from evaluation.traces.token_records import Objective, TokenRecord
from evaluation.traces.token_texts import load_tokenizer, token_texts
from evaluation.traces.tree import tree


def outline(made, *, messages=False, pieces=None):
    """What a pipe gets, with single spaces."""
    learned = None if pieces is None else LearnedTokens(pieces)
    file = StringIO()
    terminal.show(Console(file=file, width=200), conversation(made, run="mine", messages=messages, learned=learned))
    return re.sub(" +", " ", file.getvalue())


HYPOTHESIS = {"evidence": ["It fell."], "comparison": "asked lower; found lower", "claim": "It works", "answer": "yes"}
PROTOCOL = {
    **dict.fromkeys(("design", "population", "intervention", "comparator", "outcome", "analysis"), "a phrase"),
    "sample_size": 12, "safeguards": "a board", "expected": "no",
}  # fmt: skip
EVIL = "</pre><script>alert(1)</script>{{ 7*7 }}"


def review(severity, verdict="REVISE"):
    return {"issues": [f"an issue, {severity}"], "severity": severity, "verdict": verdict}


class Story:
    """Writes a rollout's spans and the runner's records, visit by visit."""

    def __init__(self):
        self.spans, self.calls, self.number = [], [], 0

    def at(self):
        self.number += 1
        return Position("ro-1", "at-1", self.number, float(self.number), self.number + 0.5)

    def visit(self, role, answers, model="senior", visit=1, attempt=1, failed=False, weights="v1", payload=None):
        """Each answer is a dict (readable), a str (unreadable) or a list of tool calls (name, arguments, told)."""
        messages = [
            {"role": "system", "content": f"You are the {role}."},
            {"role": "user", "content": json.dumps(payload or {})},
        ]
        ids = []
        repair = False
        for step, answer in enumerate(answers, start=1):
            name = f"{role}-{visit}-{attempt}-{step}"
            asked = answer if isinstance(answer, list) else []
            content = None if asked else answer if isinstance(answer, str) else json.dumps(answer)
            message = {"role": "assistant", "content": content}
            if asked:
                message["tool_calls"] = [
                    {"id": f"{name}-{place}", "type": "function", "function": {"name": tool, "arguments": arguments}}
                    for place, (tool, arguments, _) in enumerate(asked)
                ]
            choice = {"message": message, "finish_reason": "tool_calls" if asked else "stop", "token_ids": [9, 8, 7]}
            request = {"model": model, "messages": list(messages)}
            response = {"id": name, "choices": [choice], "prompt_token_ids": [1], "weights_version": weights}
            self.spans.append(exchange_span(self.at(), request, response))
            parsed = None if asked else isinstance(answer, dict)
            self.record(ModelCall(role, model, visit, step, name, weights, choice["finish_reason"], 5, 3, 0.25, parsed,
                                  repair, None, attempt))  # fmt: skip
            messages.append(message)
            for place, (tool, arguments, told) in enumerate(asked):
                ok = "results" in told
                self.record(ToolUse(role, visit, step, tool, arguments, True, ok, ("p-1",) if ok else (),
                                    None if ok else "it is down", 0.5, attempt))  # fmt: skip
                messages.append({"role": "tool", "tool_call_id": f"{name}-{place}", "content": json.dumps(told)})
            if isinstance(answer, str):
                repair = True
                messages.append({"role": "user", "content": "again"})
            ids.append(name)
        if failed:
            step = len(answers) + 1
            self.record(ModelCall(role, model, visit, step, "", None, "error", 0, 0, 0.1, None, False, "503", attempt))
        attributes = {"role": role, "model": model, "visit": visit, "attempt": attempt}
        self.spans.append(operation_span(self.at(), role, attributes, ids))
        return self

    def record(self, call):
        self.calls.append({"kind": type(call).__name__, **asdict(call)})

    def end(self, **outcome):
        self.spans.append(outcome_span(self.at(), {"error": None, "outputs": {}, "calls": self.calls, **outcome}))
        return self.spans


def record(**changes):
    outputs = {
        "research_goal": "Does it work?",
        "selection": {"author": "Neurologist", "preferred": "Geneticist", "policy": "Supervisor@bandit",
                      "propensities": {"Geneticist": 0.25, "Neurologist": 0.75}, "sources": []},
        "final_rationale": "because",
    }  # fmt: skip
    made = RolloutRecord(
        "ro-1", "t-1", "generated", 1, "ppo", 0, 7, "succeeded", None, "yes", "yes", "GO", 1.25,
        parts={"alignment": 1.0, "overlong": -0.0, "impact": 0.25}, weights_versions={"senior": ["v1"]},
        outputs=outputs, seconds=2.0,
    )  # fmt: skip
    return replace(made, **changes)


def revised():
    story = Story()
    told = {"results": [{"id": "p-1", "text": "It fell."}], "goal": "g"}
    story.visit("Neurologist", [[("literature_search", '{"query":"it"}', told)], HYPOTHESIS], "junior")
    story.visit("Supervisor", [{"choice": "Neurologist", "justification": "j"}], "supervisor")
    story.visit("HypothesisRefiner", ["no JSON", HYPOTHESIS])
    story.visit("ProtocolDesigner", [PROTOCOL])
    story.visit("PeerReviewer", [review("MAJOR")], "board", weights=None)
    story.visit("SafetyOfficer", [review("CRITICAL")], "board", weights=None)
    story.visit("HypothesisRefiner", [HYPOTHESIS], visit=2)
    story.visit("ProtocolDesigner", [PROTOCOL], visit=2)
    return story.end()


def learned(response_id="ProtocolDesigner-1-1-1", advantages=(0.5, -1.0, 0.0)):
    chances = [-0.1, -6.0, -0.0]
    return TokenRecord(
        "ro-1", response_id, "ProtocolDesigner", 1, 1, 1, 0.75, "v1", [1.0, 1.0, 0.0], list(advantages), chances,
        objective=Objective(0.5, 1.0, 1.0, 4.0, 0.2, 0.28, 3.0),
    )  # fmt: skip


def test_visits_come_in_the_order_in_which_they_began_with_what_was_asked_and_told():
    made = tree(record(), revised())
    assert [(visit.role, visit.number) for visit in made.visits] == [
        ("Neurologist", 1), ("Supervisor", 1), ("HypothesisRefiner", 1), ("ProtocolDesigner", 1),
        ("PeerReviewer", 1), ("SafetyOfficer", 1), ("HypothesisRefiner", 2), ("ProtocolDesigner", 2),
    ]  # fmt: skip
    asked, answered = made.visits[0].calls
    (tool,) = asked.tools
    assert (tool.use.tool, tool.use.arguments, tool.use.results) == ("literature_search", '{"query":"it"}', ("p-1",))
    assert tool_texts(tool.answer) == [("p-1", "It fell.")]
    noted = json.dumps({"results": [], "note": "1 is no evidence (retracted)"})
    assert tool_texts(noted) == [("note", "1 is no evidence (retracted)")]
    assert [message["role"] for message in asked.new] == ["system", "user"]
    assert [message["role"] for message in answered.new] == ["tool"]
    assert (asked.finish_reason, asked.answer, asked.weights) == ("tool_calls", None, "v1")
    assert made.visits[0].answer == answered.answer == HYPOTHESIS


def test_a_repair_shows_the_unread_answer_and_the_read_one():
    refiner = tree(record(), revised()).visits[2]
    assert [(call.text, call.record.repair) for call in refiner.calls] == [
        ("no JSON", False), (json.dumps(HYPOTHESIS), True)
    ]  # fmt: skip
    assert [call.answer for call in refiner.calls] == [None, HYPOTHESIS]


def test_the_judges_answer_is_read_as_it_was_scored():
    scores = dict.fromkeys(CRITERIA, 0.5)
    story = Story().visit("Evaluation", [f"```json\n{json.dumps(scores)}\n```"], "judge")
    story.calls.clear()  # The worker notes none of the judge's.
    assert tree(record(), story.end()).visits[0].answer == scores


def test_a_revision_names_the_reviews_that_sent_it_back():
    made = tree(record(), revised())
    assert [dict(visit.because) for visit in made.visits[:6]] == [{}] * 6
    assert dict(made.visits[6].because) == {"SafetyOfficer": review("CRITICAL")}
    assert dict(made.visits[7].because) == {"PeerReviewer": review("MAJOR"), "SafetyOfficer": review("CRITICAL")}


def test_a_broken_try_and_a_call_that_failed_are_shown():
    story = Story().visit("ProtocolDesigner", [], failed=True).visit("ProtocolDesigner", [PROTOCOL], attempt=2)
    first, second = tree(record(), story.end()).visits
    assert (first.broken, second.broken) == (True, False)
    assert (first.calls[0].record.error, first.calls[0].exchange, first.answer) == ("503", None, None)
    assert second.answer == PROTOCOL
    text = outline(tree(record(), story.spans))
    assert "ProtocolDesigner, try 1" in text
    assert "call 1: error" in text
    assert "503" in text


def test_what_is_missing_is_said():
    def notes(record, spans, tokens=()):
        return " ".join(tree(record, spans, tokens).notes)

    whole = revised()
    assert notes(record(), whole, [learned()]) == ""
    assert "left no trace" in notes(record(), [])
    assert "no outcome" in notes(record(), whole[:-1])
    assert "none learned so from this one, which is of phase ppo" in notes(record(), whole)
    assert "phase gather" in notes(record(phase="gather"), whole)
    assert "no value: impact" in notes(record(missing=["impact"]), whole)
    without = [span for span in whole if span.attributes.get("llm.hosted_vllm.id") != "ProtocolDesigner-1-1-1"]
    call = tree(record(), without).visits[3].calls[0]
    assert (call.exchange, call.answer) == (None, None)
    assert "not in the trace" in outline(tree(record(), without))


def test_only_the_attempt_that_reported_is_shown():
    spans = Story().visit("ProtocolDesigner", [PROTOCOL]).end()
    later = [replace(span, attempt_id="at-2", sequence_id=span.sequence_id + 9) for span in spans]
    made = tree(record(), [*spans, *later])
    assert len(made.visits) == 1
    assert made.visits[0].calls[0].exchange.attempt_id == "at-2"


def test_the_outline_has_everything_a_reader_looks_for():
    text = outline(tree(record(), revised(), [learned()]), messages=True)
    for wanted in (
        "rollout ro-1", "Does it work?", "status after 2.00 s: succeeded", "answer: yes",
        "answer key: yes", "decision: GO",
        "senior: v1",
        'literature_search {"query":"it"} -> found p-1', "[p-1] It fell.", "[system] You are the Neurologist.",
        "the one re-ask after an unreadable answer", "unread: no JSON", "probability of each: Geneticist 25.0%",
        "chosen: Neurologist", "chosen by: the bandit (Supervisor@bandit)", "the model preferred: Geneticist",
        "Revision 1: sent back by PeerReviewer (MAJOR) and SafetyOfficer (CRITICAL)", "issues: an issue, MAJOR",
        "overlong 0.000", "reward 1.250", "because", "5 + 3 tokens, 0.25 s",
    ):  # fmt: skip
        assert wanted in text, wanted
    assert "-0.000" not in text
    assert "advantage" not in text


def chosen(policy, preferred, propensities=None):
    """The supervisor's visits, and the record, of a rollout whose choice is the Geneticist."""
    story, visit = Story(), 1
    if preferred is not None:
        story.visit("Supervisor", [{"choice": preferred, "justification": "supports yes"}], "supervisor")
        visit = 2
    if preferred != "Geneticist":
        told = {"choice": "Geneticist", "justification": "supports maybe"}
        story.visit("Supervisor", [told], "supervisor", visit=visit, payload={"chosen": "Geneticist"})
    selection = {"author": "Geneticist", "preferred": preferred, "policy": policy, "propensities": propensities}
    return tree(record(outputs={"selection": selection}), story.end())


@pytest.mark.parametrize(
    ("policy", "preferred", "who", "own", "told"),
    [
        ("Supervisor@bandit", None, "the bandit (Supervisor@bandit)", 0, 1),
        ("supervisor", "Geneticist", "the supervisor's model", 1, 0),
        ("supervisor", "Neurologist", "a random draw (exploration)", 1, 1),
        ("mine", None, "the policy 'mine'", 0, 1),
    ],
)
def test_a_sentence_stands_as_a_reason_only_with_the_model_s_own_choice(policy, preferred, who, own, told):
    made = chosen(policy, preferred)
    text = outline(made)
    assert f"chosen by: {who}" in text
    assert text.count("justification: supports yes") == own
    assert text.count("\n given choice: Geneticist") == told
    assert text.count("sentence on the given choice: supports maybe") == told
    shown = unescape(page(made, run="mine"))
    assert who in shown
    assert shown.count("<dt>sentence on the given choice</dt>") == told
    assert "<dt>justification</dt>" in shown if own else "<dt>justification</dt>" not in shown


def test_tokens_are_listed_on_demand():
    pieces = {"ProtocolDesigner-1-1-1": ["a", "b\n", ""]}
    text = outline(tree(record(), revised(), [learned()]), pieces=pieces)
    assert "credit 0.750" in text
    assert "'a' 1 +0.500 -0.100" in text
    assert "'b\\n' 1 -1.000 -6.000" in text


def test_tokens_without_a_text_are_their_ids_and_without_an_id_no_made_up_one():
    def shown(spans):
        made = tree(record(), spans, [learned()])
        return outline(made, pieces={}), page(made, run="mine")

    listed, text = shown(revised())
    assert "[8] 1 -1.000" in listed
    assert ">[8]</span>" in text
    unnumbered = [replace(span, attributes=without_ids(span.attributes)) for span in revised()]
    listed, text = shown(unnumbered)
    assert "[?] 1 -1.000" in listed
    assert "[0]" not in listed + text
    assert text.count(">[?]</span>") == 3
    assert "mask 1, token unknown" in text


def without_ids(attributes):
    """An exchange as of a server that returns no token ids."""
    choices = f"{RAW}choices"
    if choices not in attributes:
        return attributes
    (choice,) = ast.literal_eval(attributes[choices])
    return {**attributes, choices: repr([{key: value for key, value in choice.items() if key != "token_ids"}])}


def test_a_terminal_gets_styles_and_a_pipe_plain_lines_neither_control_characters():
    blocks = conversation(tree(record(outputs={"research_goal": "a\x1b[31mb" * 30}), revised()), run="mine")
    plain, styled = terminal.lines(blocks), StringIO()
    terminal.show(Console(file=styled, force_terminal=True, width=80), blocks)
    assert plain.splitlines()[:2] == ["Run mine, rollout ro-1", "a [31mb" * 30]
    assert "\x1b" not in plain
    assert "\x1b[1m" in styled.getvalue()
    assert "\x1b[31mb" not in styled.getvalue()
    assert "\nNeurologist answer: yes" in plain
    assert "\n  call 2: stop; 5 + 3 tokens, 0.25 s" in plain


@pytest.mark.parametrize(
    ("answer", "short"),
    [(HYPOTHESIS, "answer: yes"), (PROTOCOL, "expected: no"), (review("MAJOR"), "REVISE, MAJOR"),
     ({"choice": "Neurologist", "justification": "j"}, "choice: Neurologist"), (None, "no readable answer"),
     ({"amendments": [], "answer": "yes", "decision": "GO", "rationale": "r"}, "answer: yes, GO")],
)  # fmt: skip
def test_an_answer_in_a_few_words(answer, short):
    assert gist(answer) == short


def test_the_page_is_self_contained_and_shows_each_token():
    pieces = {"ProtocolDesigner-1-1-1": ["a", "<b>", "c"]}
    text = page(tree(record(), revised(), [learned()]), run="mine", learned=LearnedTokens(pieces))
    read = Page(text)
    assert all(one.startswith("#visit-") for one in read.links)
    assert "url(" not in text
    assert {"script", "link", "img", "b&gt;"}.isdisjoint(read.tags)
    tokens = [span for tag, span in read.elements if tag == "span" and "advantage" in span.get("title", "")]
    assert [span["class"] for span in tokens] == ["up a2 s0", "down a5 s5", "level off a0 s0"]
    shares = "50.000 % of the loss, 49.876 % of the gradient"
    assert f"log-probability -6.0000, {shares}, mask 1, token 8" in tokens[1]["title"]
    assert "&lt;b&gt;" in text
    assert "advantages from -1.000 to +0.500" in text
    assert "had no peer to be compared with" in text  # the designer's other calls, which have no record
    assert "Revision 1: sent back by" in text
    assert "viewport" in text
    assert "prefers-color-scheme: dark" in text


def test_a_page_without_token_records_says_so():
    text = page(tree(record(phase="gather"), revised()), run="mine", note="A note.")
    assert "which is of phase gather" in text
    assert "A note." in text
    assert "advantage" not in text
    Page(text)


def test_what_models_and_tools_wrote_is_data():
    story = Story()
    told = {"results": [{"id": EVIL, "text": EVIL}]}
    story.visit("HypothesisRefiner", [[(EVIL, EVIL, told)], {**HYPOTHESIS, "claim": EVIL}])
    story.visit("ProtocolDesigner", [EVIL, {**PROTOCOL, "design": EVIL}], weights=EVIL)
    story.visit("PeerReviewer", [{"issues": [EVIL], "severity": "MINOR", "verdict": "APPROVE"}], EVIL)
    outputs = {"research_goal": EVIL, "final_rationale": EVIL}
    token = replace(learned("ProtocolDesigner-1-1-2"), policy=EVIL)
    made = tree(record(outputs=outputs, error=EVIL, status="failed"), story.end(), [token])
    text = page(made, run=EVIL, learned=LearnedTokens({"ProtocolDesigner-1-1-2": [EVIL, "", "x"]}))
    assert "script" not in Page(text).tags
    assert "<script" not in text
    assert "{{ 7*7 }}" in text


def test_a_rollout_that_left_nothing_has_a_page_too():
    nothing = dict.fromkeys(("answer", "decision", "reward", "seconds"))
    failed = record(status="failed", error="out of time", outputs={}, parts={}, **nothing)
    text = page(tree(failed, []), run="mine")
    Page(text)
    said = ("Task t-1", "out of time", "left no trace", "No visit is known")
    assert lacking(text, *said, "No answer was given", "No decision was made") == []


@given(st.text(min_size=1, max_size=60))
def test_the_texts_of_tokens_are_the_text(text):
    tokenizer = load_tokenizer("nano")
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    pieces = token_texts(tokenizer, ids)
    assert len(pieces) == len(ids)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=False)


def test_control_tokens_are_shown():
    tokenizer = load_tokenizer("nano")
    pieces = token_texts(tokenizer, tokenizer.encode("yes<|im_end|>").ids)
    assert ("".join(pieces[:-1]), pieces[-1]) == ("yes", "<|im_end|>")
