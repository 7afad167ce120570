"""Excerpts of abstracts, and cleaned text."""

from hypothesis import given, settings
from hypothesis import strategies as st

from agents.tools.text.excerpts import GAP, excerpt, split_sentences
from agents.tools.text.passages import clean

ABSTRACT = (
    "BACKGROUND: Colds are common. Nobody likes them. METHODS: We asked 90 adults, e.g. Dr. Smith vs. others, to help. "
    "RESULTS: Zinc cut the duration by 2.7 days (p = .002; 95% CI 1.1 to 4.3). Taste was bad. Fever did not differ."
)


def test_a_short_text_is_returned_unchanged():
    assert excerpt(ABSTRACT, "zinc", len(ABSTRACT)) == ABSTRACT


def test_sentences_end_at_full_stops_only():
    assert [(sentence.label, sentence.text) for sentence in split_sentences(ABSTRACT)] == [
        ("BACKGROUND", "Colds are common."),
        ("BACKGROUND", "Nobody likes them."),
        ("METHODS", "We asked 90 adults, e.g. Dr. Smith vs. others, to help."),
        ("RESULTS", "Zinc cut the duration by 2.7 days (p = .002; 95% CI 1.1 to 4.3)."),
        ("RESULTS", "Taste was bad."),
        ("RESULTS", "Fever did not differ."),
    ]


def test_results_with_statistics_about_the_question_stay():
    assert excerpt(ABSTRACT, "Does zinc shorten the duration?", 100) == (
        "RESULTS: Zinc cut the duration by 2.7 days (p = .002; 95% CI 1.1 to 4.3). Taste was bad."
    )


def test_results_stay_before_other_sections_and_statistics_before_other_sentences():
    text = (
        "METHODS: We looked at them all day. RESULTS: We looked at them all day. It went up with p=0.03. It went away."
    )
    assert excerpt(text, "zinc", 48) == "RESULTS: It went up with p=0.03. It went away."
    assert excerpt(text, "zinc", 45) == "RESULTS: It went up with p=0.03."
    plain = "METHODS: They were all very well. RESULTS: They were all quite well."
    assert excerpt(plain, "zinc", 40) == "RESULTS: They were all quite well."


def test_a_gap_inside_a_section_is_marked():
    text = "RESULTS: Zinc worked with p=0.01. Nothing else was seen in this long sentence. Zinc was safe in 9 of 9."
    assert excerpt(text, "zinc", 80) == f"RESULTS: Zinc worked with p=0.01. {GAP} Zinc was safe in 9 of 9."


def test_labels_without_a_space_before_them_are_seen():
    labels = [sentence.label for sentence in split_sentences("GOAL: To learn.STUDY: We looked.RESULTS:  It was 5.")]
    assert labels == ["GOAL", "STUDY", "RESULTS"]


def test_a_sentence_longer_than_the_limit_is_cut_between_words():
    text = "RESULTS: " + "zinc helped patients " * 30
    cut = excerpt(text, "zinc", 100)
    assert len(cut) <= 100
    assert cut == ("zinc helped patients " * 30)[: len(cut)]
    assert cut.rsplit(" ", 1)[1] in ("zinc", "helped", "patients")


WORDS = st.text(alphabet="abcdefgh 0123456789.,;:()?!<>=%-é\u2009", min_size=1, max_size=60)
SECTIONS = st.lists(
    st.tuples(st.sampled_from(["METHODS", "RESULTS", "MAIN OUTCOME"]), st.lists(WORDS, min_size=1, max_size=6))
)


@given(sections=SECTIONS, query=st.text(max_size=50), max_chars=st.integers(min_value=100, max_value=400))
@settings(max_examples=200, deadline=None)
def test_excerpts_are_whole_verbatim_sentences_within_the_limit(sections, query, max_chars):
    text = " ".join(f"{label}: {'. '.join(body)}." for label, body in sections)
    short = excerpt(text, query, max_chars)
    assert len(short) <= max_chars
    whole = {sentence.text for sentence in split_sentences(text)}
    for sentence in split_sentences(short):
        for part in sentence.text.split(GAP):
            assert part.strip() in text
    if len(text) > max_chars and any(len(sentence) <= max_chars - 20 for sentence in whole):
        assert any(sentence in short for sentence in whole)


@given(st.text())
def test_clean_text_is_printable_and_stays_clean(text):
    once = clean(text)
    assert clean(once) == once
    assert all(character.isprintable() or character.isspace() for character in once)
    assert not set(once) & {"\n", "\t", "\r", "\x00", "\x1b", "\u2028", "\x85"}
    once.encode()
