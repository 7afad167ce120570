"""Runs: what was appended is still there after a kill, one process owns a run, and no secret is in it."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from message_kit import refused

from chimera.config.loader import effective
from chimera.config.tree import Config
from chimera.core.errors import RunError
from chimera.core.secrets import register_secret
from chimera.run.chain import read_chain
from chimera.run.directory import Run, list_runs
from chimera.run.hashes import hash_artifact
from chimera.run.jsonl import append_line, read_lines
from training.configuration import load_config

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
RECORDS = st.lists(st.dictionaries(st.text(), JSON, max_size=3), min_size=1, max_size=6)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load_config(None, [f"runs_dir={tmp_path / 'runs'}"])


@settings(max_examples=60, deadline=None)
@given(RECORDS, st.data())
def test_a_file_cut_anywhere_reads_as_its_whole_lines_and_heals_at_the_next_append(
    tmp_path_factory: pytest.TempPathFactory, records: list[dict[str, Any]], data: st.DataObject
):
    file = tmp_path_factory.mktemp("lines") / "a.jsonl"
    for record in records:
        append_line(file, record)
    whole = file.read_bytes()
    assert list(read_lines(file)) == records
    size = data.draw(st.integers(0, len(whole)))
    os.truncate(file, size)
    ends = [position + 1 for position, byte in enumerate(whole) if byte == ord("\n")]
    kept = sum(end <= size + 1 for end in ends)  # a line that lacks only its newline is whole
    assert list(read_lines(file)) == records[:kept]
    append_line(file, {"next": 1}, sync=True)
    assert list(read_lines(file)) == [*records[:kept], {"next": 1}]


def test_half_a_surrogate_pair_is_kept(tmp_path: Path):
    append_line(tmp_path / "a.jsonl", {"text": "a\ud83dé"})
    assert list(read_lines(tmp_path / "a.jsonl")) == [{"text": "a\ud83dé"}]


@pytest.mark.parametrize("broken", [b"{\n", b"[1]\n", b"\n", b'{"a": 1} {"b": 2}\n', b"\xff\n"])
def test_a_broken_line_that_is_not_the_torn_last_one_is_an_error_with_file_and_line(tmp_path: Path, broken: bytes):
    file = tmp_path / "a.jsonl"
    for text in (b'{"a":1}\n' + broken, b'{"a":1}\n' + broken + b'{"b":2}\n'):
        file.write_bytes(text)
        with refused(RunError, "a.jsonl:2", "repair or remove this line"):
            list(read_lines(file))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, object()])
def test_what_json_cannot_hold_is_refused_and_leaves_no_trace(tmp_path: Path, value: object):
    with refused(RunError, "a.jsonl", "not plain JSON"):
        append_line(tmp_path / "a.jsonl", {"x": value})
    assert list(read_lines(tmp_path / "a.jsonl")) == []


def _append_in_threads(file: Path, writer: int, chained: bool) -> None:
    def append(thread: int) -> None:
        for number in range(20):
            record = {"writer": writer, "thread": thread, "number": number, "text": "x" * 5000}
            append_line(file, record, chained=chained)

    threads = [threading.Thread(target=append, args=(thread,)) for thread in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("chained", [False, True])
def test_processes_and_threads_append_at_once_without_mixing_lines(tmp_path: Path, chained: bool):
    file, context = tmp_path / "a.jsonl", multiprocessing.get_context("fork")
    writers = [context.Process(target=_append_in_threads, args=(file, writer, chained)) for writer in range(4)]
    for process in writers:
        process.start()
    for process in writers:
        process.join()
    seen = [(line["writer"], line["thread"], line["number"]) for line in read_lines(file)]
    every = [(writer, thread, number) for writer in range(4) for thread in range(2) for number in range(20)]
    assert sorted(seen, key=lambda line: line[:2]) == every, "what one thread wrote is in its order"
    assert not chained or len(read_chain(file)) == len(every)


@pytest.mark.parametrize("chained", [False, True])
def test_what_a_killed_writer_reported_is_on_the_file(tmp_path: Path, chained: bool):
    script = (
        "import sys; from pathlib import Path; from chimera.run.jsonl import append_line\n"
        "for number in range(10**6):\n"
        f"    append_line(Path(sys.argv[1]), {{'number': number, 'text': 'x' * 3000}}, chained={chained})\n"
        "    print(number, flush=True)"
    )
    file = tmp_path / "a.jsonl"
    process = subprocess.Popen([sys.executable, "-c", script, str(file)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    reported = [int(process.stdout.readline()) for _ in range(50)]
    process.send_signal(signal.SIGKILL)
    reported += [int(line) for line in process.communicate()[0].split()]
    numbers = [line["number"] for line in read_lines(file)]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= reported[-1] + 1
    if chained:
        whole = read_chain(file)
        with file.open("ab") as opened:
            opened.write(b'{"n":99,"previous":"ab')
        append_line(file, {"n": -1}, chained=True)
        assert read_chain(file)[:-1] == whole


def test_a_run_keeps_what_a_later_command_needs(config: Config):
    with Run.create("first", config) as run:
        run.append_rollout({"rollout_id": "r1", "reward": None}, phase="gather")
        run.append_metrics({"reward": 0.5})
        run.ledger("phase_finished", phase="gather", artifacts=["rollouts/gather.jsonl"], rollouts=1)
    again = Run.open("first", config.runs_dir)
    assert effective(again.config) == effective(config)
    assert list(again.rollouts("gather")) == [{"rollout_id": "r1", "reward": None}]
    assert list(again.rollouts("other")) == []
    assert [line["reward"] for line in again.metrics()] == [0.5]
    created, finished = again.events()
    assert created["event"] == "created"
    assert (finished["phase"], finished["rollouts"]) == ("gather", 1)
    assert finished["artifacts"] == {"rollouts/gather.jsonl": hash_artifact(again.rollouts_file("gather"))}
    assert created["time"] < finished["time"]


@pytest.mark.parametrize(
    "without", [["society.max_tool_calls=0", "society.evidence=given"], ["gate.tasks=0", "wandb.mode=disabled"]]
)
def test_a_run_is_read_whatever_its_settings_leave_without_effect(tmp_path: Path, without: list[str]):
    config = load_config(None, [f"runs_dir={tmp_path}", *without])
    with Run.create("mine", config):
        pass
    assert effective(Run.open("mine", tmp_path).config) == effective(config)


def test_the_environment_tells_versions_but_no_environment_variable(config: Config, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CHIMERA_TEST_VARIABLE", "value-of-a-variable")
    with Run.create("a", config) as run:
        environment = json.loads((run.path / "environment.json").read_text())
    assert environment["python"] == sys.version.split()[0]
    assert environment["packages"]["pydantic"]
    assert environment["cpus"] == os.cpu_count()
    assert "value-of-a-variable" not in json.dumps(environment)
    assert "CHIMERA_TEST_VARIABLE" not in json.dumps(environment)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "/a", "../a", ".hidden", "-a", "a b", "a\n", "a..b", "é", "x" * 65]
)
def test_unsafe_names_are_refused(config: Config, name: str):
    with pytest.raises(RunError, match="cannot name a run"):
        Run.create(name, config)
    with Run.create("a", config) as run, pytest.raises(RunError, match="cannot name a run"):
        run.rollouts_file(name)
    assert [run.name for run in list_runs(config.runs_dir)] == ["a"]


@pytest.mark.parametrize("name", ["a", None])
def test_a_folder_that_cannot_be_made_is_named_with_the_remedy(config: Config, name: str | None):
    config.runs_dir.parent.mkdir(parents=True, exist_ok=True)
    config.runs_dir.write_text("a file stands where the folder should be")
    with refused(RunError, f"runs_dir={config.runs_dir}", "set runs_dir"):
        Run.create(name, config)


WRITTEN = (".lock", "environment.json", "ledger.jsonl", "config.yaml")
"""What the start of a run writes, in this order."""


@pytest.mark.parametrize("count", range(len(WRITTEN) + 1))
@pytest.mark.parametrize("resume", [False, True])
def test_a_start_that_was_killed_leaves_a_name_that_can_be_used(config: Config, count: int, resume: bool):
    with Run.create("a", config) as run:
        folder = run.path
    (folder / "rollouts").rmdir()
    for name in WRITTEN[count:]:
        (folder / name).unlink()
    (folder / ".config.yaml.1").touch()
    other = config.model_copy(update={"seed": config.seed if resume and count == len(WRITTEN) else 5})
    with Run.create("a", other, resume=resume) as run:
        expected = ["created", "resumed"] if resume and count == len(WRITTEN) else ["created"]
        assert [event["event"] for event in run.events()] == expected
        assert effective(run.config) == effective(other)
        run.ledger("phase_started", phase="gather")
    with refused(RunError, "'a'", config.runs_dir, "choose another name"):
        Run.create("a", other)


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_that_holds_something_else_is_never_taken_for_a_run(config: Config, resume: bool):
    folder = config.runs_dir / "study"
    folder.mkdir(parents=True)
    (folder / "study.jsonl").write_text("{}\n")
    (folder / "ledger.jsonl").write_text("{}\n")
    with refused(RunError, "'study'", config.runs_dir, "choose another name"):
        Run.create("study", config, resume=resume)
    assert sorted(item.name for item in folder.iterdir() if item.name != ".lock") == ["ledger.jsonl", "study.jsonl"]


def test_resuming_records_changed_settings_and_refuses_other_tasks(config: Config):
    Run.create("a", config).close()
    runs = f"runs_dir={config.runs_dir}"
    changed = load_config(None, [runs, "gather.tasks=7"])
    with Run.create("a", changed, resume=True) as run:
        assert list(run.events())[-1]["changed"] == {"pipeline.gather.tasks": [120, 7]}
        assert effective(run.config) == effective(changed)
    for override in ("seed=1", "data.size=50", "roles.Geneticist.model=senior", "rollouts.judges=[board]"):
        with refused(RunError, "'a'", override.partition("=")[0], "keep it"):
            Run.create("a", load_config(None, [runs, override]), resume=True)
    others = ["seed=1", "data.seed=2", "data.size=50", "gate.tasks=9", "reward.impact=2"]
    said = ("data.seed=0 (not 2)", "data.size=1000 (not 50)", "gate.tasks=100 (not 9)", "2 more", "keep them")
    with refused(RunError, said):
        Run.create("a", load_config(None, [runs, *others]), resume=True)
    assert effective(Run.open("a", config.runs_dir).config) == effective(changed)


def test_a_begun_phase_keeps_its_settings_but_not_where_and_in_which_parts_it_computes(config: Config):
    """Its records were made with them; where it computes changes nothing of what it learns."""
    runs = f"runs_dir={config.runs_dir}"
    with Run.create("a", config) as run:
        run.ledger("phase_started", phase="ppo")
        (run.path / "checkpoints" / "ppo" / "3").mkdir(parents=True)
        run.ledger("phase_started", phase="sft")
        run.append_rollout({}, phase="sft")
        run.ledger("phase_finished", phase="gather")
        run.ledger("phase_learned", phase="bandit")
        run.ledger("phase_started", phase="design")
    for setting in ("ppo.steps", "sft.answers", "gather.tasks", "bandit.tasks"):
        with refused(RunError, "'a'", f"pipeline.{setting}=", "(not 7)", "keep it"):
            Run.create("a", load_config(None, [runs, f"{setting}=7"]), resume=True)
    where = ["ppo.ranks=3", "ppo.shards=fsdp", "ppo.ppo_max_token_len_per_gpu=4096", "sft.min_examples=2"]
    changed = load_config(None, [runs, *where, "design.lr=0.1"])
    with Run.create("a", changed, resume=True) as run:
        assert list(run.events())[-1]["changed"]["pipeline.ppo.ranks"] == [1, 3]


def test_runs_without_a_name_get_different_ones_and_the_latest_is_found(config: Config):
    runs = [Run.create(None, config) for _ in range(3)]
    assert len({run.name for run in runs}) == 3
    assert Run.latest(config.runs_dir).path == runs[-1].path
    (config.runs_dir / "unfinished").mkdir()
    with Run.create("aaa", config):
        assert Run.latest(config.runs_dir).name == "aaa"
    for run in runs:
        run.close()


def test_a_missing_run_names_the_nearest(config: Config):
    with refused(RunError, config.runs_dir, "python -m chimera train"):
        Run.latest(config.runs_dir)
    with refused(RunError, "'a'", config.runs_dir, "runs_dir"):
        Run.open("a", config.runs_dir)
    Run.create("baseline", config).close()
    with refused(RunError, "'baselin'", "'baseline'"):
        Run.open("baselin", config.runs_dir)
    assert Run.open(str(config.runs_dir / "baseline"), config.runs_dir).name == "baseline"


def test_a_run_opened_to_read_cannot_be_written(config: Config):
    Run.create("a", config).close()
    with refused(RunError, "'a'", "opened to read", "resume"):
        Run.open("a", config.runs_dir).append_metrics({"x": 1})


def test_a_missing_artifact_is_an_error_and_no_event(config: Config):
    with Run.create("a", config) as run:
        with refused(RunError, "runs/a/nothing", "No such file"):
            run.ledger("phase_finished", artifacts=["nothing"])
        assert [event["event"] for event in run.events()] == ["created"]


def test_the_hash_of_a_folder_depends_on_names_and_contents(tmp_path: Path):
    seen = set()
    for name, text in (("a", "1"), ("b", "1"), ("a", "2")):
        folder = tmp_path / f"{name}{text}"
        (folder / "sub").mkdir(parents=True)
        (folder / "sub" / name).write_text(text)
        seen.add(hash_artifact(folder))
    assert len(seen) == 3


def test_no_secret_reaches_any_file_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    secret, made = 'sk-"very"/secret', "key-made-in-this-run"
    monkeypatch.setenv("MY_SERVER_KEY", secret)
    register_secret("RUN_KEY", made)
    endpoint = ["kind=endpoint", "base_url=http://127.0.0.1:9/v1", "model=m", "api_key_env=MY_SERVER_KEY"]
    overrides = [f"runs_dir={tmp_path}", f"tools.database=/tmp/{made}", *(f"models.junior.{item}" for item in endpoint)]
    with Run.create("a", load_config(None, overrides)) as run:
        run.append_rollout(
            {"error": f"401 for {secret}", secret: [{"nested": json.dumps({"k": secret})}]}, phase="gather"
        )
        run.append_metrics({"note": made})
        run.ledger("phase_failed", error=f"{made} {secret}")
        for file in run.path.rglob("*"):
            text = file.read_text() if file.is_file() else ""
            assert made not in text, file
            assert "sk-" not in text, file
        assert next(iter(run.rollouts("gather")))["error"] == "401 for [MY_SERVER_KEY]"


_OWNER = """
import os, signal, sys
from training.configuration import load_config
from chimera.run.directory import Run
run = Run.create("a", load_config(None, ["runs_dir=" + sys.argv[1]]), resume=True)
child = os.fork()
if child == 0:
    os.close(1)
    signal.pause()
    os._exit(0)
print(os.getpid(), child, flush=True)
signal.pause()
"""


def test_one_process_owns_a_run_and_a_dead_owners_run_is_free_even_while_its_child_lives(config: Config):
    owner = subprocess.Popen([sys.executable, "-c", _OWNER, str(config.runs_dir)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid, child = map(int, owner.stdout.readline().split())
    try:
        with refused(RunError, "'a'", f"process {pid}", "stop it"):
            Run.create("a", config, resume=True)
        Run.open("a", config.runs_dir)
        owner.kill()
        owner.wait()
        os.kill(child, 0)
        with Run.create("a", config, resume=True) as run:
            assert [event["event"] for event in run.events()] == ["created", "resumed"]
    finally:
        owner.kill()
        os.kill(child, signal.SIGKILL)
        owner.communicate()


def test_a_process_cannot_own_a_run_twice_but_can_after_giving_it_up(config: Config):
    with Run.create("a", config) as run:
        run.append_rollout({"n": 1}, phase="gather")
        with pytest.raises(RunError, match="already being written by this process"):
            Run.create("a", config, resume=True)
    with Run.create("a", config, resume=True) as run:
        run.append_rollout({"n": 2}, phase="gather")
        assert [line["n"] for line in run.rollouts("gather")] == [1, 2]


def test_a_run_in_a_relative_folder_reads_what_it_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The default runs_dir is relative to where the command is started."""
    monkeypatch.chdir(tmp_path)
    with Run.create("mine", Config(runs_dir=Path("runs"))) as run:
        run.append_rollout({"rollout_id": "ro-1"}, phase="gather")
        run.append_metrics({"phase": "gather", "step": 1})
        assert [one["rollout_id"] for one in run.rollouts("gather")] == ["ro-1"]
        assert [one["step"] for one in run.metrics()] == [1]
        assert [one["event"] for one in run.events()] == ["created"]
