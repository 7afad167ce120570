"""Tasks with options: every role is asked for one of them, and scores, figures and policies follow them."""

import asyncio
import json
from dataclasses import replace

import pytest
from message_kit import refused

from agents.context import Candidates
from agents.policies.bandit import BanditPolicy, Settings, load_policy
from agents.policies.features import feature_names
from agents.roles import OPTION_WORDS, ROLES
from agents.visit.prompting import opening, options_in, payload_of, prompt_with_options
from agents.visit.quoting import answer_format
from agents.visit.react import read_answer
from chimera.config.roles import JUNIORS
from chimera.config.tree import Config
from chimera.core.errors import RoleError, RunError
from chimera.core.types import LABELS, Brief, Option, ResearchTask, decides, shown_options
from chimera.rubric.grader import grade
from evaluation.baselines.simple import majority, reader, tfidf
from evaluation.measures.metrics import outcomes, stage_metrics
from evaluation.measures.statistics import f1_rows, macro_f1_of_totals
from evaluation.records.rollouts import Outcome, RolloutInput, RolloutRecord
from evaluation.records.study import Place, Plan, PlannedTask, Stage, StageAnswers
from evaluation.scores.checklist import checklist
from evaluation.scores.judge import PROMPT, finished_work
from training.algorithms.bandit import BanditSettings

OPTIONS = (Option("A", "iron"), Option("B", "zinc"), Option("C", "lead"))
BRIEF = Brief("7", "Which metal?", (), OPTIONS)
ANSWERING = [name for name, role in ROLES.items() if {"answer", "expected"} & role.schema.model_fields.keys()]


def scripts(kit, answer):
    """Every role answers with the option `answer`."""
    named = {name: {**kit.answers[name]} for name in ANSWERING}
    for script in named.values():
        script.update({key: answer for key in ("answer", "expected") if key in script})
    return {name: [script, script] for name, script in named.items()}


def run(kit, answer, brief=BRIEF):
    model = kit.Model(**scripts(kit, answer))
    return model, asyncio.run(kit.make(model).run(brief))


def test_every_role_and_the_judge_see_the_options_and_roles_are_asked_for_their_names(society_kit):
    model, state = run(society_kit, "B")
    assert (state["final_answer"], state["options"]) == ("B", {"A": "iron", "B": "zinc", "C": "lead"})
    for request in model.requests:
        payload = payload_of(request.messages)
        assert list(payload)[-2:] == ["options", "goal"]
        assert payload["options"] == {"A": "iron", "B": "zinc", "C": "lead"}
        properties = request.response_format["json_schema"]["schema"]["properties"]
        for name in {"answer", "expected"} & properties.keys():
            assert properties[name]["enum"] == ["A", "B", "C"]
            assert "maybe" not in request.messages[0]["content"]
    assert list(finished_work(state, [], "Which metal?"))[-2:] == ["options", "goal"]


def test_without_options_nothing_says_that_there_could_be_some(society_kit):
    model = society_kit.Model()
    asyncio.run(society_kit.make(model).run(society_kit.brief))
    assert all("options" not in json.dumps(request.messages) for request in model.requests)


def test_another_answer_than_an_option_is_asked_for_again_and_then_an_error(society_kit):
    with refused(RoleError, "answer", "'A', 'B' or 'C'"):
        run(society_kit, "yes")


@pytest.mark.parametrize("name", ANSWERING)
def test_prompts_for_options_speak_of_no_other_answers(name):
    prompt = prompt_with_options(ROLES[name].prompt, ["A", "B"])
    assert '"options"' in prompt
    assert not any(word in prompt for word in ("maybe", "yes", "direction asked", "GO when the answer is"))


def test_every_replaced_wording_stands_in_a_prompt():
    prompts = PROMPT + "".join(role.prompt for role in ROLES.values())
    assert all(of_labels in prompts for of_labels, _ in OPTION_WORDS)


def test_yes_and_no_alone_keep_their_decisions():
    prompt = prompt_with_options(ROLES["PrincipalInvestigator"].prompt, ["yes", "no"])
    assert "GO when the answer is yes" in prompt
    assert decides(["yes", "no"])
    assert not decides(["yes", "no", "unknown"])


@pytest.mark.parametrize("options", [OPTIONS, (Option("low"), Option("high"))])
def test_an_answer_is_read_with_the_options_of_its_messages(options, society_kit):
    role, names = ROLES["Geneticist"], [option.name for option in options]
    messages = opening(role, "Which?", options=shown_options(options))
    assert list(options_in(messages)) == names
    assert answer_format(role, messages, "read")["json_schema"]["name"] == "Hypothesis"
    said = society_kit.completion({**society_kit.answers["Geneticist"], "answer": names[1]})
    assert read_answer(role, said, messages).stance == names[1]
    with pytest.raises(ValueError, match="answer"):
        read_answer(role, said, opening(role, "Which?"))


def rubric_payload(answer, options, society_kit):
    hypothesis = {**society_kit.answers["HypothesisRefiner"], "answer": answer}
    protocol = {**society_kit.answers["ProtocolDesigner"], "expected": answer}
    sources = [{"id": "1", "text": "The rate was lower (p=0.01)."}]
    reviews = {"peer_review": society_kit.approval, "safety_review": society_kit.approval}
    return {"sources": sources, "hypothesis": hypothesis, "protocol": protocol, **reviews, **options, "goal": "Which?"}


@pytest.mark.parametrize(
    ("answer", "options", "decision"),
    [("B", {"A": "iron", "B": "zinc"}, "GO"), ("no", ["yes", "no"], "NO-GO"), ("no", None, "NO-GO")],
)
def test_the_rubric_grades_work_with_options(answer, options, decision, society_kit):
    payload = rubric_payload(answer, {} if options is None else {"options": options}, society_kit)
    assert grade("PeerReview", payload)["severity"] != "CRITICAL"
    decided = grade("FinalDecision", payload)
    assert (decided["answer"], decided["decision"]) == (answer, decision)
    scores = grade("Judgement", {**payload, "answer": answer, "decision": decision, "rationale": "so"})
    assert 0 < scores["clarity"] <= 1
    assert set(checklist({**payload, "answer": answer})) == set(scores)
    with refused(ValueError, "hypothesis.answer", "'D'"):
        grade("FinalDecision", rubric_payload("D", {"options": options or {}}, society_kit))


def task(name, label, options=OPTIONS):
    return ResearchTask(name, f"Which {name}?", (), label, "own", options=options)


def record(one, answer, decision="NO-GO", error=None):
    given = RolloutInput.load(json.loads(json.dumps(RolloutInput.of(one, "gate-base", 0, 0).dump())))
    assert given.task == one
    outputs = {} if error else {"final_answer": answer, "final_decision": decision, "turn_count": 8}
    outcome = Outcome(error, outputs, None if error else 1.0, {}, {}, {}, {}, {}, {}, [], 1.0)
    return RolloutRecord.load(RolloutRecord.of(given, outcome, f"r-{one.id}", {}).dump())


def figures(tasks, answers):
    stage = Stage("base", "base", "sequence", (), {})
    labels = tuple(dict.fromkeys(label for one in tasks for label in one.labels))
    plan = Plan("test", "own", "x", tuple(map(PlannedTask.of, tasks)), 1, (stage,), labels=labels)
    assert Plan.load(json.loads(json.dumps(plan.dump()))) == plan
    records = tuple(record(one, answer) for one, answer in zip(tasks, answers, strict=True))
    found = StageAnswers(stage, records, tuple(Place("f", number) for number in range(len(records))))
    return stage_metrics(found, plan, Config()), outcomes(found, plan.labels)


def test_figures_follow_the_options_and_no_decision_is_aligned_with_them():
    metrics, counts = figures([task("1", "A"), task("2", "B"), task("3", "C")], ["A", "B", "A"])
    assert metrics["alignment"].mean == pytest.approx(2 / 3)
    assert metrics["macro_f1"].mean == pytest.approx((2 / 3 + 1 + 0) / 3)
    assert {"decision_alignment", "decision_two_way"}.isdisjoint(metrics)
    assert counts["confusion"]["C"] == {"A": 1, "B": 0, "C": 0, "none": 0}


def test_yes_and_no_alone_have_aligned_decisions():
    pair = (Option("yes"), Option("no"))
    metrics, counts = figures([task("1", "yes", pair), task("2", "no", pair)], ["no", "no"])
    assert metrics["decision_alignment"].mean == 0.5
    assert list(counts["confusion"]) == ["yes", "no"]


def test_a_failed_rollout_of_a_task_with_options_has_no_answer():
    failed = record(task("1", "A"), None, error="late")
    assert (failed.options, failed.answer) == (["A", "B", "C"], None)


def test_a_recorded_answer_that_the_task_does_not_offer_is_refused():
    line = record(task("1", "A"), "B").dump()
    with refused(RunError, "rollouts/gate-base.jsonl", "answer", "'yes'", "A, B, C", "restore"):
        RolloutRecord.load({**line, "answer": "yes"})


def test_macro_f1_has_columns_for_every_label():
    rows = f1_rows([("A", ["A"]), ("E", ["D"])], "ABCDE")
    assert rows.shape == (2, 15)
    assert macro_f1_of_totals(rows.sum(axis=0)[None, :])[0] == pytest.approx(1 / 3)


def test_baselines_answer_with_options():
    train = [replace(task(str(number), "ABC"[number % 3]), goal=f"word{number % 3} which?") for number in range(30)]
    asked = [replace(task("x", "B"), goal="word1 which?")]
    assert majority([*train, task("y", "C")], asked)[0].answer == "C"
    assert tfidf(train, asked)[0].answer == "B"
    assert reader(train, asked)[0].answer in ("A", "B", "C")


def test_the_bandit_has_features_of_the_options_and_keeps_them(tmp_path, society_kit):
    names = feature_names(0, ("A", "B"))
    assert {"answer A", "answer B", "mean of answer A"} <= set(names)
    assert not any("significant" in name or "direction" in name for name in names)
    assert feature_names(8) == feature_names(8, LABELS)
    policy = BanditPolicy(Settings.of(BanditSettings(), 0, ("A", "B")))
    policy.save(tmp_path)
    assert load_policy(tmp_path).settings == policy.settings
    hypotheses = [{**society_kit.answers["Geneticist"], "author": name, "answer": "B"} for name in JUNIORS]
    chances = load_policy(tmp_path).probabilities(Candidates("Which?", hypotheses, ()), greedy=False)
    assert sum(chances) == pytest.approx(1.0)
