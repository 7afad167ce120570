"""How the viewer reads runs: only what is new, a line once, and the same figures as whole records give."""

import os
import re
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from message_kit import refused
from view_kit import make_runs, rollout

from chimera.core.errors import ConfigError, RunError
from chimera.run.directory import Run
from chimera.show.chart import BOTTOM, LEFT, RIGHT, TOP, Curve, Point, draw, round_ticks
from evaluation.records.rollouts import RolloutRecord
from evaluation.view.pages.choice import NO_DECISION, RolloutChoice, sort_key
from evaluation.view.pages.figures import Figures, pair_up
from evaluation.view.pages.phases import PhaseWork, earlier_seconds, shown_phases, state_of, time_left
from evaluation.view.reading.folder import RunsFolder
from evaluation.view.reading.growing import GrowingFile
from evaluation.view.reading.rows import read_record, row_of
from evaluation.view.reading.watched import WatchedRun


def line_of(record):
    import json

    return json.dumps(record.dump(), separators=(",", ":")).encode() + b"\n"


def row(number=1, **changes):
    record = rollout(number, "gather", f"t-{number}", **changes)
    return row_of(line_of(record), "gather", number, 0)


@given(st.lists(st.binary(max_size=12).map(lambda text: text.replace(b"\n", b"")), max_size=12), st.data())
def test_each_line_is_read_once_whatever_pieces_it_comes_in(tmp_path_factory, lines, data):
    file = tmp_path_factory.mktemp("grows") / "lines"
    growing, whole, found = GrowingFile(file), b"".join(line + b"\n" for line in lines), []
    at = 0
    while at < len(whole):
        step = data.draw(st.integers(1, len(whole) - at))
        with file.open("ab") as end:
            end.write(whole[at : at + step])
        at += step
        again, news = growing.news()
        assert not again
        found += news
    assert [line for _, line in found] == [line + b"\n" for line in lines]
    assert all(whole[place : place + len(line)] == line for place, line in found)


def test_a_file_that_was_replaced_or_cut_is_read_again(tmp_path):
    file = tmp_path / "lines"
    growing = GrowingFile(file)
    assert growing.news() == (False, [])
    file.write_bytes(b"one\ntwo\nthr")
    assert growing.news() == (False, [(0, b"one\n"), (4, b"two\n")])
    other = tmp_path / "other"
    other.write_bytes(b"new\n")
    os.replace(other, file)
    assert growing.news() == (True, [(0, b"new\n")])
    file.write_bytes(b"")
    assert growing.news() == (True, [])


TRICKY = st.sampled_from(['x', ',"outputs":{', ',"counts":{"a":1}', '\\",\\"outputs\\":{', "}", "\n", "é"])  # fmt: skip


TEXTS = st.lists(TRICKY, max_size=4).map("".join)


@given(TEXTS, TEXTS, st.sampled_from(["counts", "outputs", "senior"]))
def test_a_row_says_what_the_whole_record_says(text, other, slot):
    record = rollout(
        1, "gather", f"t{text}", veto=text or None, outputs={"research_goal": other, "counts": {"a": other}},
        policy_versions={slot: text}, tokens={slot: {"prompt": 1}}, counts={"model_calls": 3},
    )  # fmt: skip
    found = row_of(line_of(record), "gather", 1, 0)
    assert (found.task_id, found.veto, found.reward, found.seconds) == (record.task_id, record.veto, 1.0, 1.0)
    assert found.roles == {"Geneticist": (1, 2, 10), "Supervisor": (1, 1, 0)}
    assert found.calls == 3
    assert found.tools == {"Geneticist": 1}


@pytest.mark.parametrize("line", [b"no json\n", b"[]\n", b'{"rollout_id": "a"}\n', b'{"outputs":{}}\n'])
def test_a_line_that_is_no_rollout_is_told_and_the_others_are_shown(tmp_path, line):
    run = Run(make_runs(tmp_path) / "second")
    with (run.path / "rollouts" / "gather.jsonl").open("ab") as file:
        file.write(line + line_of(rollout(13, "gather", "t-6")))
    snapshot = WatchedRun(run).look()
    assert [one.task_id for one in snapshot.all_rows] == ["t-1", "t-5", "t-6"]
    assert len(snapshot.faults) == 1


def test_a_run_is_looked_at_again_only_where_it_has_changed(tmp_path):
    run = Run(make_runs(tmp_path) / "second")
    watched = WatchedRun(run)
    first = watched.look()
    assert watched.look() is first
    with run.own() as owned:
        owned.append_rollout(rollout(13, "gather", "t-6").dump(), phase="gather")
        owned.append_rollout(rollout(11, "gather", "t-1", reward=9.0).dump(), phase="gather")
    second = watched.look()
    assert len(first.all_rows) == 2, "what was looked at before stays as it was"
    assert [(one.rollout_id[-1], one.reward) for one in second.all_rows] == [("b", 9.0), ("c", 1.0), ("d", 1.0)]
    assert [read_record(run.path, one).task_id for one in second.all_rows] == ["t-1", "t-5", "t-6"]
    assert isinstance(read_record(run.path, second.by_id["ro-00000000000b"]), RolloutRecord)


def test_stages_stand_in_the_order_in_which_they_began(tmp_path):
    snapshot = WatchedRun(Run(make_runs(tmp_path) / "first")).look()
    assert list(snapshot.rows) == ["gather", "gate-base", "gate-ppo"]
    assert snapshot.roles == ["Geneticist", "Supervisor"]
    assert snapshot.faults == []


def test_stages_of_evaluations_stand_in_the_order_of_the_pipeline_behind_those_of_training(tmp_path):
    run = Run(make_runs(tmp_path) / "second")
    stages = (
        "gather", "gate-base", "gate-sft", "gate-ppo", "gate-ppo-2", "eval-test-base", "eval-test-sft",
        "eval-test-sft-at-0.3", "eval-test-ppo", "eval-test-ppo-2", "eval-test-final-without-sft", "eval-val-ppo",
    )  # fmt: skip
    with run.own() as owned:
        owned.ledger("planned", phases=["gather", "sft", "ppo", "ppo-2"])
        for name in ("gate-base", "gate-sft", "gate-ppo", "gate-ppo-2"):
            owned.append_metrics({"phase": "rollout", "step": 1, "rollout_id": "ro-1", "of": name})
        for number, name in enumerate(sorted(stages), start=100):
            owned.append_rollout(rollout(number, name, "t-1").dump(), phase=name)
    snapshot = WatchedRun(run).look()
    ordered = [name for name in snapshot.rows if name != "gather"]
    assert ordered == list(stages[1:])


def test_a_broken_ledger_is_told_and_rollouts_are_shown(tmp_path):
    run = Run(make_runs(tmp_path) / "first")
    ledger = run.path / "ledger.jsonl"
    ledger.write_text(ledger.read_text().replace("gather", "gathered", 1))
    snapshot = WatchedRun(run).look()
    assert "broken or was changed" in snapshot.faults[0]
    assert len(snapshot.all_rows) == 6


def test_runs_that_lead_out_of_the_folder_are_not_opened(tmp_path):
    runs = make_runs(tmp_path / "runs")
    outside = make_runs(tmp_path / "elsewhere")
    (runs / "linked").symlink_to(outside / "first")
    folder = RunsFolder(runs)
    for name in ("linked", "..", "../elsewhere/first", "", ".", "first/../../elsewhere/first"):
        with pytest.raises(RunError):
            folder.open(name)
    found, odd = folder.runs()
    assert sorted(one.run.name for one in found) == ["first", "second"]
    assert {one.name for one in odd} == {"linked", "<img src=x onerror=alert(1)>"}


CHOICES = st.builds(
    RolloutChoice, phase=st.text(max_size=5), role=st.text(max_size=5), failure=st.text(max_size=5),
    low=st.none() | st.floats(-5, 5), first=st.none() | st.integers(0, 9), sort=st.sampled_from(["", "-reward"]),
    page=st.integers(1, 9),
)  # fmt: skip


@given(CHOICES)
def test_an_address_keeps_the_choice(choice):
    from urllib.parse import parse_qsl

    texts = {one.name: value for one in fields(choice) if isinstance(value := getattr(choice, one.name), str)}
    stripped = replace(choice, **{name: text.strip() for name, text in texts.items()})
    assert RolloutChoice.read(dict(parse_qsl(choice.address(page=choice.page)))) == stripped


@given(st.lists(st.none() | st.floats(-2, 2), max_size=9), st.sampled_from(["reward", "-reward"]))
def test_sorting_keeps_all_rollouts_and_puts_missing_rewards_last(rewards, sort):
    rows = [row(number, reward=reward) for number, reward in enumerate(rewards, start=1)]
    found = [one.reward for one in RolloutChoice(sort=sort).pick(rows)]
    known = [one for one in rewards if one is not None]
    assert found == sorted(known, reverse=sort.startswith("-")) + [None] * (len(rewards) - len(known))


def test_what_is_chosen():
    rows = [
        row(1), row(2, decision=None, answer=None, status="failed", error="timed out after 3 s", reward=None),
        row(3, decision="NO-GO", answer="no", reward=-1.0, veto="x"), row(4, reward=None),
        row(5, status="failed", error="timed out after 99 s", answer=None, decision=None, reward=None),
    ]  # fmt: skip
    for query, numbers in (
        ({}, [1, 2, 3, 4, 5]), ({"failure": "any"}, [2, 5]), ({"failure": "vetoed"}, [3]),
        ({"failure": "no reward"}, [4]), ({"failure": "timed out after # s"}, [2, 5]),
        ({"decision": NO_DECISION}, [2, 5]), ({"decision": "GO"}, [1, 4]), ({"right": "no"}, [2, 3, 5]),
        ({"low": 0}, [1]), ({"high": 0}, [3]), ({"task": "t-3"}, [3]), ({"first": 2, "last": 3}, [2, 3]),
        ({"role": "Geneticist"}, [1, 2, 3, 4, 5]), ({"role": "Nobody"}, []),
    ):  # fmt: skip
        assert [one.number for one in RolloutChoice(**query).pick(rows)] == numbers, query
    assert [one.number for one in RolloutChoice().pick(rows, learned={rows[3].rollout_id})] == [4]
    by_tokens = RolloutChoice(role="Geneticist", sort="-role:tokens").pick(rows)
    assert len(by_tokens) == 5
    with refused(ConfigError, "'beauty'", "reward", "role:visits"):
        sort_key("beauty", "")
    with pytest.raises(ConfigError, match="low='x' is not a number"):
        RolloutChoice.read({"low": "x"})


def test_figures_and_pairs():
    left = [row(1, reward=1.0), row(2, reward=2.0), row(3, reward=None), row(4)]
    right = [row(1, reward=3.0, answer="no"), row(2, reward=1.5), row(3), replace(row(4), label="no")]
    pairs = pair_up(left, right)
    assert [(one.left.number, one.difference, one.change) for one in pairs] == [
        (2, -0.5, "both right"), (1, 2.0, "lost"), (3, None, "both right"),
    ]  # fmt: skip
    figures = Figures.of(left)
    assert (figures.rollouts, figures.right, figures.unscored) == (4, 1.0, 1)
    assert figures.reward == pytest.approx(4 / 3)
    assert Figures.of([row(1, status="failed", error="late", answer=None)]).right is None
    assert Figures.of([]) == Figures(0, 0, 0, 0, None, None)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.floats(100, 2000))
def test_all_points_of_a_chart_lie_in_it(values, width):
    curve = Curve("a", [Point(x, y, None, "") for x, y in enumerate(values)])
    drawing = draw("t", [curve], width=width)
    assert drawing is not None
    points = re.findall(r'<circle cx="([^"]+)" cy="([^"]+)"', drawing.svg)
    assert len(points) == len(values)
    for x, y in points:
        assert LEFT - 0.1 <= float(x) <= width - RIGHT + 0.1
        assert TOP - 0.1 <= float(y) <= 132 - BOTTOM + 0.1


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6))
def test_ticks_enclose_the_values_in_equal_steps(low, span):
    ticks = round_ticks(low, low + span)
    assert 2 <= len(ticks) <= 6
    slack = 1e-6 * max(1.0, abs(low), span)
    assert ticks[0] <= low + slack
    assert ticks[-1] >= low + span - slack


def test_no_points_no_chart():
    assert draw("t", [Curve("a", [])]) is None
    assert draw("t", [Curve("a", [Point(1, float("nan"), None, "")])]) is None


def events(*rows):
    return [{"event": name, "phase": phase, "time": f"2026-01-01T00:0{minute}:00+00:00", **more}
            for minute, name, phase, more in rows]  # fmt: skip


NOW = 1767225600.0  # 2026-01-01T00:00:00+00:00


def snapshot_with(tmp_path, ledger, settings):
    made = WatchedRun(Run(make_runs(tmp_path) / "first")).look()
    return replace(made, events=[{"event": "planned", "phases": ["gather", "ppo"]}, *ledger], settings=settings)


def test_time_left_is_that_of_an_earlier_run_and_else_of_what_is_done(tmp_path):
    ledger = events((0, "phase_started", "gather", {}))
    snapshot = snapshot_with(tmp_path, ledger, {"pipeline.gather.tasks": 9, "pipeline.gather.repeats": 1})
    phases = shown_phases(snapshot, running=True, now=NOW + 60, earlier={"gather": 100.0, "ppo": 40.0})
    assert [(one.state, one.left) for one in phases] == [("runs", 40.0), ("waits", 40.0)]
    assert time_left(phases) == (80.0, [])
    assert phases[0].share == pytest.approx(0.6)
    phases = shown_phases(snapshot, running=True, now=NOW + 60)
    assert phases[0].works == (PhaseWork("rollouts", 3, 9),)
    assert [one.left for one in phases] == [pytest.approx(120.0), None]
    assert time_left(phases) == (pytest.approx(120.0), ["ppo"])
    before_any = shown_phases(replace(snapshot, rows={}), running=True, now=NOW + 60)
    assert time_left(before_any)[1] == ["gather", "ppo"]


def test_time_left_follows_the_costs_of_the_plan(tmp_path):
    """Costs are of phases and gates; the base is tried before the first phase that learns."""
    costs = {"gather": 60.0, "gate-base": 10.0, "ppo": 80.0, "gate-ppo": 10.0}
    started = events((0, "phase_started", "gather", {}))
    done = events((2, "phase_finished", "gather", {}), (2, "phase_started", "ppo", {}))
    snapshot = snapshot_with(tmp_path, [*started, *done], {"pipeline.ppo.roles": ["Neurologist"]})
    plan = [{"event": "planned", "phases": ["gather", "ppo"], "costs": costs}]
    phases = shown_phases(replace(snapshot, events=[*plan, *started, *done]), running=True, now=NOW + 150)
    assert [one.left for one in phases] == [0.0, pytest.approx(2 * 100 - 30)]
    phases = shown_phases(
        replace(snapshot, events=[*plan, *started], settings={"pipeline.gather.tasks": 9}), running=True, now=NOW + 60
    )
    assert phases[0].left == pytest.approx(120.0)
    assert time_left(phases)[1] == []


def test_states_of_phases_and_of_the_run(tmp_path):
    ledger = events((0, "phase_started", "gather", {}), (2, "phase_finished", "gather", {}),
                    (2, "phase_started", "ppo", {}))  # fmt: skip
    snapshot = snapshot_with(tmp_path, ledger, {})
    for more, running, states, whole in (
        ([], True, ["finished", "runs"], "runs"),
        ([], False, ["finished", "stopped"], "stopped"),
        (events((3, "phase_failed", "ppo", {"error": "out of memory"})), False, ["finished", "failed"], "failed"),
        (events((3, "phase_interrupted", "ppo", {})), False, ["finished", "stopped"], "stopped"),
        (events((4, "phase_finished", "ppo", {})), False, ["finished", "finished"], "finished"),
    ):
        phases = shown_phases(replace(snapshot, events=[*snapshot.events, *more]), running=running, now=NOW)
        assert [one.state for one in phases] == states
        assert state_of(phases, running=running) == whole
        assert state_of(phases, running=False, evaluates=True) == "evaluates"
    assert phases[0].seconds == 120
    assert state_of([], running=False) == "empty"


def test_only_a_run_with_the_same_settings_tells_how_long_a_phase_takes(tmp_path):
    runs = make_runs(tmp_path)
    snapshot = WatchedRun(Run(runs / "first")).look()
    assert set(earlier_seconds(snapshot, [runs / "first"])) == set()
    other = replace(snapshot, run=runs / "other")
    assert set(earlier_seconds(other, [runs / "second", runs / "first"])) == {"gather", "ppo"}
    changed = {**other.settings, "pipeline.gather.tasks": 3}
    assert set(earlier_seconds(replace(other, settings=changed), [runs / "first"])) == {"ppo"}
