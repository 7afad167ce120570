"""What the views tell of a phase while it runs."""

import io
from itertools import count

import pytest
from rich.console import Console

from training import view as view_module
from training.rollouts import RolloutRecord
from training.view import TimeLeftColumn, make_view


@pytest.fixture
def record():
    return RolloutRecord.load(
        {
            "rollout_id": "r",
            "task_id": "t",
            "source": "generated",
            "level": 1,
            "phase": "gather",
            "repeat": 0,
            "seed": 0,
            "attempt": 1,
            "status": "succeeded",
            "error": None,
            "label": "yes",
            "decision": "GO",
            "reward": 1.0,
            "parts": {"alignment": 1.0},
            "missing": [],
            "policy_versions": {},
            "weights_versions": {},
            "outputs": {},
            "counts": {},
            "untraced_calls": 0,
            "seconds": 1.0,
            "worker": "Worker-0",
            "trace": None,
        }
    )


def test_lines_tell_the_time_left_once_every_runner_could_have_ended_a_rollout(record, monkeypatch):
    seconds = count(step=5.0)
    monkeypatch.setattr(view_module.time, "monotonic", lambda: next(seconds))
    monkeypatch.setattr(view_module, "LINE_SECONDS", 0.0)
    output = io.StringIO()
    view = make_view(Console(file=output, width=120), 3)
    with view.phase("gather", 10, {}):
        for _ in range(5):
            view.add(record)
    lines = [line for line in output.getvalue().splitlines() if line.startswith("gather: ") and "/10" in line]
    assert [line.rpartition(", ")[2] for line in lines] == [
        "failed 0",
        "failed 0",
        "35 s left",
        "30 s left",
        "25 s left",
    ]


def test_the_live_view_tells_the_time_left_once_every_runner_could_have_ended_a_rollout():
    from rich.progress import Progress

    seconds = count()
    progress = Progress(TimeLeftColumn(3), get_time=lambda: next(seconds), disable=True)
    bar = progress.add_task("gather", total=10)
    shown = []
    for _ in range(4):
        progress.advance(bar)
        shown.append(progress.columns[0](progress.tasks[0]).plain)
    assert shown[:2] == ["-:--:--"] * 2
    assert all("-" not in text for text in shown[2:]), shown


def test_a_terminal_gets_the_live_view_with_its_column(record):
    output = io.StringIO()
    console = Console(file=output, width=120, force_terminal=True, legacy_windows=False)
    view = make_view(console, 3)
    with view.phase("gather", 10, {}):
        for _ in range(2):
            view.add(record)
    assert "2/10" in output.getvalue()
    assert "-:--:--" in output.getvalue()
