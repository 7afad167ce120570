import io
import json
import re
import shutil
import signal
import subprocess
import sys

import pytest
from ask_kit import ABSTRACT, QUESTION, QUOTE, ask, endpoints
from hypothesis import given
from hypothesis import strategies as st
from message_kit import refused
from rich.console import Console

from agents.visit.sources import given_sources
from chimera.ask import WITHHELD, main
from chimera.config.sections.bundled import NANO, toy_parts
from chimera.core.abstracts import LONGEST, read_abstract, sections
from chimera.core.errors import ConfigError, DataError, RoleError, RunError
from chimera.core.types import Brief
from chimera.data.tasks import load
from chimera.run.directory import Run
from chimera.run.seals import seal
from chimera.show.ask import cards
from chimera.show.card import Card, show
from training.configuration import load_config


def test_a_question_with_an_abstract_from_hypotheses_to_sources(asked_server, abstract, capsys):
    ask(QUESTION, "--context", abstract, *asked_server.overrides)
    out = capsys.readouterr().out
    blocks = [block.splitlines() for block in out.strip().split("\n\n")]
    headlines = [block[0] for block in blocks]
    assert headlines[0] == QUESTION
    assert sorted(headlines[1:4]) == ["Geneticist: yes", "Neurologist: maybe", "Pharmacologist: yes"]
    assert headlines[4:] == [
        "The supervisor's model selects the hypothesis of the Pharmacologist: yes",
        "Refined hypothesis: yes",
        "Protocol",
        "Peer review: APPROVE, severity NONE",
        "Safety review: APPROVE, severity NONE",
        "Answer: yes; protocol: GO",
        "Judge",
        "Sources",
        "Not medical advice",
    ]
    assert blocks[0][2] == "  searches  your abstract"
    assert f"  evidence    “{QUOTE}” [your abstract]" in blocks[1]
    assert "  sample size   120" in blocks[6]
    assert [line.split(maxsplit=1) for line in blocks[9][1:3]] == [
        ["rests", f"on   “{QUOTE}” [your abstract]"],
        ["protocol", "GO"],
    ]
    assert ["novelty", "0.75"] in [line.split() for line in blocks[10]]
    assert blocks[11][1:] == ["  your abstract  given with your question"]
    assert "\x1b" not in out
    assert "╭" not in out


def test_given_evidence_is_in_the_prompt_and_listed_as_a_source(asked_server, abstract, capsys):
    asked_server.searches = False
    ask(QUESTION, "--context", abstract, "society.evidence=given", *asked_server.overrides)
    payloads = [json.loads(body["messages"][1]["content"]) for body in asked_server.requests]
    with_sources = [payload["sources"] for payload in payloads if "sources" in payload]
    assert with_sources == [[{"id": "question", "text": " ".join(ABSTRACT.split())}]] * 6
    out = capsys.readouterr().out
    assert "Sources\n  your abstract  given with your question\n\nNot medical advice\n" in out
    assert f"“{QUOTE}” [your abstract]" in out


def test_the_runs_seed_is_used_and_connections_are_closed(asked_server, abstract, monkeypatch):
    from chimera.serving.client import HttpModel

    close, closed = HttpModel.aclose, []

    async def aclose(self):
        closed.append(self)
        await close(self)

    monkeypatch.setattr(HttpModel, "aclose", aclose)
    seeds = []
    for seed in (3, 3, 4):
        asked_server.requests.clear()
        ask(QUESTION, "--context", abstract, f"seed={seed}", *asked_server.overrides)
        seeds.append({body["seed"] for body in asked_server.requests if "seed" in body})
    assert len(seeds[0]) == 12, "three juniors call a tool and answer, six other roles answer"
    assert seeds[0] == seeds[1]
    assert not seeds[0] & seeds[2]
    assert len(closed) == 3


def test_without_a_real_source_nothing_is_asked_and_the_error_says_what_to_give(asked_server):
    with refused(
        ConfigError, "generated tasks", "--context FILE", "data.path=hub", "tools.literature=pubmed", "--task"
    ):
        ask(QUESTION, *asked_server.overrides)
    assert not asked_server.requests


def test_an_answer_without_a_quote_of_what_was_given_is_withheld(answers, abstract, capsys, asked_server):
    answers["HypothesisRefiner"]["evidence"] = ["The relapse rate was lower with zorbex (2% versus 25%, p=0.004)."]
    assert ask(QUESTION, "--context", abstract, *asked_server.overrides) == WITHHELD
    out = capsys.readouterr().out
    (block,) = [block.splitlines() for block in out.split("\n\n") if block.startswith("UNDECIDED")]
    assert block[0] == "UNDECIDED: no sentence of what you gave supports an answer"
    assert [line.split(maxsplit=1) for line in block[1:2]] == [["answer", "none"]]
    assert block[3].endswith("the society's own answer yes and its decision GO")
    assert "Answer: yes" not in out
    assert "p=0.004).” [in no source]" in out


def test_a_veto_and_its_reason_stand_beside_the_answer(answers, abstract, capsys, asked_server):
    answers["SafetyOfficer"] = {"issues": ["no stopping rule"], "severity": "CRITICAL", "verdict": "REVISE"}
    ask(QUESTION, "--context", abstract, *asked_server.overrides)
    out = capsys.readouterr().out
    assert "\nAnswer: yes; protocol: NO-GO\n" in out
    assert re.search(r"\n  veto +safety review: no stopping rule\n", out)


@pytest.mark.whole
def test_the_toy_is_named_first_and_last_and_quotes_no_invented_study(tmp_path, capsys):
    abstract = tmp_path / "knees.txt"
    abstract.write_text("Keyhole surgery on worn knees was compared with physiotherapy; neither eased pain better.")
    ask("Does measles vaccination cause autism in toddlers?", "--context", abstract)
    out = capsys.readouterr().out
    blocks = out.strip().split("\n\n")
    for block, where in ((blocks[0], "below"), (blocks[-1], "above")):
        assert block.startswith("WARNING: the bundled model is a toy that knows invented studies only\n")
        assert "junior, supervisor, senior" in block
        assert f"Do not act on anything {where}: ask a doctor" in block
    assert "generated" not in out
    assert "invented study" not in out
    assert set(re.findall(r"” \[([^]]+)\]", out)) <= {"in no source", "your abstract"}
    assert "\nUNDECIDED: the bundled model cannot read real studies\n" in out
    assert "\nAnswer: " not in out
    assert blocks[-2] == "Sources\n  your abstract  given with your question", "whatever it searched for, it was found"


def test_the_toys_warning_also_ends_what_fails(abstract, monkeypatch, capsys):
    import evaluation.conduct.live_society

    def broken(*_, **__):
        raise RoleError("Supervisor", "said nothing")

    monkeypatch.setattr(evaluation.conduct.live_society, "serve", broken)
    with pytest.raises(RoleError):
        ask(QUESTION, "--context", abstract)
    assert capsys.readouterr().out.count("WARNING: the bundled model is a toy") == 2


def test_the_toy_is_known_by_its_name_its_folder_and_its_sizes(tmp_path, serving_model):
    trained = tmp_path / "trained"
    shutil.copytree(NANO, trained)
    other = serving_model()
    keys = ("junior", "supervisor", "senior", "refiner", "board")
    for path, parts in (("nano", keys[:4]), (NANO, keys[:4]), (trained, keys[:4]), (other, ()), ("Qwen/Qwen3-8B", ())):
        assert tuple(toy_parts(load_config(None, [f"models.junior.path={path}"]).models)) == parts
    mixed = load_config(None, [f"models.junior.path={other}", "models.board.kind=embedded", "models.board.path=nano"])
    assert toy_parts(mixed.models) == ["board"]


def test_a_task_of_the_data_is_asked_by_its_id_with_its_invented_sources_named(asked_server, capsys):
    (task, *_) = load(load_config(None, ["data.size=20"]).data).validation
    ask("--task", task.id, *asked_server.overrides)
    out = capsys.readouterr().out
    assert out.startswith(task.goal)
    assert f"{task.id} of generated tasks, answer key: {task.label}" in out
    assert re.search(r"\n  invented study generated-\S+  \S", out)
    assert "Answer: yes; protocol: GO" in out
    assert "toy" not in out
    with refused(ConfigError, "--task=generated-9", "generated-0-0"):
        ask("--task", "generated-9", *asked_server.overrides)
    with refused(ConfigError, "--context", "--task"):
        ask("--task", task.id, "--context", "x.txt", *asked_server.overrides)


def test_that_no_role_searched_is_a_warning_with_the_setting(asked_server, abstract, capsys):
    for structured, expected in (("always", "set models.junior.structured=final"), ("auto", "--tool-call-parser")):
        asked_server.searches = False
        ask(QUESTION, "--context", abstract, f"models.junior.structured={structured}", *asked_server.overrides)
        (block,) = [block for block in capsys.readouterr().out.split("\n\n") if "no role searched" in block]
        assert expected in block


@pytest.mark.whole
def test_a_trained_run_answers_with_its_weights_and_its_policy(tmp_path, capsys):
    from agents.policies.bandit import BanditPolicy, Settings
    from chimera.run.policies import WENT_LIVE, Policy

    config = load_config(None, [f"runs_dir={tmp_path}", "data.size=60"])
    with Run.create("trained", config) as run:
        senior = Policy("weights", "senior", "senior@ppo", "models/senior/ppo")
        shutil.copytree(NANO, run.path / senior.folder)
        supervisor = Policy("choice", "Supervisor", "Supervisor@bandit", "models/Supervisor/bandit")
        BanditPolicy(Settings.of(config.pipeline["bandit"], 0)).save(run.path / supervisor.folder)
        seal(run)
        for policy in (senior, supervisor):
            run.ledger(WENT_LIVE, phase="ppo", policy=policy.dump())
    task = load(config.data).validation[0].id
    main(["--task", task, "--run", "trained", f"runs_dir={tmp_path}"])
    output = " ".join(capsys.readouterr().out.split())
    assert "senior@ppo, Supervisor@bandit (run trained)" in output
    assert "how often it is right: python -m chimera.eval --run trained" in output
    assert re.search(r"The bandit \(Supervisor@bandit\) selects the hypothesis of the \w+: (yes|no|maybe)", output)
    policies = {"base": [], "end": [senior.dump(), supervisor.dump()]}
    stages = [{"name": name, "kind": "sequence", "policies": live} for name, live in policies.items()]
    right = {"alignment": {"mean": 0.5, "low": None, "high": None, "n": 1}}
    report = {"plan": {"stages": stages, "data": "made up"}, "stages": {"base": {}, "end": right}}
    (run.path / "report").mkdir()
    (run.path / "report" / "report.json").write_text(json.dumps(report))
    main(["--task", task, "--run", "trained", f"runs_dir={tmp_path}"])
    assert "50.0 % right of 1 tasks, made up" in " ".join(capsys.readouterr().out.split())
    arrays = tmp_path / "trained" / supervisor.folder / "arrays.safetensors"
    arrays.write_bytes(arrays.read_bytes()[:-1] + b"?")
    with refused(RunError, "bandit/arrays.safetensors", "restore it from a copy"):
        main(["--task", task, "--run", "trained", f"runs_dir={tmp_path}"])
    with refused(RunError, "'trained'"):
        main(["--task", task, "--run", "traned", f"runs_dir={tmp_path}"])
    with pytest.raises(ConfigError, match="brings its own settings"):
        main(["--task", task, "--run", "trained", "--config", "configs/local.yaml"])


def test_a_server_that_is_not_there_is_named(abstract):
    with refused(RoleError, "'junior'", "big-model at http://127.0.0.1:9/v1", "is the server running"):
        ask(QUESTION, "--context", abstract, *endpoints("http://127.0.0.1:9/v1"), "society.node_retries=0")


def test_a_role_that_fails_is_named_below_what_was_done_before(asked_server, abstract, capsys):
    asked_server.broken_role = "Supervisor"
    with refused(RoleError, "Supervisor: its answer could not be read, even after one repair"):
        ask(QUESTION, "--context", abstract, *asked_server.overrides)
    assert "Geneticist: yes" in capsys.readouterr().out


def test_ctrl_c_ends_it_at_once_without_a_traceback(asked_server, abstract):
    asked_server.hangs = True
    command = [sys.executable, "-m", "chimera.ask", QUESTION, "--context", str(abstract), *asked_server.overrides]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        asked_server.reached.wait()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, errors) == (130, "interrupted\n")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["  "], ConfigError, "the question is empty"),
        (["q", "--context", "missing.txt"], DataError, ("--context missing.txt", "No such file")),
        (["q", "society.evidence=given"], ConfigError, "--context FILE"),
        (["q", "--context", "missing.txt", "society.max_tool_calls=0"], ConfigError, "no role may search"),
        (["q", "society.evidense=given"], ConfigError, "society.evidence"),
        (["Does caf\udce9 help?"], ConfigError, r"'Does caf\udce9'"),
        (["--task", "\ud800"], ConfigError, "write the text in UTF-8"),
    ],
)
def test_wrong_arguments_are_named_before_anything_starts(arguments, error, message):
    with refused(error, message):
        main(arguments)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b" \n ", "the file is empty"),
        (b"\xff\xfe\x00", "line 1, byte 1 is not UTF-8"),
        (b"x" * (LONGEST + 1), ("file.txt", "over 20,000 characters")),
        (b"x" * 2_000_000, ("file.txt", "over 20,000 characters")),
    ],
)
def test_a_file_that_is_no_abstract_is_a_data_error(tmp_path, content, message):
    path = tmp_path / "file.txt"
    path.write_bytes(content)
    with refused(DataError, message):
        read_abstract(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A plain abstract.\nOn two lines.", [("", "A plain abstract. On two lines.")]),
        (ABSTRACT, [("BACKGROUND", "Relapse is common."), ("RESULTS", QUOTE + " Harms did not differ.")]),
        ("AIMS: To see. METHODS AND RESULTS: It fell.", [("AIMS", "To see."), ("METHODS AND RESULTS", "It fell.")]),
        ("Intro.\nRESULTS:\nIt fell (CI: 1 to 2).", [("", "Intro."), ("RESULTS", "It fell (CI: 1 to 2).")]),
    ],
)
def test_sections(text, expected):
    assert [(section.label, section.text) for section in sections(text)] == expected


@given(
    st.lists(
        st.sampled_from(["RESULTS:", "AIM:", "a: b", "It fell.", "\n", " ", "p=0.1", "(CI:", "X):", "é"]), max_size=30
    )
)
def test_splitting_loses_no_character(parts):
    text = " ".join(parts)
    (source,) = given_sources(Brief("1", "q", sections(text))) or [{"text": ""}]
    assert "".join(source["text"].split()) == "".join(text.split())


def shown(card, **options):
    console = Console(file=io.StringIO(), highlight=False, width=70, **options)
    show(console, card)
    return console.file.getvalue()


HOSTILE_CARD = Card("He[/]ad\x1b[2J", (("wh\x07y", "[bold]not markup[/bold] \x1b]0;title\x07 \u202e {x}"),))


def test_what_models_wrote_cannot_steer_the_terminal():
    for text in (shown(HOSTILE_CARD), shown(HOSTILE_CARD, force_terminal=True, color_system=None)):
        assert "[bold]not markup[/bold]" in text
        assert "He[/]ad" in text
        assert not set(text) & {"\x1b", "\x07", "\u202e"}


def test_a_terminal_gets_panels_and_colours():
    text = shown(Card("Decision: GO", (("answer", "yes"),), "green"), force_terminal=True, color_system="truecolor")
    assert "╭" in text
    assert "\x1b[" in text
    assert "Decision: GO" in text


@given(st.integers(50, 130))
def test_a_panel_never_cuts_its_headline(length):
    headline = ("word " * 40)[:length].strip()
    text = shown(Card(headline, (("answer", "yes"),)), force_terminal=True, color_system=None)
    assert " ".join(re.findall(r"\w+", text.split("answer")[0])) == headline
    assert max(map(len, text.splitlines())) <= 70


def test_cards_of_revisions_reviews_and_missing_scores():
    review = {"issues": ["unsafe", "unclear"], "severity": "CRITICAL", "verdict": "REVISE"}
    (card,) = cards({"safety_review": review, "sender": "SafetyOfficer"}, [])
    assert (card.headline, card.colour) == ("Safety review: REVISE, severity CRITICAL", "red3")
    assert card.lines == (("issue", "unsafe"), ("issue", "unclear"))
    hypothesis = {"evidence": ["It fell by half."], "comparison": "c", "claim": "d", "answer": "no"}
    (card,) = cards({"refined_hypothesis": hypothesis, "critical_revisions": 1}, [("7", "Yes. It fell by half. So.")])
    assert card.headline == "Refined hypothesis: no (revised after a CRITICAL review)"
    assert card.lines[0] == ("evidence", "“It fell by half.” [7]")
    (card,) = cards({"final_evaluation": {"scores": {"novelty": None, "impact": 0.5}, "error": "judge is away"}}, [])
    assert card.lines == (("novelty", "not scored"), ("impact", "0.50"), ("error", "judge is away"))


@pytest.mark.parametrize(
    ("policy", "preferred", "headline", "why"),
    [
        ("supervisor", "Geneticist", "The supervisor's model selects", "it supports yes"),
        (
            "Supervisor@bandit",
            None,
            "The bandit (Supervisor@bandit) selects",
            "chosen with a probability of 75%, before the supervisor's model was asked",
        ),
        (
            "supervisor",
            "Neurologist",
            "A random draw (exploration) selects",
            "chosen with a probability of 75%, though the supervisor's model preferred the Neurologist",
        ),
    ],
)
def test_the_model_s_sentence_is_the_reason_only_of_its_own_choice(policy, preferred, headline, why):
    propensities = {"Geneticist": 0.75, "Neurologist": 0.25}
    selection = {"author": "Geneticist", "preferred": preferred, "policy": policy, "propensities": propensities}
    update = {"selection": selection, "selected_hypothesis": {"answer": "no"}}
    (card,) = cards({**update, "supervisor_justification": "it supports yes"}, [])
    assert card.headline == f"{headline} the hypothesis of the Geneticist: no"
    assert card.lines == (("why", why),)
