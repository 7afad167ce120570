"""The ledger's hash chain and seals: nothing in them can be changed unnoticed, whoever writes and whoever is killed."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.core.errors import RunError
from chimera.run.chain import head, link, read_chain
from chimera.run.directory import Run
from chimera.run.jsonl import append_line
from chimera.run.seals import history, seal, unlike_disk
from training.configuration import load_config

RECORDS = st.lists(
    st.dictionaries(st.text(max_size=5), st.text(max_size=9), min_size=1, max_size=3), min_size=1, max_size=6
)


def append(file, records):
    for record in records:
        append_line(file, record, chained=True)


@given(RECORDS, st.data())
def test_no_byte_of_a_chain_can_be_another(tmp_path_factory, records, data):
    """What can be read of a changed chain is its beginning, unchanged: only the end can go unnoticed."""
    file = tmp_path_factory.mktemp("chain") / "a.jsonl"
    append(file, [{**record, "n": number} for number, record in enumerate(records)])
    before, whole = file.read_bytes(), read_chain(file)
    assert [entry.record["n"] for entry in whole] == list(range(len(records)))
    assert head(file) == whole[-1].hash
    at = data.draw(st.integers(0, len(before) - 1))
    file.write_bytes(before[:at] + bytes([data.draw(st.integers(0, 255))]) + before[at + 1 :])
    try:
        found = read_chain(file)
    except RunError:
        return
    assert found == whole[: len(found)]
    assert len(found) >= len(whole) - 1


def test_the_hashes_are_plain_sha256_of_what_stands_before_them(tmp_path):
    append(tmp_path / "a.jsonl", [{"n": 1}, {"n": 2}])
    first, second = read_chain(tmp_path / "a.jsonl")
    assert first.record == {"n": 1}
    script = "import hashlib, sys; print(hashlib.sha256(sys.argv[1].encode()).hexdigest())"
    body = f'{{"n":2,"previous":"{first.hash}"'
    done = subprocess.run([sys.executable, "-c", script, body], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == second.hash
    assert link(b'{"n":1}', b"").endswith(f'"hash":"{first.hash}"}}'.encode())


@pytest.fixture
def run(tmp_path):
    with Run.create("a", load_config(None, [f"runs_dir={tmp_path}"])) as run:
        run.append_rollout({"n": 1}, phase="gather")
        (run.path / "traces/gather").mkdir(parents=True)
        (run.path / "traces/gather/1.jsonl.gz").write_text("1")
        (run.path / "logs").mkdir()
        (run.path / "logs/main.log").write_text("1")
        (run.path / "models").mkdir()
        (run.path / "models/a.bin").write_text("1")
        assert seal(run) == []
        yield run


def sealed(run):
    return history(run.events())


def wrong(run):
    return list(unlike_disk(run.path, sealed(run)))


def test_every_file_is_sealed_but_logs_drafts_and_the_ledger(run):
    (run.path / ".draft").write_text("1")
    assert set(sealed(run)) == {
        "config.yaml",
        "environment.json",
        "models/a.bin",
        "rollouts/gather.jsonl",
        "traces/gather/1.jsonl.gz",
    }
    assert wrong(run) == []


def test_a_seal_lists_only_what_is_new_or_has_changed(run):
    events = list(run.events())
    assert seal(run) == []
    assert list(run.events()) == events
    run.append_rollout({"n": 2}, phase="gather")
    (run.path / "models/a.bin").unlink()
    (run.path / "models/b.bin").write_text("2")
    assert seal(run) == []
    assert list(list(run.events())[-1]["files"]) == ["models/a.bin", "models/b.bin", "rollouts/gather.jsonl"]
    assert wrong(run) == []
    run.append_rollout({"n": 3}, phase="gather")
    assert "has lines after byte" in wrong(run)[0]
    seal(run)
    assert wrong(run) == []


def test_a_line_that_a_killed_writer_left_unfinished_is_not_sealed(run):
    with run.rollouts_file("gather").open("a") as file:
        file.write('{"n":')
    assert (seal(run), wrong(run)) == ([], [])
    run.append_rollout({"n": 2}, phase="gather")
    assert (seal(run), wrong(run)) == ([], [])


@pytest.mark.parametrize("name", ["rollouts/gather.jsonl", "traces/gather/1.jsonl.gz"])
@pytest.mark.parametrize("how", ["changed", "gone"])
def test_what_may_not_change_is_named_however_often_it_is_sealed_again(run, name, how):
    file = Path(run.path / name)
    if how == "changed":
        file.write_bytes(file.read_bytes()[:-1] + b"9\n")
    else:
        file.unlink()
    for _ in range(2):
        assert seal(run) == [name]
    (problem,) = wrong(run)
    assert problem.startswith(name)
