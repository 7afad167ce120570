"""Blame by replay: wrong answers with one step made right, made once, seed for seed, and verified."""

import json
import shutil

import pytest
from record_kit import answered, spans_of

from agents.society import Start
from agents.visit.prompting import payload_of
from chimera.config.roles import JUNIORS
from chimera.data.tasks import load
from chimera.eval import main
from chimera.run.directory import Run
from chimera.run.jsonl import read_lines
from evaluation.conduct.repairs import start_of
from evaluation.records.repairs import Repair
from evaluation.records.rollouts import RolloutRecord
from evaluation.traces import spans
from evaluation.verify.check import verify

pytestmark = pytest.mark.whole

ASKED = ("--limit", "8", "--judge", "none", "evaluation.blame=20", "evaluation.self_consistency=false")
LABELS = ("yes", "no", "maybe")
REPAIRS = "eval-val-base-at-0.3--repairs"


def evaluate(run, *arguments):
    given = ["--run", run.name, "--split", "val", f"runs_dir={run.path.parent}", "rollouts.concurrency=2"]
    main([*given, *ASKED, *arguments])


def report_of(run):
    return json.loads((run.path / "report" / "report.json").read_text())


def labels_of(run):
    return {task.goal: task.label for task in load(run.config.data).tasks}


def society(scripted_openai, labels):
    """Its answers by task, in turn: the supervisor takes a wrong junior, or the refiner spoils what is right.

    The supervisor prefers the neurologist, who is wrong in every other task; the refiner copies, or always says maybe.
    """
    goals = sorted(labels)

    def wrong(label):
        return LABELS[(LABELS.index(label) + 1) % 3]

    def hook(request):
        role = scripted_openai.role(request)
        payload = payload_of(request["messages"])
        goal = payload["goal"]
        label, kind = labels.get(goal), goals.index(goal) % 3 if goal in labels else 0
        last = request["messages"][-1]
        if label is None or (request.get("tools") and last["role"] == "user" and role in JUNIORS):
            return None
        text = {"evidence": ["It fell."], "comparison": "lower", "claim": "It works"}
        if role in JUNIORS:
            right = (role == "Geneticist" and kind == 0) or (role != "Geneticist" and kind == 1)
            return {**text, "answer": label if right else wrong(label)}
        if role == "Supervisor":
            return {"choice": payload.get("chosen") or "Neurologist", "justification": "so"}
        if role == "HypothesisRefiner":
            return {**text, "answer": wrong(label) if kind == 1 else payload["hypothesis"]["answer"]}
        if role == "PrincipalInvestigator":
            return {
                "amendments": [],
                "answer": payload["hypothesis"]["answer"],
                "decision": "UNDECIDED",
                "rationale": "so",
            }
        return None

    return hook


@pytest.fixture(scope="module")
def evaluated_once(scripted_openai, scripted_run_in, tmp_path_factory):
    run = scripted_run_in(tmp_path_factory.mktemp("evaluated"), scripted_openai)
    scripted_openai.hooks[:] = [society(scripted_openai, labels_of(run))]
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TEST_KEY", "sk-a-users-own-key-4242")
        environment.delenv("TAVILY_API_KEY", raising=False)
        evaluate(run)
    return run, list(scripted_openai.hooks), list(scripted_openai.requests)


@pytest.fixture
def evaluated(evaluated_once, scripted_openai, scripted_key, tmp_path):
    """A copy of the evaluated run; the server plays the society and remembers the requests of that evaluation."""
    run, scripted_openai.hooks[:], scripted_openai.requests[:] = evaluated_once
    return Run(shutil.copytree(run.path, tmp_path / run.name))


def test_the_repair_of_the_first_wrong_step_mends_what_it_alone_lost(evaluated, scripted_openai):
    report = report_of(evaluated)
    found = report["blame"]
    steps = report["lost"]["base"]["steps"]
    assert {step: one["lost"] for step, one in found["steps"].items()} == {
        step: steps[step] for step in ("juniors", "supervisor", "refiner")
    }
    assert steps["supervisor"] > 0
    assert steps["refiner"] > 0
    for step in ("supervisor", "refiner"):
        one = found["steps"][step]
        assert one["mended"] == one["replays"] == one["lost"], step
        assert one["share"]["low"] <= one["share"]["mean"] <= one["share"]["high"]
    assert found["steps"]["juniors"]["replays"] == 0, "no junior was right on these tasks in any rollout"
    assert found["mended"] == steps["supervisor"] + steps["refiner"]
    replays = [RolloutRecord.load(line) for line in evaluated.rollouts(REPAIRS)]
    originals = {one["task_id"]: one for one in evaluated.rollouts("eval-val-base-at-0.3")}
    assert len(replays) == found["replays"]
    assert all(replay.seed == originals[replay.task_id]["seed"] for replay in replays)
    assert all("Geneticist/1" not in replay.visits for replay in replays), "the juniors did not work again"
    assert "become right when their first wrong step is made right" in (evaluated.path / "report/report.md").read_text()
    assert verify(evaluated.path / "report", evaluated).problems == []
    scripted_openai.requests.clear()
    evaluate(evaluated)
    assert scripted_openai.requests == [], "no replay is made twice"


def test_a_junior_that_was_right_in_another_rollout_is_taken_from_there(evaluated, scripted_openai):
    """In the second repeat of each task the juniors are right, and the supervisor takes whoever is."""
    seeds = {one["seed"] for one in evaluated.rollouts("eval-val-base-at-0.3")}
    lost = report_of(evaluated)["blame"]["steps"]["juniors"]["lost"]
    assert lost > 0
    (first,), labels = scripted_openai.hooks, labels_of(evaluated)
    known = {request.get("seed") for request in scripted_openai.requests}

    def later(request):
        """All juniors are right where the seed is not one of the first repeat's calls."""
        role = scripted_openai.role(request)
        answer = first(request)
        if role in JUNIORS and answer and request.get("seed") not in known:
            goal = payload_of(request["messages"])["goal"]
            return {**answer, "answer": labels[goal]}
        return answer

    scripted_openai.hooks[:] = [later]
    evaluate(evaluated, "--seeds", "2")
    found = report_of(evaluated)["blame"]["steps"]["juniors"]
    assert found["replays"] == found["lost"] == lost
    replays = [RolloutRecord.load(line) for line in evaluated.rollouts(REPAIRS)]
    given = [one for one in replays if one.outputs["selection"]["policy"] == "supervisor" and one.seed in seeds]
    assert any(hypothesis["answer"] == one.label for one in given for hypothesis in one.outputs["initial_hypotheses"])
    assert verify(evaluated.path / "report", evaluated).problems == []


async def test_a_donor_s_findings_are_those_after_its_last_searches(tmp_path):
    class Replays:
        async def before(self, role, record, *_):
            work = f"{record.rollout_id} before {role}"
            hypothesis = {"author": "Geneticist", "evidence": work}
            return Start(role, {"messages": {"Geneticist": [work]}, "initial_hypotheses": [hypothesis]}, ())

    wrong, right = (answered(name, "t1", trace=name) for name in ("wrong", "right"))
    for name in ("wrong", "right"):
        spans.write(spans_of(name, []), tmp_path / name)
    start = await start_of(Repair("juniors", wrong, "Geneticist", right), Replays(), tmp_path, None)
    work = "right before HypothesisRefiner"
    assert (start.role, start.state["messages"]["Geneticist"]) == ("Supervisor", [work])
    assert start.state["initial_hypotheses"] == [{"author": "Geneticist", "evidence": work}]


def test_a_replay_that_was_changed_is_refused(evaluated):
    file = evaluated.rollouts_file(REPAIRS)
    name = next(read_lines(file))["rollout_id"]
    file.write_bytes(file.read_bytes().replace(b"It works", b"It fails", 1))
    problems = verify(evaluated.path / "report", evaluated).problems
    assert any(name in problem and "its outputs differs" in problem for problem in problems), problems


def test_without_blame_no_wrong_answer_is_replayed(evaluated):
    before = evaluated.rollouts_file(REPAIRS).read_bytes()
    evaluate(evaluated, "evaluation.blame=0", "--fresh")
    report = report_of(evaluated)
    assert report["lost"]["base"]["wrong"] > 0
    assert report["blame"] is None
    assert evaluated.rollouts_file(REPAIRS).read_bytes() == before
