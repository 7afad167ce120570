"""Fingerprints find a text's runs of words in other texts, and hold none of its words."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.core.quotes import RUN, fingerprint

WORDS = st.lists(st.text("abcxyz", min_size=1, max_size=6), min_size=1, max_size=30)


@given(ours=WORDS, before=WORDS, after=WORDS, data=st.data())
def test_any_run_of_a_text_is_found_wherever_it_stands(ours, before, after, data):
    length = min(RUN, len(ours))
    start = data.draw(st.integers(0, len(ours) - length))
    text = " ".join([*before, *ours[start : start + length], *after])
    assert fingerprint(" ".join(ours), "s").occurs_in(text.upper())


@given(ours=WORDS, others=st.lists(st.text("defghi", min_size=1, max_size=6), max_size=30), data=st.data())
def test_fewer_words_than_a_run_are_not_found(ours, others, data):
    length = min(RUN, len(ours)) - 1
    start = data.draw(st.integers(0, len(ours) - length))
    assert not fingerprint(" ".join(ours), "s").occurs_in(" ".join([*others, *ours[start : start + length], *others]))


def test_a_short_text_is_one_run():
    print_ = fingerprint("Zinc does not work.", "s")
    assert (print_.length, len(print_.digests)) == (4, 1)
    assert print_.occurs_in("They say that zinc does NOT work, sadly.")
    assert not print_.occurs_in("Zinc does work.")


@pytest.mark.parametrize("text", ["", " ?! "])
def test_a_text_without_words_occurs_nowhere(text):
    assert not fingerprint(text, "s").occurs_in("some text")
    assert not fingerprint(text, "s").occurs_in("")


def test_the_text_is_not_in_it_and_salts_keep_texts_apart():
    one, other = (
        fingerprint("a chimaera is no chimera at all", "1"),
        fingerprint("a chimaera is no chimera at all", "2"),
    )
    assert not one.digests & other.digests
    assert b"chimaera" not in pickle.dumps(one)
