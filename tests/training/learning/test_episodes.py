"""Episodes: what an algorithm gets of a rollout, from memory in this process and from disk in a later one."""

import json
from dataclasses import replace

import pytest
from record_kit import spans_of

from agents.roles import ROLES
from agents.schemas import Answer, ExperimentProtocol, FinalDecision, Hypothesis, PeerReview, Selection
from chimera.config.roles import JUNIORS
from chimera.config.sections.rollouts import RewardConfig
from chimera.config.tree import Config
from chimera.core.errors import RunError
from chimera.core.secrets import register_secret
from chimera.core.types import ResearchTask, Section
from chimera.run.directory import Run
from evaluation.records.rollouts import Outcome, RolloutInput, RolloutRecord
from evaluation.rollout.crew import keep
from training.lab.records import Records

PASSAGE = "The rate of falls was lower with the drug (p=0.01)."
HYPOTHESIS = {"evidence": [PASSAGE], "comparison": "lower? lower", "claim": "It works", "answer": "no"}
PROTOCOL = {
    **dict.fromkeys(("design", "population", "intervention", "comparator", "outcome", "analysis"), "a phrase"),
    "sample_size": 12,
    "safeguards": "a board",
    "expected": "maybe",
}
ANSWERS = {"Geneticist": HYPOTHESIS, "HypothesisRefiner": HYPOTHESIS, "ProtocolDesigner": PROTOCOL}
KEY = "sk-a-secret-that-a-model-said"
TASK = ResearchTask("t1", "Does it?", (Section("RESULTS", PASSAGE),), "yes", "generated", "", 1)


def made_rollout(rollout_id="ro-1"):
    """A rollout of three roles, each with one answer, and its spans; the refiner's goal holds a secret."""
    visits = []
    for number, (role, answer) in enumerate(ANSWERS.items()):
        goal = f"Does it? {KEY}" if role == "HypothesisRefiner" else "Does it?"
        messages = [
            {"role": "system", "content": ROLES[role].prompt},
            {"role": "user", "content": json.dumps({"sources": [{"id": "1", "text": PASSAGE}], "goal": goal})},
        ]
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": json.dumps(answer)},
            "finish_reason": "stop",
            "token_ids": [number, 9],
        }
        response = {"id": f"r-{role}", "choices": [choice], "prompt_token_ids": [1, 2], "weights_version": f"w-{role}"}
        visits.append((role, "m", [({"model": "m", "messages": messages}, response)]))
    selection = {"author": "Geneticist", "preferred": None, "policy": "p", "propensities": None, "sources": []}
    outputs = {"research_goal": "Does it?", "initial_hypotheses": [], "selection": selection}
    outcome = Outcome(None, outputs, 0.5, {"alignment": 0.5}, {}, {}, {}, {}, {}, [], 0.4)
    record = RolloutRecord.of(RolloutInput.of(TASK, "gather", 0, 0), outcome, rollout_id, {})
    return record, spans_of(rollout_id, visits)


@pytest.fixture
def run(tmp_path):
    with Run.create("run", Config.model_validate({"runs_dir": tmp_path})) as run:
        yield run


def written(run):
    """The episode of a rollout that is written now."""
    record, spans = made_rollout()
    return Records(run, RewardConfig()).episode(record, keep(run, record, spans))


def test_an_episode_in_memory_equals_the_one_that_a_later_process_reads(run):
    register_secret("TEST_EPISODES_KEY", KEY)
    now = written(run)
    reader = Records(run, RewardConfig())
    (record,) = reader.of("gather").values()
    later = reader.episode(record)
    assert json.loads(json.dumps(later.record.dump())) == json.loads(json.dumps(now.record.dump()))
    assert now.calls(ROLES) == later.calls(ROLES)
    assert now.conversations(ROLES) == later.conversations(ROLES)
    assert now.choices() == later.choices()
    assert [call.response_ids for call in later.calls(["HypothesisRefiner"])] == [(1, 9)]
    (conversation,) = now.conversations(["HypothesisRefiner"])
    assert KEY not in json.dumps(conversation.messages), "what a later process cannot learn from, this one must not"


def test_an_episode_in_memory_needs_no_disk_and_another_one_names_what_is_missing(run, tmp_path):
    now = written(run)
    later = now.on_disk()
    assert later.calls(ROLES) == now.calls(ROLES)
    (tmp_path / "run" / now.record.trace).unlink()
    assert len(now.calls(ROLES)) == 3
    assert later.choices() == now.choices()
    with pytest.raises(RunError, match=r"ro-1\.jsonl\.gz"):
        later.calls(ROLES)


def test_a_rollout_that_left_no_span_has_neither_calls_nor_conversations(run):
    record, _ = made_rollout()
    episode = Records(run, RewardConfig()).episode(replace(record, status="failed", trace=None, reward=None))
    assert episode.calls(ROLES) == episode.conversations(ROLES) == []
    assert episode.choices() == []


def test_conversations_tell_of_any_role_what_it_says_what_it_quotes_and_who_said_it(run):
    found = {one.role: one for one in written(run).conversations(ROLES)}
    assert {role: (one.stance, one.quotes, one.weights_version) for role, one in found.items()} == {
        "Geneticist": ("no", (PASSAGE,), "w-Geneticist"),
        "HypothesisRefiner": ("no", (PASSAGE,), "w-HypothesisRefiner"),
        "ProtocolDesigner": ("maybe", (), "w-ProtocolDesigner"),
    }


def test_stance_and_quotes_are_no_fields_of_an_answer():
    review = PeerReview(issues=[], severity="NONE", verdict="APPROVE")
    decision = FinalDecision(amendments=[], answer="yes", decision="GO", rationale="so")
    selection = Selection(choice=JUNIORS[0], justification="so")
    assert [one.stance for one in (review, decision, selection)] == [None, "yes", None]
    assert review.quotes == decision.quotes == ()
    for schema in (Answer, *{role.schema for role in ROLES.values()}):
        assert {"stance", "quotes"}.isdisjoint(schema.model_json_schema().get("properties", {}))
    assert Hypothesis(**HYPOTHESIS).model_dump() == HYPOTHESIS
    assert ExperimentProtocol.model_json_schema()["title"] == "Protocol", "the bundled model was trained on this name"
