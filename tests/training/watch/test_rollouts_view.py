"""What the views tell of a phase while it runs."""

import functools
import io
import re
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from record_kit import answered
from rich.console import Console
from rich.live import Live
from rich.table import Table

from chimera.data.tasks import load
from training.configuration import load_config
from training.phases import choose_names, expected_costs, make_phases
from training.watch import lines as lines_module
from training.watch.forecast import TimeForecast
from training.watch.progress import Activity
from training.watch.view import make_view
from training.watch.view_text import BARS, result_table, sparkline


@pytest.fixture
def record():
    return answered("r", "t", parts={"alignment": 1.0}, seconds=1.0)


def test_lines_tell_the_time_left_once_every_worker_could_have_ended_a_rollout(record, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(lines_module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(lines_module, "LINE_SECONDS", 0.0)
    output = io.StringIO()
    view = make_view(Console(file=output, width=120), 3)
    with view.phase("gather", 10, {}):
        for _ in range(5):
            now[0] += 5.0
            view.add(record)
    lines = [line for line in output.getvalue().splitlines() if line.startswith("gather: ") and "/10" in line]
    left = [f"{seconds} s left" for seconds in (35, 30, 25)]
    assert [line.rpartition(", ")[2] for line in lines] == ["failed 0", "failed 0", *left]


def test_an_activity_tells_the_time_left_once_enough_steps_have_ended_also_where_they_are_uneven():
    activity = Activity("gather", since=100.0, total=10, least=3)
    assert activity.left(101.0) is None
    activity.done = 2
    assert activity.left(102.0) is None
    activity.done = 5
    assert activity.left(150.0) == pytest.approx(50.0)  # The mean speed counts updates between rollouts too.
    activity.done = 10
    assert activity.left(160.0) is None


def test_a_terminal_gets_the_live_view(record):
    output = io.StringIO()
    console = Console(file=output, width=120, force_terminal=True, legacy_windows=False)
    view = make_view(console, 3)
    with view.phase("gather", 10, {}):
        for _ in range(2):
            view.add(record)
    assert "2/10" in output.getvalue()


def test_what_happens_is_said_in_a_pipe_whenever_nothing_else_was(monkeypatch):
    monkeypatch.setattr(lines_module, "SILENT_SECONDS", 0.0)
    said = threading.Event()

    class Output(io.StringIO):
        def write(self, text):
            if "starting model servers, for" in text:
                said.set()
            return super().write(text)

    with make_view(Console(file=Output(), width=120), 1) as view, view.doing("starting model servers"):
        assert said.wait(600)


def test_an_open_live_view_says_what_happens_where_nothing_is_counted(terminal):
    view, drawn = terminal
    with view:
        with view.doing("starting model servers"):
            pass
        view.plan(["gather"])
    assert "starting model servers, 0 s" in drawn()


def test_the_gate_s_last_decision_the_last_rollout_and_the_trend_stay_in_sight(terminal, record):
    view, drawn = terminal
    with view.phase("ppo", 20, VERSIONS):
        view.decision("gate: junior@sft is live")
        for number in range(8):
            view.add(replace(record, reward=float(number)))
        last = drawn().rpartition("ppo running")[2]
    assert f"reward {BARS} 0.500 to 6.500, 8 rollouts" in last
    assert "last: t answered yes (key yes), GO, reward 7.000" in last
    assert "gate: junior@sft is live" in last


def test_a_trend_line_has_at_most_its_width_and_goes_where_the_values_go():
    assert sparkline([]) == ""
    assert sparkline([1.0]) == BARS[0]
    assert sparkline([2.0] * 50, 10) == BARS[0] * 10
    assert sparkline(list(range(80)), 8) == BARS
    assert sparkline([3.0, 1.0]) == BARS[-1] + BARS[0]


@pytest.fixture
def timed():
    """A clock, whose time is `now`, and a forecast by it."""
    clock = SimpleNamespace(now=0.0)
    return clock, TimeForecast(lambda: clock.now)


def test_the_time_left_of_the_run_counts_parts_that_are_to_come_at_the_speed_measured(timed):
    clock, forecast = timed
    forecast.plan({"gather": 100.0, "gate-base": 50.0, "sft": 150.0})
    assert forecast.begin("gather")
    forecast.measure("gather")
    assert forecast.left() is None
    clock.now = 10.0
    forecast.progress("gather", 0.2)
    assert forecast.left() == pytest.approx(40.0 + 0.5 * 200)
    clock.now = 50.0
    forecast.finish("gather")
    assert forecast.left() == pytest.approx(100.0)
    forecast.begin("gate-base")
    assert forecast.left() == pytest.approx(25.0 + 75.0)
    clock.now = 70.0  # 20 of 25 s expected have passed.
    assert forecast.left() == pytest.approx(5.0 + 75.0)
    clock.now = 150.0  # It takes longer than expected: a tenth is left, for ever.
    assert forecast.left() == pytest.approx(2.5 + 75.0)


def test_a_part_that_is_read_from_disk_tells_nothing_about_the_time_left(timed):
    clock, forecast = timed
    forecast.plan({"gate-base": 50.0, "sft": 100.0})
    forecast.begin("gate-base")
    clock.now = 0.2
    forecast.finish("gate-base")
    assert forecast.left() is None


def test_a_step_s_update_counts_for_the_time_left(timed):
    clock, forecast = timed
    forecast.plan({"ppo": 100.0})
    forecast.begin("ppo")
    assert not forecast.begin("ppo")
    forecast.measure("ppo")
    clock.now = 30.0
    forecast.progress("ppo", 1 / 6)
    assert forecast.left() == pytest.approx(150.0)
    clock.now = 45.0
    forecast.measure("ppo: update 2")
    forecast.progress("ppo: update 2", 1.0)
    assert forecast.left() == pytest.approx(225.0)
    forecast.finish("ppo")
    assert forecast.left() == 0.0


def test_every_part_of_the_default_run_has_an_expected_cost():
    config = load_config()
    phases = make_phases(choose_names(None, config), config, load(config.data))
    costs = expected_costs(phases, config)
    judged = [name for phase in ("sft", "ppo", "design", "bandit") for name in (phase, f"gate-{phase}")]
    assert list(costs) == ["gather", "gate-base", *judged]
    assert min(costs.values()) > 0
    longer = load_config(overrides=["ppo.steps=12"])
    more = expected_costs(make_phases(choose_names(None, longer), longer, load(longer.data)), longer)
    assert more["ppo"] > 1.5 * costs["ppo"]


@pytest.mark.parametrize("width", [80, 120])
def test_the_live_view_fits_its_terminal(record, width, monkeypatch):
    """24 lines with every line of it, long names and long texts included."""
    monkeypatch.setattr(Live, "update", functools.partialmethod(Live.update, refresh=True))
    console = Console(
        file=io.StringIO(), width=width, height=24, force_terminal=True, legacy_windows=False, record=True
    )
    view = make_view(console, 1)
    long = replace(record, task_id="task-" * 30, parts={f"part_{number}": 0.1 for number in range(20)})
    view.plan(["gather", "sft", "ppo", "design", "bandit"])
    view.decision("gate: " + "words " * 40)
    with view.phase("ppo", 9, dict.fromkeys("abcdefgh", "long-version" * 9)), view.work("update " * 20, 3) as advance:
        for _ in range(9):
            view.add(long)
        advance(1, "text " * 50)
        picture = console.render_lines(view, console.options, pad=False)
    assert len(picture) <= 12
    for line in picture:
        assert sum(segment.cell_length for segment in line) <= width


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
        assert re.search(r"ppo-validation: 1 rollouts in(.|\n)*reward +0\.250", drawn())
        view.add(replace(record, reward=0.5))
    assert re.search(r"ppo: 2 rollouts in(.|\n)*reward +0\.750", drawn())


def test_the_live_view_shows_reward_parts_failures_and_the_newest_versions(terminal, record):
    view, drawn = terminal
    with view.phase("ppo", 4, VERSIONS):
        assert "policies: junior, senior: nano@0" in drawn()
        view.add(replace(record, policy_versions={**VERSIONS, "senior": "senior@ppo-1"}))
        view.add(replace(record, status="failed", error="no JSON", reward=None, parts={}, answer=None, decision=None))
        shown = drawn()
    assert "reward 1.000, right 1.000, failed 1" in shown
    assert "parts: right answer 1.000" in shown
    assert "policies: junior: nano@0; senior: senior@ppo-1" in shown
    assert "warning: ppo: rollout r on task t failed: no JSON" in shown


def test_rollouts_that_all_failed_are_not_zero_per_cent_right(record):
    failed = replace(record, status="failed", error="[/INST] [a]", answer=None, decision=None, reward=None)
    for records, words in (([failed, failed], "-"), ([failed, record], "50.0 %"), ([], "-")):
        console = Console(width=80, record=True, file=io.StringIO())
        console.print(result_table("gather", records, 1.0))
        shown = dict(line.split(maxsplit=1) for line in console.export_text().splitlines() if len(line.split()) > 1)
        assert shown["right"].strip() == words
        assert failed not in records or shown["ended"].strip().endswith("x [/INST] [a]")


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
