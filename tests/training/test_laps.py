"""Where a run's seconds went."""

import time

from training.pipeline import Laps


def test_all_seconds_since_the_start_belong_to_a_stage():
    started = time.time() - 100
    laps = Laps(started)
    laps.lap("start")
    laps.lap("sft")
    laps.lap("gate")
    laps.lap("sft")
    assert list(laps.seconds) == ["start", "sft", "gate"]
    assert 100 <= sum(laps.seconds.values()) <= time.time() - started
    assert laps.words().startswith("time: start 1")
    assert laps.words().endswith(" s altogether")
