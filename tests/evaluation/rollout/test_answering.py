"""The temperature at which the society answers."""

from hypothesis import given
from hypothesis import strategies as st

from chimera.config.roles import JUDGE
from chimera.serving.client import Endpoint
from evaluation.rollout.answering import answering
from training.configuration import load_config

CONFIG = load_config(None, [])
TEMPERATURES = st.floats(0, 2)


def endpoints(temperature):
    return {slot: Endpoint("http://127.0.0.1:1/v1", slot, "key", temperature=temperature) for slot in CONFIG.models}


@given(own=TEMPERATURES, asked=st.none() | TEMPERATURES)
def test_no_slot_is_sampled_hotter_than_asked_or_than_its_own_and_the_judge_keeps_its_own(own, asked):
    answers = answering(endpoints(own), CONFIG, asked)
    judge = CONFIG.slot(JUDGE)
    assert answers.keys() == CONFIG.models.keys()
    assert answers[judge].temperature == own
    expected = own if asked is None else min(own, asked)
    assert {one.temperature for slot, one in answers.items() if slot != judge} == {expected}
