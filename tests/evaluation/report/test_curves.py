"""A run's metrics as series: rollouts, phases, running means, figures by step, the bandit's estimates."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.measures.off_policy import Estimate
from evaluation.report.plots.curves import forecasts, part_names, rollouts, running_mean, series, spans


def rollout(number, phase, reward, **parts):
    return {"time": "t", "phase": "rollout", "step": number, "of": phase, "reward": reward, "parts": parts}


LINES = [
    rollout(1, "gather", 1.0, novelty=0.25, clarity=None),
    rollout(2, "gather", None),
    {"time": "t", "phase": "gather", "step": None, "reward": 1.0},
    rollout(3, "gate-base", 0.5, novelty=0.5),
    rollout(4, "ppo", 2.0, alignment=1.0),
]


def test_rollouts_are_read_by_number_and_cut_where_the_phase_changes():
    points = rollouts(reversed(LINES))
    assert [(point.number, point.reward) for point in points] == [(1, 1.0), (2, None), (3, 0.5), (4, 2.0)]
    assert [(span.phase, span.held_out, len(span.points)) for span in spans(points)] == [
        ("gather", False, 2),
        ("base", True, 1),
        ("ppo", False, 1),
    ]
    assert part_names(points) == ["novelty", "alignment"]


def test_lines_from_wandb_lack_what_was_none():
    (point,) = rollouts([{"time": "t", "phase": "rollout", "step": 1, "of": "gather"}])
    assert point.reward is None
    assert point.parts == {}
    assert (rollouts([]), spans([]), series([], "ppo", "reward/mean"), forecasts([], "bandit")) == ([], [], [], [])


VALUES = st.lists(st.none() | st.floats(-5, 5), max_size=30)


@given(VALUES, st.integers(1, 40), st.integers(1, 5))
def test_the_running_mean_is_the_mean_of_the_known_values_in_its_window(values, window, least):
    means = running_mean(values, window, least)
    assert len(means) == len(values)
    for end, mean in enumerate(means, start=1):
        known = [value for value in values[max(0, end - window) : end] if value is not None]
        if len(known) < least:
            assert mean is None
        else:
            assert mean == pytest.approx(math.fsum(known) / len(known))


def test_of_a_step_that_a_resumed_run_repeats_the_last_line_counts():
    lines = [
        {"phase": "ppo", "step": 2, "loss": 4},
        {"phase": "ppo", "step": 1, "loss": 3},
        {"phase": "ppo", "step": 2, "loss": 5},
        {"phase": "ppo", "step": 3, "loss": None},
        {"phase": "ppo", "step": None, "loss": 9},
        {"phase": "sft", "step": 1, "loss": 7},
    ]
    assert series(lines, "ppo", "loss") == [(1, 3.0), (2, 5.0)]


def test_an_estimate_that_the_log_could_not_give_is_missing():
    line = {"phase": "bandit", "step": 0, "choices": 12, "ess": 3.5, "dr": 1.0, "dr_low": 0.5, "dr_high": 1.5}
    summary = {**line, "step": None, "rollouts": 40}
    (found,) = forecasts([{**line, "ips": None, "ips_low": None, "ips_high": None}, summary], "bandit")
    assert (found.step, found.choices, found.ess) == (0, 12, 3.5)
    assert found.estimates == {"dr": Estimate(1.0, 0.5, 1.5)}
