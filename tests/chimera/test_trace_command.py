"""`python -m chimera.trace`: finds a rollout by what a user types, lists them, shows one, writes a page."""

import re
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
from message_kit import refused
from record_kit import answered
from view_kit import ANSWER, learned

from chimera import ask, trace
from chimera.config.sections.bundled import NANO
from chimera.config.tree import Config
from chimera.core.errors import ChimeraError, ConfigError, RunError
from chimera.run.directory import Run
from evaluation.traces.rollout_index import find, recorded_rollouts
from evaluation.traces.token_records import read_tokens, tokens_file, write_tokens
from evaluation.traces.token_texts import load_tokenizer


def rollout(number, task, phase, repeat=0, **changes):
    outputs = {"research_goal": f"Does {task} work?"}
    fields = {"phase": phase, "repeat": repeat, "reward": 1.5, "outputs": outputs} | changes
    return answered(f"ro-{number:012x}", task, **fields)


LEARNED = rollout(0xABC1, "t-1", "ppo", trace="traces/ppo/a.jsonl.gz")


def ids_of(text):
    return load_tokenizer("nano").encode(text, add_special_tokens=False).ids


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with one run: five rollouts, of which PPO learned from one call."""
    folder = tmp_path_factory.mktemp("runs")
    with Run.create("mine", Config(runs_dir=folder)) as run:
        learned(run, LEARNED)
        for one in (
            LEARNED, rollout(0xABC2, "t-1", "ppo", 1), rollout(0xABD3, "t-2", "ppo"),
            rollout(0x1, "t-1", "gather", status="failed", error="out of\x1b[2Jtime", answer=None, decision=None,
                    reward=None),
            rollout(0x2, "t-9", "gather", decision="NO-GO"),
        ):  # fmt: skip
            run.append_rollout(one.dump(), phase=one.phase)
    return folder


def shown(capsys, *argv):
    trace.main(list(argv))
    return capsys.readouterr().out


def test_the_list_has_one_line_a_rollout_and_a_hint_that_works(runs, capsys):
    lines = shown(capsys, "mine", f"runs_dir={runs}").splitlines()
    assert lines[0].split() == ["phase", "rollout", "task", "answer", "label", "decision", "reward", "status"]
    assert [line.split()[:2] for line in lines[1:6]] == [
        ["gather", "ro-000000000001"], ["gather", "ro-000000000002"],
        ["ppo", "ro-00000000abc1"], ["ppo", "ro-00000000abc2"], ["ppo", "ro-00000000abd3"],
    ]  # fmt: skip
    assert lines[1].split()[2:] == ["t-1", "none", "yes", "none", "none", "failed:", "out", "of", "[2Jtime"]
    assert lines[4].split()[2:] == ["t-1", "(1)", "yes", "yes", "GO", "1.500", "succeeded"]
    assert "\x1b" not in "".join(lines)
    hint = lines[-1].removesuffix(" [--html FILE]").split("chimera.trace ")[1].split()
    assert shown(capsys, *hint).startswith("Run mine, rollout ro-00000000abd3\nDoes t-2 work?")


def test_the_wrong_answers_are_listed_with_who_lost_each(tmp_path, capsys):
    outputs = {
        "initial_hypotheses": [{"answer": "no"}, {"answer": "yes"}], "selected_hypothesis": {"answer": "no"},
        "refined_hypothesis": {"answer": "no"},
    }  # fmt: skip
    with Run.create("mine", Config(runs_dir=tmp_path)) as run:
        for one in (
            rollout(1, "t-1", "gather"), replace(rollout(2, "t-2", "gather", answer="no"), outputs=outputs),
            rollout(3, "t-3", "gather", answer="no"),
            rollout(4, "t-4", "ppo", status="failed", error="late", answer=None, decision=None),
        ):  # fmt: skip
            run.append_rollout(one.dump(), phase=one.phase)
    lines = shown(capsys, "mine", "--wrong", f"runs_dir={tmp_path}").splitlines()
    assert lines[0].split()[-4:] == ["reward", "lost", "by", "status"]
    assert [(line.split()[1][-1], line.split("1.500")[1].strip().split("  ")[0]) for line in lines[1:4]] == [
        ("2", "supervisor"), ("3", "not recorded"), ("4", "failed"),
    ]  # fmt: skip
    assert "3 of 4 answers are wrong" in lines
    assert "  1 lost by supervisor: a junior was right, another was selected" in lines
    of_phase = shown(capsys, "mine", "--wrong", "--phase", "ppo", f"runs_dir={tmp_path}")
    assert "1 of 1 answers are wrong" in of_phase
    with refused(ConfigError, "--wrong", "leave 'ro-1' out"):
        trace.main(["mine", "ro-1", "--wrong", f"runs_dir={tmp_path}"])


@pytest.mark.parametrize("place", ["--runs-dir", "runs_dir="])
@pytest.mark.parametrize("run", ["mine", "latest"])
def test_runs_are_found_by_name_and_the_latest_without(runs, capsys, place, run):
    where = [place, str(runs)] if place.startswith("--") else [f"{place}{runs}"]
    assert "rollout ro-00000000abc1\nDoes t-1 work?" in shown(capsys, run, "ro-00000000abc1", *where)


@pytest.mark.parametrize("name", ["ro-00000000abd3", "ro-00000000abd", "00000000abd3", "00000000abd"])
def test_a_rollout_is_found_by_its_id_or_a_unique_beginning(runs, name):
    records = recorded_rollouts(Run.open("mine", runs))
    assert [record.rollout_id for record in find(records, name)] == ["ro-00000000abd3"]


def test_a_task_is_found_in_all_phases_or_in_one(runs, capsys):
    lines = shown(capsys, "mine", "t-1", "--runs-dir", str(runs)).splitlines()
    assert [line.split()[1] for line in lines[1:4]] == ["ro-000000000001", "ro-00000000abc1", "ro-00000000abc2"]
    text = shown(capsys, "mine", "t-1", "--phase", "gather", "--runs-dir", str(runs))
    assert text.startswith("Run mine, rollout ro-000000000001\nDoes t-1 work?")
    assert "left no trace" in text


@pytest.mark.parametrize(
    ("argv", "error", "complaint"),
    [
        (["mine", "ro-00000000abd9"], RunError, "'ro-00000000abd3'"),
        (["mine", "t2"], RunError, ("'t2'", "'t-2'")),
        (["mine", "nosuch"], RunError, ("'nosuch'", "ro-000000000001")),
        (["mine", "ro-fedcba987654"], RunError, ("'ro-fedcba987654'", "ro-000000000001")),
        (["mine", "ro-00000000abc"], RunError, ("2 rollouts", "ro-00000000abc1, ro-00000000abc2")),
        (["mine", "--phase", "pppo"], RunError, ("'pppo'", "'ppo'")),
        (["mime"], RunError, ("'mime'", "'mine'")),
        (["mine", "--html", "x.html"], ConfigError, ("--html", "one rollout")),
        (["mine", "t-2", "seed=3"], ConfigError, ("seed", "leave it out")),
    ],
)
def test_what_is_not_there_is_answered_with_the_nearest(runs, argv, error, complaint):
    with refused(error, complaint):
        trace.main([*argv, "--runs-dir", str(runs)])


def test_only_what_has_to_be_given_is_called_required(capsys):
    with pytest.raises(SystemExit):
        trace.main([])
    assert capsys.readouterr().err.endswith("the following arguments are required: run\n")
    with pytest.raises(ConfigError, match="the question is empty"):
        ask.main([])


def test_a_run_without_rollouts_says_what_to_do(tmp_path):
    Run.create("new", Config(runs_dir=tmp_path)).close()
    with refused(ChimeraError, "'new'", "python -m chimera.train --resume --name new"):
        trace.main(["new", "--runs-dir", str(tmp_path)])


def test_tokens_and_messages_are_shown_on_demand(runs, capsys):
    where = ["mine", "ro-00000000abc1", "--runs-dir", str(runs)]
    plain = shown(capsys, *where)
    assert "claim: d" in plain
    assert "a question" not in plain
    assert "advantage" not in plain
    assert "[user] a question" in shown(capsys, *where, "--messages")
    tokens = shown(capsys, *where, "--tokens")
    assert "'evidence' 1 +0.250 -1.000" in re.sub(" +", " ", tokens)
    assert tokens.count("  +0.250  ") == len(ids_of(ANSWER))


def test_the_gradient_of_a_call_is_computed_with_the_weights_that_are_kept(runs, tmp_path, capsys):
    shutil.copytree(runs, tmp_path / "runs")
    run = tmp_path / "runs" / "mine"
    where = ["mine", "ro-00000000abc1", "--runs-dir", str(tmp_path / "runs"), "--gradient"]
    (record,) = read_tokens(tokens_file(run, "ppo", 1))
    write_tokens([replace(record, policy="senior@ppo-1")], tokens_file(run, "ppo", 1))
    assert "the run has kept neither the weights before the update nor those after it" in shown(capsys, *where)
    shutil.copytree(NANO, run / "models" / "senior" / "ppo-1")
    text = shown(capsys, *where)
    found = re.search(
        r"one backward pass: norm ([\d.e-]+), ([\d.]+)% of the update's 4 before the update, by its", text
    )
    assert float(found[1]) / 4 == pytest.approx(float(found[2]) / 100, abs=1e-2)
    assert "the weights after the update are not kept" in text
    page = tmp_path / "page.html"
    shown(capsys, *where, "--html", str(page))
    assert "one backward pass: norm" in page.read_text()


def test_a_page_is_written_with_the_models_own_tokens(runs, tmp_path, capsys):
    file = tmp_path / "pages" / "one.html"
    assert f"wrote {file}" in shown(capsys, "mine", "ro-00000000abc1", "--html", str(file), "--runs-dir", str(runs))
    text = file.read_text(encoding="utf-8")
    assert text.count('title="advantage +0.2500') == len(ids_of(ANSWER))
    assert ">evidence</span>" in text
    with refused(RunError, "--html=", tmp_path, "name another file"):
        trace.main(["mine", "ro-00000000abc1", "--html", str(tmp_path), "--runs-dir", str(runs)])


def test_without_the_tokenizer_tokens_are_shown_by_their_ids(runs, tmp_path, capsys):
    folder = shutil.copytree(runs, tmp_path / "moved")
    config = folder / "mine" / "config.yaml"
    config.write_text(config.read_text().replace("path: nano", f"path: {tmp_path / 'gone'}"))
    file = tmp_path / "one.html"
    shown(capsys, "mine", "ro-00000000abc1", "--html", str(file), "--runs-dir", str(folder))
    text = file.read_text(encoding="utf-8")
    assert "Tokens are shown by their ids" in text
    assert f">[{ids_of(ANSWER)[0]}]</span>" in text
    listed = shown(capsys, "mine", "ro-00000000abc1", "--tokens", "--runs-dir", str(folder))
    assert f"[{ids_of(ANSWER)[0]}] 1 +0.250 -1.000" in re.sub(" +", " ", listed)


def test_it_runs_where_training_is_not_installed(runs):
    code = (
        "import sys\n"
        "for name in ('agentlightning', 'torch', 'verl', 'trl', 'wandb', 'transformers', 'langgraph'):\n"
        "    sys.modules[name] = None\n"
        "from chimera.__main__ import main\n"
        "main(['trace', 'mine', 'ro-00000000abc1', '--tokens', '--runs-dir', sys.argv[1]])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(runs)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "HypothesisRefiner answer: yes (senior: " in done.stdout
