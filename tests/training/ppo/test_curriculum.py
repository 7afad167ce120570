"""Curricula: what is drawn, in which order, and when the next level opens."""

from collections import Counter
from dataclasses import asdict

from hypothesis import given
from hypothesis import strategies as st

from training.ppo.curriculum import ADVANCE, WINDOW, Course, Curriculum

LEVELS = {f"s{number:02}": number % 3 + 1 for number in range(60)}
rates = st.sampled_from([0.0, 0.25, 0.5, 1.0])


def begun(order, levels=None, course=None):
    return Curriculum(LEVELS if levels is None else levels, order, "0/ppo", course or Course())


@given(st.integers(1, 9), st.integers(1, 9))
def test_even_draws_repeat_no_state_before_all_have_come(count, states):
    curriculum = begun("even", {f"s{number}": 1 for number in range(states)})
    drawn = []
    for _ in range(2 * states):
        taken = curriculum.draw(count)
        assert len(taken) == len(set(taken)) == min(count, states)
        drawn += taken
        times = Counter(drawn)
        assert max(times.values()) - min(times.get(f"s{number}", 0) for number in range(states)) <= 1


@given(st.lists(rates, min_size=60, max_size=60), st.integers(1, 40))
def test_states_that_inform_come_before_those_that_do_not(found, count):
    curriculum = begun("pass_rate")
    for name, rate in zip(curriculum.draw(60), found, strict=True):
        curriculum.saw(name, rate)
    known = curriculum.course.rates
    taken = curriculum.draw(count)
    mixed = [name for name in known if 0 < known[name] < 1]
    easy = [name for name in taken if known[name] == 1]
    assert len(taken) == len(set(taken)) <= count
    if mixed:
        assert len(easy) <= 0.15 * min(count, len(mixed))
        assert {*taken} <= {*mixed, *easy}
        assert len(taken) - len(easy) == min(count - len(easy), len(mixed))
    else:
        assert len(taken) == count


def test_the_next_level_opens_exactly_when_seven_of_ten_are_passed():
    curriculum = begun("level")
    names = [name for name, level in LEVELS.items() if level == 1]
    assert {LEVELS[name] for name in curriculum.draw(10)} == {1}
    needed = round(ADVANCE * WINDOW)
    for number in range(WINDOW):
        curriculum.saw(names[number % len(names)], 1.0 if number < needed - 1 else 0.0)
    assert curriculum.course.open == 1
    curriculum.saw(names[0], 1.0)  # The oldest, which was passed, leaves the window.
    assert curriculum.course.open == 1
    for _ in range(needed):
        curriculum.saw(names[0], 1.0)
    assert (curriculum.course.open, curriculum.course.window[:1]) == (2, [])
    levels = Counter(LEVELS[name] for name in curriculum.draw(20))
    assert levels == {2: 17, 1: 3}


@given(st.sampled_from(["even", "pass_rate", "level"]), st.lists(rates, min_size=8, max_size=8))
def test_a_course_that_was_saved_goes_on_as_if_nothing_had_happened(order, found):
    straight = begun(order)
    for step in range(4):
        if step == 2:
            resumed = begun(order, course=Course(**asdict(straight.course)))
        for curriculum in [straight, *([resumed] if step >= 2 else [])]:
            taken = curriculum.draw(8)
            for name, rate in zip(taken, found, strict=True):
                curriculum.saw(name, rate)
    assert straight.course == resumed.course
