"""Whole runs that learn what roles are told: from gather to report, killed and resumed, and within their budgets."""

import json
import shutil
from pathlib import Path

import pytest
from ask_kit import printed_by
from kill_chain import Chain, Kill, events, exists, lines, recorded
from provider_kit import USAGE, serve
from web_kit import planted_server

from agents.policies.graph import load as load_graph
from agents.policies.guidance import load
from chimera.config.sections.bundled import FIRST_LINE, NANO
from chimera.config.sections.graph import GraphConfig
from chimera.planted import HABITS, Planted
from chimera.run.directory import Run
from chimera.run.jsonl import read_lines
from chimera.run.policies import GRAPH, GUIDANCE

pytestmark = [pytest.mark.whole, pytest.mark.timeout(1800)]
CONFIGS = Path(__file__).parents[2] / "configs"
FEW = ["wandb.mode=disabled", "data.size=240", "gate.tasks=16", "evaluation.resamples=200"]
PHASES = ("gather", "fewshot", "lessons", "bandit")
SMALL = [*FEW, "gather.tasks=50", "fewshot.tasks=12", "fewshot.candidates=6", "lessons.tasks=12", "bandit.tasks=8"]


def at(url):
    return [f"models.{slot}.base_url={url}" for slot in ("junior", "supervisor", "senior")]


def train(config, name, *arguments):
    printed_by("chimera.train", "--config", CONFIGS / f"{config}.yaml", "--name", name, *arguments)


def finished(folder, name):
    return {event["phase"]: event for event in Run.open(name, folder).events() if event["event"] == "phase_finished"}


@pytest.fixture(scope="module")
def url():
    with planted_server(noise=0.0) as address:
        yield address


@pytest.fixture(scope="module")
def trained(url, tmp_path_factory):
    """A run of configs/planted.yaml in small, with a report of all its stages."""
    folder = tmp_path_factory.mktemp("runs")
    train("planted", "mine", *at(url), *SMALL, f"runs_dir={folder}")
    printed_by("chimera.eval", "--run", "mine", "--stages", "all", "--limit", "16", f"runs_dir={folder}")
    return folder


def test_examples_and_lessons_go_live_and_the_society_is_right_more_often(trained):
    assert finished(trained, "mine")["fewshot"]["kept"]
    report = json.loads((trained / "mine" / "report" / "report.json").read_text())
    stages = report["stages"]
    assert stages["fewshot"]["alignment"]["mean"] > stages["base"]["alignment"]["mean"] + 0.2
    (back,) = [row for row in report["ablation"] if (row["kind"], row["learner"]) == ("at base", "guidance")]
    assert report["comparisons"][back["comparison"]]["alignment"]["difference"] > 0.2
    assert report["guidance"][0]["phase"] == "fewshot"
    assert "What roles learned to be told" in (trained / "mine" / "report" / "report.md").read_text()


def test_rollouts_name_what_roles_were_told_and_are_replayed_from_their_traces(trained):
    records = list(read_lines(trained / "mine" / "rollouts" / "gate-fewshot.jsonl"))
    assert {record["policy_versions"][GUIDANCE] for record in records} == {"society@fewshot"}
    gathered = read_lines(trained / "mine" / "rollouts" / "gather.jsonl")
    assert not any(GUIDANCE in record["policy_versions"] for record in gathered)
    assert "came to the same" in printed_by("chimera.eval", "--verify", trained / "mine" / "report")


def test_the_gate_s_tasks_are_never_searched_on(trained):
    held_out = {record["task_id"] for record in read_lines(trained / "mine" / "rollouts" / "gate-base.jsonl")}
    searched = [rows for phase, rows in recorded(trained / "mine").items() if "--society" in phase]
    assert searched
    assert not held_out & {record["task_id"] for rows in searched for record in rows}


def test_what_a_role_learned_to_be_told_is_exported_as_configuration_and_for_dspy(trained, tmp_path):
    out = tmp_path / "out"
    printed_by("chimera.export", trained / "mine", "--role", "Neurologist", "--out", out)
    told = load(trained / "mine" / "models" / "society" / "fewshot")["Neurologist"]
    state = json.loads((out / "dspy.json").read_text())
    assert [demo["goal"] for demo in state["demos"]] == [example["goal"] for example in told.examples]
    assert state["signature"]["fields"][0]["description"] == "${goal}"
    check = printed_by("chimera.train", "--check", "--config", out / "guidance.yaml", "models.junior.kind=endpoint",
                "models.junior.base_url=http://127.0.0.1:9/v1", "models.junior.model=m",
                "--phases", "gather", "data.size=240")  # fmt: skip
    assert "nothing was started" in check


def test_a_question_of_a_person_is_answered_by_who_was_told(trained):
    question = ("--task", "generated-0-5", "--run", "mine", "--json", f"runs_dir={trained}")
    assert json.loads(printed_by("chimera.ask", *question))["answer"]


def test_a_run_that_is_killed_learns_the_same_and_pays_for_nothing_twice(url, trained, tmp_path):
    chain = Chain(tmp_path, "mine", [*at(url), *SMALL], PHASES, str(CONFIGS / "planted.yaml"))
    searching = {name: lines(f"rollouts/gate-{name}.jsonl") for name in ("fewshot", "lessons")}
    kills = [
        Kill("main", "the beginning of fewshot", events("phase_started", "fewshot")),
        Kill("main", "a candidate's rollouts", lambda run: len(list(run.glob("rollouts/fewshot--*.jsonl")))),
        Kill("main", "another candidate's", lambda run: len(list(run.glob("rollouts/fewshot--*.jsonl")))),
        Kill("main", "the gate's rollouts", searching["fewshot"]),
        Kill("main", "a question of lessons", exists("phases/lessons/calls.jsonl")),
        Kill("main", "the end of lessons", events("phase_learned", "lessons")),
    ]
    try:
        for kill in kills:
            chain.kill(kill)
        chain.finish()
    finally:
        chain.close()
    whole, killed = recorded(trained / "mine"), recorded(chain.run)
    assert {name: len(killed[name]) for name in killed} == {
        name: len(rows) for name, rows in whole.items() if not name.startswith("eval-")
    }
    for phase in ("fewshot", "lessons"):
        file = Path("models") / "society" / phase / "guidance.json"
        assert (chain.run / file).read_text() == (trained / "mine" / file).read_text()
    asked = [[line["key"] for line in read_lines(folder / "phases" / "lessons" / "calls.jsonl")] for folder in
             (trained / "mine", chain.run)]  # fmt: skip
    assert sorted(asked[0]) == sorted(asked[1])


def test_gepa_finds_what_was_planted_within_its_rollouts(url, tmp_path):
    pipeline = ["--phases", "gather,gepa", "pipeline.gepa.roles=[juniors]", "gepa.model=senior", "gather.tasks=24"]
    train("planted", "g", *at(url), *FEW, *pipeline, f"runs_dir={tmp_path}")
    figures = finished(tmp_path, "g")["gepa"]["figures"]
    assert figures["rollouts"] <= 150
    assert figures["right_best"] >= 0.9 > figures["right_before"]
    prompt = load(tmp_path / "g" / "models" / "society" / "gepa")["Geneticist"].prompt
    assert prompt.startswith("You are the Geneticist.")
    assert sum(word in prompt for word in HABITS.values()) >= 2


def test_a_cheaper_graph_is_found_goes_through_the_gate_and_is_replayed(url, tmp_path):
    pipeline = ["--phases", "gather,aflow", "pipeline.aflow.tasks=8", "aflow.graphs=12", "gather.tasks=4"]
    where = [*at(url), *FEW, f"runs_dir={tmp_path}"]
    train("planted", "graph", *where, *pipeline)
    figures = finished(tmp_path, "graph")["aflow"]["figures"]
    assert figures["graphs"] <= 12
    assert [entry["tokens"] for entry in figures["pareto"]] == sorted(entry["tokens"] for entry in figures["pareto"])
    graph = load_graph(tmp_path / "graph" / "models" / "society" / "aflow")
    assert graph.reviewed
    assert graph != GraphConfig()
    (record, *_) = read_lines(tmp_path / "graph" / "rollouts" / "gate-aflow.jsonl")
    assert record["policy_versions"][GRAPH] == "society@aflow"
    assert len(record["outputs"]["initial_hypotheses"]) == len(graph.juniors)
    printed_by("chimera.eval", "--run", "graph", "--limit", "6", f"runs_dir={tmp_path}")
    assert "12 of 12 rollouts were replayed" in printed_by("chimera.eval", "--verify", tmp_path / "graph" / "report")
    assert "graph" in (tmp_path / "graph" / "report" / "report.md").read_text()


def test_a_society_of_two_is_evaluated_without_a_judge(url, tmp_path):
    (tmp_path / "duo.yaml").write_text("juniors: [Neurologist]\ndesign: false\nwaives: [SafetyOfficer]\n")
    principal = [f"models.principal.{key}" for key in ("kind=endpoint", f"base_url={url}", "model=planted")]
    where = [*at(url), *principal, *FEW, f"society.graph={tmp_path / 'duo.yaml'}", f"runs_dir={tmp_path}"]
    train("planted", "duo", "--phases", "gather", "gather.tasks=4", *where)
    printed_by("chimera.eval", "--run", "duo", "--limit", "6", f"runs_dir={tmp_path}")
    assert "6 of 6 rollouts were replayed" in printed_by("chimera.eval", "--verify", tmp_path / "duo" / "report")
    (record, *_) = read_lines(tmp_path / "duo" / "rollouts" / "gather.jsonl")
    assert (record["status"], record["reward"], record["counts"]["model_calls"]) == ("succeeded", None, 4)


def test_a_society_of_api_models_goes_through_configs_endpoint_within_its_budget(tmp_path):
    planted, tokens = Planted(noise=0.0), 120_000

    def play(request):
        return planted.respond(request)["choices"][0]["message"]["content"]

    with serve(play) as server:
        openai = [f"models.{slot}.base_url={server.url}/v1" for slot in ("senior", "board", "principal", "judge")]
        claude = {"base_url": server.url, "provider": "anthropic", "model": "claude-scripted"}
        models = [*openai, *(f"models.junior.{key}={value}" for key, value in claude.items())]
        models += [f"models.{slot}.api_key_env=null" for slot in ("board", "principal", "judge")]
        small = ["society.evidence=given", "society.max_tool_calls=0", "gather.tasks=16", "fewshot.tasks=6",
                 "fewshot.candidates=3", "gepa.tasks=6",
                 f"fewshot.budget.tokens={tokens}", "gepa.budget.rollouts=12", "bandit.tasks=4",
                 "gate.tasks=6", "data.size=80", "wandb.mode=disabled", f"runs_dir={tmp_path}"]  # fmt: skip
        train("endpoint", "api", *models, *small)
        answered = len(server.requests)
        printed_by("chimera.eval", "--run", "api", "--limit", "4", f"runs_dir={tmp_path}")
    figures = {phase: event["figures"] for phase, event in finished(tmp_path, "api").items()}
    assert set(figures) == {"gather", "fewshot", "gepa", "bandit"}
    assert 0 < figures["fewshot"]["tokens"] <= tokens
    assert 0 < figures["gepa"]["rollouts"] <= 12
    assert (tmp_path / "api" / "report" / "index.html").is_file()
    phases = {name: rows for name, rows in recorded(tmp_path / "api").items() if not name.startswith("eval-")}
    used = sum(counted(row) for rows in phases.values() for row in rows)
    questions = read_lines(tmp_path / "api" / "phases" / "gepa" / "calls.jsonl")
    used += sum(line["response"]["usage"]["total_tokens"] for line in questions)
    assert used == answered * USAGE["total_tokens"]


def test_examples_weights_and_instructions_are_learned_in_turn(tmp_path):
    """BetterTogether (`fewshot, sft, gepa`) on one slot: weights that see the whole system prompt."""
    model = tmp_path / "open"
    shutil.copytree(NANO, model)
    template = model / "chat_template.jinja"
    template.write_text(template.read_text().replace(FIRST_LINE, "message.content"))
    (tmp_path / "turns.yaml").write_text(
        "pipeline:\n"
        "  gather: {tasks: 16}\n"
        "  fewshot: {roles: [juniors], tasks: 4, candidates: 2, examples: 1}\n"
        "  sft: {algorithm: rejection, roles: [juniors], answers: 2, epochs: 1, min_examples: 4}\n"
        "  gepa: {roles: [juniors], tasks: 4, model: senior, budget: {rollouts: 8}}\n"
        "gate: {tasks: 6}\n"
    )
    small = ["data.size=120", "wandb.mode=disabled", f"models.junior.path={model}", f"runs_dir={tmp_path}"]
    printed_by("chimera.train", "--config", tmp_path / "turns.yaml", "--name", "turns", *small)
    phases = finished(tmp_path, "turns")
    assert list(phases) == ["gather", "fewshot", "sft", "gepa"]
    assert phases["sft"]["figures"]["selected"] >= 4
    assert 0 < phases["gepa"]["figures"]["rollouts"] <= 8
    searched = [row for name, rows in recorded(tmp_path / "turns").items() if "gepa--" in name for row in rows]
    live = "junior@sft" if phases["sft"]["kept"] else "open@0"
    assert {row["policy_versions"]["junior"] for row in searched} == {live}


def counted(row):
    """All tokens that a rollout's record counts."""
    judge = row["counts"].get("judge_prompt_tokens", 0) + row["counts"].get("judge_completion_tokens", 0)
    return judge + sum(side for slot in row["tokens"].values() for side in slot.values())
