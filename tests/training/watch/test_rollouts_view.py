"""What the views tell of a phase while it runs."""

import functools
import io
import re
from dataclasses import replace
from itertools import count

import pytest
from rich.console import Console
from rich.live import Live
from rich.table import Table

from evaluation.records.rollouts import RolloutRecord
from training.watch import view as view_module
from training.watch.view import TimeLeftColumn, make_view


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
            "answer": "yes",
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


VERSIONS = {"junior": "nano@0", "senior": "nano@0"}


@pytest.fixture
def terminal(monkeypatch):
    """A live view that draws each change at once, and a function that tells what has been drawn since it was asked."""
    monkeypatch.setattr(Live, "update", functools.partialmethod(Live.update, refresh=True))
    output = io.StringIO()
    view = make_view(Console(file=output, width=160, force_terminal=True, legacy_windows=False), 2)

    def drawn():
        text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output.getvalue())
        output.seek(0)
        output.truncate()
        return text

    return view, drawn


@pytest.fixture
def lines():
    """A view without a terminal, and a function that tells its lines since it was asked."""
    output = io.StringIO()
    view = make_view(Console(file=output, width=160), 2)

    def written():
        text = output.getvalue()
        output.seek(0)
        output.truncate()
        return text.splitlines()

    return view, written


def test_the_live_view_tells_which_phases_are_done_running_and_left(terminal, record):
    view, drawn = terminal
    view.plan(["gather", "sft", "ppo"], done=["gather"])
    with view.work("sft", 4) as advance:
        assert "gather done | sft running | ppo\n" in drawn()
        advance(1, "loss 0.5")
    last = drawn()
    assert "1/4" in last
    assert "loss 0.5" in last
    with view.phase("gate-sft", 1, VERSIONS):
        assert "gather done | sft done | ppo\n" in drawn()
        view.add(record)
    with view.phase("ppo", 1, VERSIONS):
        assert "gather done | sft done | ppo running\n" in drawn()


def test_a_phase_that_is_interrupted_is_not_done_and_gives_the_terminal_back(terminal, record):
    view, drawn = terminal
    view.plan(["gather"])

    def interrupted():
        with view.phase("gather", 4, VERSIONS):
            view.add(record)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert "gather: 1 rollouts in" in drawn()
    with view.work("other", 1):
        assert "gather\n" in drawn()


def test_work_inside_a_phase_has_its_own_bar_in_the_same_live_view(terminal, record):
    view, drawn = terminal
    view.plan(["ppo"])
    with view.phase("ppo", 4, VERSIONS):
        view.add(record)
        with view.work("ppo: update 1", 6) as advance:
            advance(2, "step 1 of 3")
            view.add(record)
            both = drawn()
            assert re.search(r"ppo +━.* 2/4", both)
            assert re.search(r"ppo: update 1 +━.* 2/6 .*step 1 of 3", both)
        view.add(record)
        one = drawn()
        assert re.search(r"ppo +━.* 3/4", one)
        assert "update 1" not in one.rpartition("ppo running")[2]
    assert "ppo: 3 rollouts in" in drawn()


def test_a_phase_inside_a_phase_counts_its_own_rollouts(terminal, record):
    view, drawn = terminal
    with view.phase("ppo", 2, VERSIONS):
        view.add(replace(record, reward=1.0))
        with view.phase("ppo-validation", 1, VERSIONS):
            view.add(replace(record, reward=0.25))
        assert re.search(r"ppo-validation: 1 rollouts in(.|\n)*reward, mean +│ +0\.250", drawn())
        view.add(replace(record, reward=0.5))
    assert re.search(r"ppo: 2 rollouts in(.|\n)*reward, mean +│ +0\.750", drawn())


def test_the_live_view_shows_reward_parts_failures_and_the_newest_versions(terminal, record):
    view, drawn = terminal
    with view.phase("ppo", 4, VERSIONS):
        assert "policies: junior, senior: nano@0" in drawn()
        view.add(replace(record, policy_versions={**VERSIONS, "senior": "senior@ppo-1"}))
        view.add(replace(record, status="failed", error="no JSON", reward=None, parts={}, answer=None, decision=None))
        shown = drawn()
    assert "reward 1.000, right 1.000, failed 1" in shown
    assert "parts: alignment 1.000" in shown
    assert "policies: junior: nano@0; senior: senior@ppo-1" in shown
    assert "warning: rollout r on task t failed: no JSON" in shown


def test_brackets_in_texts_are_shown_as_they_are(terminal):
    view, drawn = terminal
    with view.work("sft", 2) as advance:
        advance(1, "[bold]loss[/nothing] [1]")
        view.note("a [note]")
    shown = drawn()
    assert "[bold]loss[/nothing] [1]" in shown
    assert "a [note]" in shown


def test_lines_tell_the_plan_and_the_first_and_last_step_of_work(lines):
    view, written = lines
    view.plan(["gather", "sft"], done=["gather"])
    assert written() == ["phases: gather (finished before), sft"]
    with view.work("sft", 4) as advance:
        for step in range(1, 5):
            advance(step, f"loss {step}")
    first, last = written()
    assert re.fullmatch(r"sft: 1/4, loss 1, \d+ s left", first)
    assert last == "sft: 4/4, loss 4"


def test_lines_of_work_inside_a_phase_leave_the_phases_count_alone(lines, record):
    view, written = lines
    with view.phase("ppo", 3, VERSIONS):
        view.add(record)
        with view.work("ppo: update 1", 1) as advance:
            advance(1, "done")
        view.add(record)
        view.add(record)
    shown = written()
    assert shown[0] == "ppo: 3 rollouts; policies junior, senior: nano@0"
    assert shown[1].startswith("ppo: 1/3, reward 1.000")
    assert shown[2] == "ppo: update 1: 1/1, done"
    assert shown[3].startswith("ppo: 3/3, reward 1.000")
    assert shown[4].startswith("ppo: 3 rollouts in")


@pytest.mark.parametrize("kind", ["terminal", "lines"])
def test_a_table_is_shown_inside_and_outside_of_a_phase(kind, request):
    view, shown = request.getfixturevalue(kind)
    table = Table("stage", "verdict")
    table.add_row("sft", "better")
    view.table(table)
    assert "better" in "".join(shown())
    with view.work("sft", 1):
        view.table(table)
        assert "better" in "".join(shown())
