"""The mirror of a run with a W&B that is scripted: what it gets, and that its faults cost the run nothing."""

import threading

import pytest
from mirror_kit import EXPECTED, KEY, config_for, log_a_run, rollout, wait_for

from chimera.core.secrets import register_secret
from chimera.run.directory import Run
from training.watch.metrics import ARTIFACT, PROTOCOLS, Metrics
from training.watch.wandb import mirror as mirror_module
from training.watch.wandb.mirror import Mirror, wandb_mirror
from training.watch.wandb.rows import COLUMNS, protocol_rows


class FakeWandb:
    """A W&B run and its service. In `trouble` it refuses to start, to log or to end, hangs, or dies."""

    url = "http://wandb/run"
    starting_step = 0

    def __init__(self, trouble=""):
        self.trouble, self.starts, self.rows = trouble, [], {}
        self.offline = self.killed = False
        self.ended, self.release = threading.Event(), threading.Event()
        self.log_file = "wandb.log"

    def start(self, run, run_id, config, key, *, online):
        self.starts.append((run_id, key, online))
        if self.trouble == "refuses":
            raise OSError(f"no network, WANDB_API_KEY={key}")
        self.offline = not online
        return self

    def define_metric(self, *arguments, **options):
        pass

    def log(self, row, *, step, commit):
        if self.trouble == "hangs":
            self.release.wait()
        if self.trouble == "dies":
            self.killed = True
        if self.trouble in ("dies", "fails"):
            raise BrokenPipeError("gone")
        assert step not in self.rows
        self.rows[step] = row

    def connect(self):
        pass

    def alive(self):
        return not self.killed

    def join(self, seconds):
        pass

    def ending(self):
        return "W&B was killed"

    def finish(self, shown):
        self.ended.set()

    def kill(self):
        self.killed = True
        self.release.set()

    abandon = kill


@pytest.fixture
def show(tmp_path, monkeypatch):
    """Logs a run while `fake` shows it. Returns the notes, and the run."""

    def shown(fake, secrets=None, *, wait=1, **wandb):
        monkeypatch.setattr(mirror_module, "WandbService", lambda run: fake)
        monkeypatch.setattr(mirror_module, "start_wandb", fake.start)
        monkeypatch.setattr(mirror_module, "lines_in_files", lambda folder: 0)
        monkeypatch.setattr("training.watch.wandb.feed.Feed._send_protocols", lambda *_: None)
        monkeypatch.setattr("training.watch.wandb.feed.Feed._send_policy", lambda *_: None)
        monkeypatch.setattr("training.watch.wandb.feed.Feed._flush", lambda *_: None)
        notes: list[str] = []
        config = config_for(tmp_path, **wandb)
        with Run.create("shown", config) as run, wandb_mirror(run, config, secrets or {}, notes.append):
            log_a_run(run, Metrics(run))
            wait_for(lambda: len(notes) >= wait)
        return notes, run

    return shown


@pytest.mark.parametrize(
    ("mode", "secrets", "online"),
    [
        ("auto", {}, False),
        ("auto", {"WANDB_API_KEY": KEY}, True),
        ("online", {}, True),
        ("offline", {"WANDB_API_KEY": KEY}, False),
    ],
)
def test_every_line_is_sent_once_in_the_mode_that_the_settings_and_the_key_say(show, mode, secrets, online):
    fake = FakeWandb()
    notes, run = show(fake, secrets, mode=mode)
    assert [start[1:] for start in fake.starts] == [(secrets.get("WANDB_API_KEY"), online)]
    rows = [number for number, line in enumerate(run.metrics()) if line["phase"] not in (ARTIFACT, PROTOCOLS)]
    assert sorted(fake.rows) == rows
    assert fake.ended.is_set()
    assert "wandb sync" in notes[-1] if not online else notes == ["W&B: http://wandb/run"]


def test_switched_off_there_is_no_wandb(tmp_path):
    config = config_for(tmp_path, mode="disabled")
    with Run.create("shown", config) as run:
        assert not isinstance(wandb_mirror(run, config, {"WANDB_API_KEY": KEY}, pytest.fail), Mirror)


def test_a_wandb_that_refuses_is_tried_offline_and_its_error_tells_no_key(show):
    register_secret("WANDB_API_KEY", KEY)
    fake = FakeWandb("refuses")
    notes, run = show(fake, {"WANDB_API_KEY": KEY}, wait=2)
    assert [online for _, _, online in fake.starts] == [True, False]
    modes = [note.partition(": OSError: no network, ")[0] for note in notes]
    assert modes == ["W&B cannot be used online", "W&B cannot be used offline"]
    assert KEY not in "".join(notes)
    assert len(list(run.metrics())) == len(EXPECTED)


@pytest.mark.parametrize(
    ("trouble", "note"),
    [
        ("fails", "W&B did not take everything (BrokenPipeError: gone); a start with --resume sends the rest"),
        ("dies", "W&B was killed: W&B gets no more, metrics.jsonl has it all (see wandb.log)"),
        ("hangs", "W&B was not done in time; a start with --resume sends the rest"),
    ],
)
def test_a_wandb_in_trouble_is_told_once_and_its_service_ends_with_the_run(show, trouble, note, monkeypatch):
    monkeypatch.setattr(mirror_module, "CLOSE_SECONDS", 600.0 if trouble != "hangs" else 0.0)
    fake = FakeWandb(trouble)
    notes, run = show(fake, {"WANDB_API_KEY": KEY})
    assert notes[1:] == [note]
    assert fake.killed
    assert len(list(run.metrics())) == len(EXPECTED)


@pytest.mark.parametrize(("limit", "kept"), [(0, []), (1, [9]), (2, [9, 1]), (3, [9, 8, 1]), (99, [9, 8, 7, 3, 2, 1])])
def test_of_many_protocols_the_best_and_the_worst_are_shown(limit, kept):
    records = [rollout(number, reward=reward) for number, reward in enumerate((3.0, 9.0, None, 1.0, 7.0, 8.0, 2.0))]
    rows = protocol_rows(records, limit)
    assert [row[COLUMNS.index("reward")] for row in rows] == kept
    assert all(len(row) == len(COLUMNS) for row in rows)
