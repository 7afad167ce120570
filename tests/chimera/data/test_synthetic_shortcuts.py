"""Generated tasks need every thing that the rule turns on: the reader, its blind versions, and the shortcuts."""

import pytest
from message_kit import refused

from benchmarks.shortcuts import measure
from chimera.core.types import Brief, Section
from chimera.data.generated.reader import ASPECTS, answer, asked_direction, asked_endpoint, read, read_direction


@pytest.fixture(scope="module")
def scores():
    """The benchmark's own measurement, on fewer tasks."""
    return measure(train_size=1000, test_size=600)


@pytest.mark.parametrize("aspect", ASPECTS)
@pytest.mark.parametrize("group", ["reader", "learned reader"])
def test_ignoring_one_thing_costs_at_least_15_points(scores, group, aspect):
    own = [score for score in scores if score.group == group]
    whole = next(score.accuracy for score in own if score.blind_to is None)
    blind = [score for score in own if score.blind_to == aspect]
    assert blind
    assert whole > 0.97
    for score in blind:
        assert whole - score.accuracy >= 0.15, score


def test_shortcuts_stay_under_70_percent(scores):
    own = {score.name: score.accuracy for score in scores if score.group == "shortcut"}
    assert len(own) == 4
    assert max(own.values()) < 0.70
    assert own["always the commonest label"] == pytest.approx(0.552, abs=0.05)


def brief(goal: str, results: str) -> Brief:
    return Brief(
        "t", goal, (Section("METHODS", "Groups were similar at baseline (p=0.40)."), Section("RESULTS", results))
    )


@pytest.mark.parametrize(
    ("goal", "results", "label", "blind"),
    [
        (
            "Does zaltrin lower pain score in men with gout?",
            "Pain score was higher in the zaltrin group than in the placebo group (52 vs 44 points, p=0.010).",
            "no",
            {"direction": "yes", "significance": "no"},
        ),
        (
            "Does zaltrin lower pain score in men with gout?",
            "Pain score was 41 points in the zaltrin group and 44 points in the placebo group (p=0.062).",
            "maybe",
            {"significance": "yes", "direction": "maybe"},
        ),
        (
            "Is intensity of pain lower with zaltrin in men with gout?",
            "Heart rate was higher in the zaltrin group than in the placebo group (90 vs 80 bpm, p=0.01). "
            "Pain score was 48 points in the placebo group and 44 points in the zaltrin group (95% CI -7.1 to -0.9).",
            "yes",
            {"endpoint": "maybe", "conflict": "yes"},
        ),
        (
            "Does the BELAN3 variant increase fall rate in veterans with gout?",
            "In the interim analysis, BELAN3 carriers had higher fall rate than non-carriers (30% vs 20%, p=0.03). "
            "In the final analysis, BELAN3 carriers had higher fall rate than non-carriers (23% vs 21%, p=0.61).",
            "no",
            {"conflict": "yes", "significance": "yes"},
        ),
        (
            "Does the BELAN3 variant increase fall rate in veterans with gout?",
            "At 6 weeks, BELAN3 carriers had higher fall rate than non-carriers (30% vs 20%, p=0.03). "
            "At 12 weeks, BELAN3 carriers had higher fall rate than non-carriers (23% vs 21%, p=0.61).",
            "maybe",
            {"conflict": "yes"},
        ),
    ],
)
def test_reader_on_sentences_written_by_hand(goal, results, label, blind):
    assert answer(brief(goal, results)) == label
    for aspect, wrong in blind.items():
        assert answer(brief(goal, results), aspect) == wrong


def test_reader_says_what_it_cannot_read():
    for verb in ("change", "lower or raise"):
        with pytest.raises(ValueError, match="no single direction"):
            asked_direction(f"Does zaltrin {verb} pain score?")
    with pytest.raises(ValueError, match="0 endpoints"):
        asked_endpoint("Does zaltrin lower the moon?")
    with pytest.raises(ValueError, match="no comparison of two groups"):
        read_direction("Pain score was 44 points.")
    with refused(ValueError, "t", "pain score"):
        answer(brief("Does zaltrin lower pain score?", "Nothing was measured."))


def test_reader_skips_sentences_without_a_statistic():
    results = "Pain score was measured at home. No deaths occurred."
    assert list(read(brief("Does zaltrin lower pain score?", results))) == []
