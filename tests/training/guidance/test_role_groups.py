"""Who learns together, what counts as a failure, and what no role may be told."""

from dataclasses import replace

import pytest
from lab_kit import task
from record_kit import answered

from agents.roles import ROLES, form_of, prompt_in_form
from chimera.config.roles import JUNIORS
from chimera.config.sections.graph import GraphConfig
from chimera.config.sections.society import Guidance, SocietyConfig
from chimera.core.types import LABELS
from training.guidance.role_groups import failure, is_right, names_a_label, role_groups, tells_too_much
from training.learning.experience import Conversation

OPTIONS = ("A", "B", "C", "D")


def conversation(stance):
    return Conversation("Geneticist", 1, [], None, {"answer": stance}, parsed=True, stance=stance)


@pytest.mark.parametrize("choose", ["select", "combine"])
def test_juniors_learn_together_and_keep_their_first_lines(choose):
    told, graph = SocietyConfig().told, GraphConfig(choose=choose)
    (refiner,) = role_groups(["HypothesisRefiner"], told, graph)
    assert ("findings" in refiner.instructions) == (choose == "combine")
    together, reviewer, officer = role_groups([*JUNIORS, "PeerReviewer", "SafetyOfficer"], told, graph)
    assert together.roles == JUNIORS
    assert (reviewer.roles, officer.roles) == (("PeerReviewer",), ("SafetyOfficer",))
    for learner in (together, refiner, reviewer, officer):
        own = {role: prompt_in_form(ROLES[role].prompt, form_of(graph, role)) for role in learner.roles}
        assert learner.prompts(learner.instructions) == own
    assert together.prompts("Guess.")["Neurologist"].startswith("You are the Neurologist.\nYour field is the nervous")
    assert together.prompts("Guess.")["Neurologist"].endswith("\nGuess.")


def test_roles_that_are_told_different_things_learn_alone():
    own = {"Geneticist": Guidance(prompt="You are the Geneticist.\nGuess.")}
    both = role_groups(["Geneticist", "Neurologist"], lambda role: own.get(role, Guidance()), GraphConfig())
    assert [learner.roles for learner in both] == [("Geneticist",), ("Neurologist",)]
    assert both[0].instructions == "Guess."


def test_a_failure_says_what_was_answered_what_would_have_been_right_and_what_reviewers_said():
    record = answered("ro-1", "t", "no", outputs={"peer_review": {"issues": ["too small"]}})
    assert failure(record, None) == {"reviews": ["too small"], "answered": "no", "right": "yes"}
    case = failure(answered("ro-1", "t", "yes"), conversation("maybe"))
    assert (case["answered"], case["output"]) == ("maybe", {"answer": "maybe"})
    assert failure(answered("ro-1", "t", "yes"), conversation("yes")) is None
    assert failure(answered("ro-1", "t", None), None)["error"] == "no JSON"


def test_an_answer_is_an_example_only_if_role_and_society_were_right():
    right, wrong = answered("ro-1", "t", "yes"), answered("ro-2", "t", "no")
    assert is_right(right, conversation("yes"))
    assert is_right(right, conversation(None))
    assert not is_right(right, conversation("no"))
    assert not is_right(wrong, conversation("yes"))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("As in t-17, agree.", True),
        ("As in t-170, at p < 17, agree.", False),
        ("In adults with gout: does Zolpide LOWER the urate?", True),
        ("does zolpide lower the urate level", True),
        ("Does the sentence say that the drug lowers the level?", False),
    ],
)
def test_what_names_a_task_or_quotes_its_question_tells_too_much(text, named):
    tasks = [
        replace(task(id_), goal="In adults with gout, does Zolpide lower the urate level?") for id_ in ("17", "t-17")
    ]
    assert ("17" in str(tells_too_much(text, tasks))) == named


@pytest.mark.parametrize(
    ("text", "labels", "named"),
    [
        ("Answer yes to such questions.", LABELS, True),
        ("Borderline results mean maybe.", LABELS, True),
        ("The right answer is no.", LABELS, True),
        ("If it includes one, answer No.", LABELS, True),
        ("Then it is heart failure.", ("heart failure", "asthma"), True),
        ("Choose non-inferior then.", ("non-inferior", "superior"), True),
        ("Never answer a question at once.", OPTIONS, False),
        ('Say "no" here.', LABELS, True),
        ("There was no significant difference, so read on.", LABELS, False),
        ("Read the p value first.", LABELS, False),
        ("Choose option B.", OPTIONS, True),
        ("A larger study counts more.", OPTIONS, False),
    ],
)
def test_a_lesson_that_says_what_to_answer_is_seen(text, labels, named):
    assert (names_a_label(text, labels) is not None) == named
