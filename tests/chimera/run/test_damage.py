"""Damaged, moved and unwritable files: one sentence with the file and the remedy, and other runs are not disturbed."""

import argparse
import gzip
import json
import os
import resource
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from message_kit import refused
from record_kit import answered

from chimera import ask, train
from chimera import eval as evaluation
from chimera.config.loader import effective
from chimera.core.errors import ChimeraError, RunError
from chimera.core.types import ResearchTask, Section
from chimera.data.pubmedqa import load_file
from chimera.data.splits import related
from chimera.data.tasks import load
from chimera.run.directory import Run, list_runs
from chimera.run.jsonl import append_line, read_lines
from chimera.run.policies import Policy
from chimera.run.seals import checked, seal
from evaluation.records.rollouts import RolloutRecord
from evaluation.traces import spans
from evaluation.traces.token_records import read_tokens
from training.configuration import load_config
from training.model.weights import whole_folder, write_tensors

DEEP = "[" * 100_000


@pytest.fixture
def config(tmp_path):
    return load_config(None, [f"runs_dir={tmp_path / 'runs'}"])


@pytest.fixture
def run(config):
    with Run.create("mine", config) as run:
        yield run


DAMAGE = {"empty": "", "half": '{"created": "2026', "no object": "[]", "no time": "{}", "deep": DEEP, "bytes": "\x00"}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_broken_environment_is_named_and_other_runs_are_found(config, damage):
    for name in ("first", "broken", "last"):
        Run.create(name, config).close()
    file = config.runs_dir / "broken" / "environment.json"
    file.write_text(DAMAGE[damage])
    assert {run.name for run in list_runs(config.runs_dir)} == {"first", "broken", "last"}
    assert Run.latest(config.runs_dir).name == "last"
    with refused(RunError, "'firs'", "'first'"):
        Run.open("firs", config.runs_dir)
    before = (config.runs_dir / "broken" / "config.yaml").read_bytes()
    with refused(RunError, "broken/environment.json", "restore it from a copy"):
        Run.create("broken", config, resume=True)
    assert (config.runs_dir / "broken" / "config.yaml").read_bytes() == before
    Run.create("first", config, resume=True).close()


@pytest.mark.parametrize("damage", ["", "\n", "# nothing\n", "seed: 0\n", "half", "[]", "gate: {tasks", "[" * 1000])
def test_an_emptied_configuration_is_no_configuration_of_defaults(run, config, damage):
    file = run.path / "config.yaml"
    whole = file.read_text()
    file.write_text(whole[: whole.index("evaluation:")] if damage == "half" else damage)
    damaged = file.read_bytes()
    run.close()
    for main, arguments in (
        (train.main, ["--resume", "--name", "mine"]),
        (evaluation.main, ["--run", "mine"]),
        (ask.main, ["Does it?", "--run", "mine"]),
    ):
        with refused(ChimeraError, run.path / "config.yaml"):
            main([*arguments, f"runs_dir={config.runs_dir}"])
    assert file.read_bytes() == damaged
    assert [event["event"] for event in run.events()] == ["created"]


LEDGER_DAMAGE = {
    "no JSON": lambda line: b"{" + line,
    "no event": lambda line: b"{}\n",
    "deep": lambda line: DEEP.encode() + b"\n",
    "changed": lambda line: line.replace(b"gather", b"better"),
    "bytes": lambda line: b"\xff\x00\n",
    "gone": lambda line: b"",
}


@pytest.mark.parametrize("damage", LEDGER_DAMAGE)
def test_a_broken_line_of_the_ledger_is_named(run, config, damage):
    for phase in ("gather", "sft"):
        run.ledger("phase_started", phase=phase, policy_versions={})
    run.close()
    file = run.path / "ledger.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0] + LEDGER_DAMAGE[damage](lines[1]) + lines[2])
    with refused(RunError, "ledger.jsonl:2", "restore the ledger from a copy"):
        list(run.events())
    with refused(RunError, "ledger.jsonl:2", "restore the ledger from a copy"):
        Run.create("mine", config, resume=True)
    Run.create("other", config).close()
    assert Run.latest(config.runs_dir).name == "other"


def test_a_ledger_without_hashes_is_refused(run):
    (run.path / "ledger.jsonl").write_text('{"event":"created"}\n{"event":"planned","phases":["sft"]}\n')
    with refused(RunError, "ledger.jsonl:1", "changed", "restore"):
        list(run.events())


def rollout(**changes):
    return answered("ro-1", "t").dump() | changes


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"reward": "much"}, "reward"), ({"other": 1}, "other"), ({"status": "fine"}, "status"), ({"parts": 3}, "parts")],
)
def test_a_line_that_is_no_rollout_is_named(changes, words):
    assert RolloutRecord.load(rollout()).reward == 1.0
    with refused(RunError, "rollouts/gather.jsonl", words, "restore the file"):
        RolloutRecord.load(rollout(**changes))
    with refused(RunError, "rollouts/gather.jsonl", "seed: Field required", "restore the file"):
        RolloutRecord.load({key: value for key, value in rollout().items() if key != "seed"})


@pytest.mark.parametrize(
    "policy", [None, "x", {}, {"part": "weights", "target": "senior", "version": "a", "folder": 1}, []]
)
def test_an_event_without_a_policy_is_an_error(policy):
    with pytest.raises(RunError, match="names no learned policy"):
        Policy.load(policy)
    for folder in ("/etc", "models/../../other"):
        with pytest.raises(RunError, match="names no learned policy"):
            Policy.load({"part": "weights", "target": "senior", "version": "a", "folder": folder})


def test_deep_json_is_one_sentence_in_whatever_file(run, tmp_path):
    from agents.policies.bandit import load_policy
    from evaluation.report.files import read_report
    from training.learning.base import PhasePlan
    from training.ppo.checkpoints import Checkpoints

    plain, zipped = tmp_path / "deep.json", tmp_path / "deep.jsonl.gz"
    plain.write_text(DEEP)
    zipped.write_bytes(gzip.compress(DEEP.encode()))
    (run.path / "checkpoints/ppo/1").mkdir(parents=True)
    shutil.copy(plain, run.path / "checkpoints/ppo/1/phase.json")
    (tmp_path / "bandit").mkdir()
    shutil.copy(plain, tmp_path / "bandit" / "policy.json")
    plain.with_suffix(".jsonl").write_text(DEEP + "\n")
    for read in (
        lambda: load_file(plain),
        lambda: list(read_lines(plain.with_suffix(".jsonl"))),
        lambda: spans.read(zipped),
        lambda: read_tokens(zipped),
        lambda: read_report(plain),
        lambda: Checkpoints(run, PhasePlan("ppo", "ppo"), 1).latest(),
        lambda: load_policy(tmp_path / "bandit"),
    ):
        with pytest.raises(ChimeraError, match=r"^[^\n]+$"):
            read()


@pytest.fixture
def learned(run):
    """A folder of the run, sealed."""
    folder = run.path / "models/junior/sft"
    folder.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_text(name)
    return folder


HOW = {
    "changed": lambda folder: (folder / "config.json").write_text("Config.json"),
    "longer": lambda folder: (folder / "config.json").write_text("config.json "),
    "exchanged": lambda folder: (folder / "config.json").replace(folder / "model.safetensors"),
    "gone": lambda folder: (folder / "model.safetensors").unlink(),
    "all gone": shutil.rmtree,
    "added": lambda folder: (folder / "adapter_config.json").write_text("{}"),
}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("recorded", ["sealed", "artifact", "both"])
def test_what_is_not_as_it_was_written_is_not_used(run, learned, how, recorded):
    name = "models/junior/sft"
    assert checked(run, name) == learned  # The ledger knows nothing of it.
    if recorded != "sealed":
        run.ledger("went_live", artifacts=[name])
    if recorded != "artifact":
        seal(run, name)
    assert checked(run, name) == learned
    (learned / ".hidden").write_text("left by a file system")
    assert checked(run, name) == learned
    HOW[how](learned)
    with refused(RunError, "models/junior/sft", "restore it from a copy"):
        checked(run, name)


def test_what_was_written_again_and_recorded_is_used(run, learned):
    seal(run, "models/junior/sft")
    (learned / "config.json").write_text("other")
    run.ledger("phase_learned", artifacts=["models/junior/sft"])
    assert checked(run, "models/junior/sft") == learned
    (learned / "config.json").write_text("third")
    seal(run, "models/junior/sft")
    assert checked(run, "models/junior/sft") == learned
    assert seal(run, "models/junior/sft") == []
    assert [event["event"] for event in run.events()] == ["created", "sealed", "phase_learned", "sealed"]


def test_a_partial_seal_is_about_its_folder_only(run, learned):
    seal(run, "models/junior/sft")
    (sealed,) = [event["files"] for event in run.events() if event["event"] == "sealed"]
    assert list(sealed) == ["models/junior/sft/config.json", "models/junior/sft/model.safetensors"]
    shutil.rmtree(learned)
    (run.path / "models/junior/sft-2").mkdir()
    (run.path / "models/junior/sft-2/a").write_text("1")
    seal(run, "models/junior/sft-2")
    assert list(list(run.events())[-1]["files"]) == ["models/junior/sft-2/a"]


def test_a_process_hashes_nothing_twice(run, learned, monkeypatch):
    seal(run, "models/junior/sft")
    read = []
    opened = Path.open

    def noted(self, *rest, **named):
        read.append(self.name)
        return opened(self, *rest, **named)

    monkeypatch.setattr(Path, "open", noted)
    for _ in range(3):
        checked(run, "models/junior/sft")
    assert "model.safetensors" not in read


@contextmanager
def full_disk():
    """No file may grow beyond 4 kB, which fails as a full disk does; Python ignores the signal for it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_ends_in_one_sentence_and_loses_no_line(run):
    with full_disk():
        for number in range(7):
            run.append_rollout({"n": number, "text": "x" * 500}, phase="gather")
        with refused(RunError, "cannot append to", "gather.jsonl"):
            run.append_rollout({"n": 7, "text": "x" * 500}, phase="gather")
    assert [line["n"] for line in run.rollouts("gather")] == list(range(7))
    run.append_rollout({"n": 7}, phase="gather")
    assert [line["n"] for line in run.rollouts("gather")] == list(range(8))


def test_a_full_device_is_named(tmp_path):
    (tmp_path / "full.jsonl").symlink_to("/dev/full")
    with refused(RunError, "full.jsonl", "No space left on device"):
        append_line(tmp_path / "full.jsonl", {"n": 1})


def test_what_a_kill_left_while_a_folder_was_replaced_is_in_nobodys_way(tmp_path):
    for name in ("models/new", "models/.new.former", "models/.new.draft"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "left").write_text("by a kill")
    with whole_folder(tmp_path / "models/new") as draft:
        (draft / "weights").write_text("new")
    assert [file.name for file in tmp_path.rglob("*")] == ["models", "new", "weights"]


def test_weights_that_do_not_fit_leave_the_old_ones(tmp_path):
    import torch

    (tmp_path / "old").write_text("old")
    with full_disk(), refused(RunError, "model.safetensors", "make room", "--resume"), whole_folder(tmp_path) as draft:
        write_tensors({"a": torch.zeros(10_000)}, draft / "model.safetensors")
    assert [file.name for file in tmp_path.rglob("*")] == ["old"]


def test_a_run_that_cannot_be_created_whole_says_so_and_can_be_tried_again(config):
    with full_disk(), refused(RunError, "runs/mine", "File too large", "make room"):
        Run.create("mine", config)
    with Run.create("mine", config, resume=True) as run:
        assert effective(run.config) == effective(config)


def test_a_run_that_was_moved_is_continued_where_it_is(run, tmp_path):
    """The configuration names the folder that it was made in, which may be another machine's."""
    run.ledger("planned", phases=["gather"])
    run.close()
    moved = tmp_path / "elsewhere"
    shutil.move(tmp_path / "runs", moved)
    for overrides in ([f"runs_dir={moved}"], []):
        arguments = argparse.Namespace(name="mine", phases=None, config=None, trust=[], overrides=overrides)
        name, phases, config = train._continued(arguments, load_config(None, [f"runs_dir={moved}"]))
        assert (name, phases, config.runs_dir) == ("mine", "gather", moved)
    with Run.create("mine", config, resume=True) as again:
        assert again.config.runs_dir == moved
        assert list(again.events())[-1]["event"] == "resumed"
    assert not (tmp_path / "runs").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="takes another user's place")
def test_somebody_else_can_read_a_run_and_is_told_that_it_cannot_be_written():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        Run.create("mine", load_config(None, [f"runs_dir={folder}"])).close()
        os.seteuid(65534)
        try:
            found = Run.latest(folder)
            config, events = found.config, list(found.events())
            with refused(RunError, "Permission denied", "copy it elsewhere"):
                Run.create("mine", config, resume=True)
            with refused(RunError, "runs_dir=", "Permission denied", "set runs_dir"):
                Run.create("other", config)
        finally:
            os.seteuid(0)
    assert [event["event"] for event in events] == ["created"]


def test_many_records_with_one_abstract_take_no_quadratic_time():
    """With lists that were copied at each step, 30,000 took minutes."""
    same = (Section("RESULTS", "It fell."),)
    tasks = [ResearchTask(str(number), f"Does {number}?", same, "yes", "pubmedqa") for number in range(30_000)]
    assert related(tasks) == [list(range(30_000))]


def test_a_large_data_file_is_loaded_and_a_large_wrong_one_is_refused(tmp_path):
    """5 MB here; 200 MB with 190,000 records took 10 s of processor time and 0.65 GB."""
    text = "The rate was lower in the treated group (12 % against 31 %, p = 0.01) than in controls. " * 11
    record = {
        "QUESTION": "", "CONTEXTS": [text], "LABELS": ["RESULTS"], "final_decision": "yes", "LONG_ANSWER": "It is."
    }  # fmt: skip
    file = tmp_path / "large.json"
    records = {str(n): {**record, "QUESTION": f"Does {n}?", "CONTEXTS": [f"{n} {text}"]} for n in range(5_000)}
    file.write_text(json.dumps(records))
    assert file.stat().st_size > 5_000_000
    dataset = load(load_config(None, [f"data.path={file}"]).data)
    assert len(dataset.tasks) == 5_000
    file.write_bytes(b"\x00" * 20_000_000)
    with refused(ChimeraError, "large.json", "line 1"):
        load_file(file)
    with refused(ChimeraError, "/dev/zero", "device", "path of a file"):
        load_file(Path("/dev/zero"))
