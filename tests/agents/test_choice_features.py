"""Features: what a policy sees of hypotheses, from their quotes, statistics and directions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.context import Candidates
from agents.policies.features import HASHED_LENGTH, feature_names, features
from chimera.config.roles import JUNIORS
from chimera.core.abstracts import Passages, direction, significance, stems
from chimera.core.types import LABELS

texts = st.text(max_size=60) | st.sampled_from(
    ["asked lower; found lower, p=0.13", "95% CI -1.2 to 3.4 in RR", "(((", ""]
)
hypotheses_of = st.tuples(
    *(
        st.fixed_dictionaries(
            {
                "author": st.just(author),
                "evidence": st.lists(texts, min_size=1, max_size=3),
                "comparison": texts,
                "claim": texts,
                "answer": st.sampled_from(LABELS),
            }
        )
        for author in JUNIORS
    )
)


@settings(max_examples=80, deadline=None)
@given(goal=texts, hypotheses=hypotheses_of, sources=st.lists(texts, max_size=2), order=st.permutations(range(3)))
def test_features_of_any_texts_are_bounded_and_belong_to_the_hypothesis_not_its_place(goal, hypotheses, sources, order):
    passages = [{"id": str(number), "text": text} for number, text in enumerate(sources)]
    rows = features(Candidates(goal, hypotheses, passages), 32)
    assert rows.shape == (3, len(feature_names(32)))
    named, hashed = rows[:, :-32], rows[:, -32:]
    assert ((named >= 0) & (named <= 1)).all()
    assert (np.linalg.norm(hashed, axis=1) <= 2 * HASHED_LENGTH + 1e-9).all()
    moved = features(Candidates(goal, [hypotheses[at] for at in order], passages), 32)
    assert moved == pytest.approx(rows[list(order)], abs=1e-12)
    half = named.shape[1] // 2
    assert named[:, half:] == pytest.approx(np.tile(named[:, :half].mean(axis=0), (3, 1)))
    assert (features(Candidates(goal, hypotheses, passages), 0) == named).all()


def hypothesis(author, answer="yes"):
    quotes, restated = ["Pain was lower (p=0.01)."], "asked lower; found lower, p=0.01, significant"
    return {"author": author, "evidence": quotes, "comparison": restated, "claim": "it helps", "answer": answer}


def cue(name, candidates, at=0):
    return features(candidates, 0)[at][feature_names(0).index(name)]


SOURCE = {
    "id": "1",
    "text": "Pain was lower in the drug group (p=0.01). Weight was higher in the drug group (p=0.62). All lived.",
}


def test_cues_tell_a_good_quote_from_a_wrong_and_an_invented_one():
    good, wrong, invented = (hypothesis(name) for name in JUNIORS)
    good["evidence"] = ["Pain was lower in the drug group (p=0.01)."]
    wrong["evidence"] = ["Weight was higher in the drug group (p=0.62)."]
    invented["evidence"] = ["Pain was lower in the drug group (p=0.04)."]
    candidates = Candidates("Does the drug lower pain?", [good, wrong, invented], [SOURCE])
    found = {
        name: [cue(name, candidates, at) for at in range(3)]
        for name in ("quotes verbatim", "relevant quoted", "quotes beside the point", "yes: significant, same")
    }
    assert found["quotes verbatim"] == [1, 1, 0]
    assert found["relevant quoted"] == [1, 0, 1]
    assert found["quotes beside the point"] == [0, 1, 0]
    assert found["yes: significant, same"] == [1, 0.5, 1]
    assert cue("question in quotes", candidates, 0) > cue("question in quotes", candidates, 1)


def test_agreement_counts_the_others_with_the_same_answer():
    answers = ["yes", "no", "yes"]
    candidates = Candidates("Q?", [hypothesis(*pair) for pair in zip(JUNIORS, answers, strict=True)], ())
    assert [cue("agreement", candidates, at) for at in range(3)] == [0.5, 0, 0.5]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Mortality fell (p=0.03).", "significant"),
        ("P < .001 for all", "significant"),
        ("(P = 0.06)", "borderline"),
        ("p>0.05", "not significant"),
        ("difference 1.2, 95% CI -0.4 to 2.8", "not significant"),
        ("difference 1.2, 95% CI 0.4 to 2.8", "significant"),
        ("OR 1.4 (95% CI: 0.9-2.1)", "not significant"),
        ("hazard ratio 0.7; 95% CI 0.5, 0.9", "significant"),
        ("p=0.01 at first, p=0.4 later", "mixed"),
        ("There was no significant difference", "not significant"),
        ("the difference was not statistically significant", "not significant"),
        ("a significant rise", "significant"),
        ("a trend towards fewer deaths", "borderline"),
        ("Twelve patients were included.", "unstated"),
        ("95% CI \u22120.3 to 0.5", "not significant"),
        ("risk difference 0.02 (95% CI -0.01 to 0.05)", "not significant"),
        ("aOR 1.2 (95% CI 0.9 to 1.6)", "not significant"),
        ("odds ratios 1.2 (95% CI 0.9 to 1.6)", "not significant"),
    ],
)
def test_statistics_are_read_as_abstracts_print_them(text, expected):
    assert significance([text]) == expected


@pytest.mark.parametrize(
    ("goal", "text", "restated", "expected"),
    [
        ("Does it reduce pain?", "pain was lower", False, "same"),
        ("Does it raise weight?", "weight decreased", False, "opposite"),
        ("Does it raise weight?", "asked higher; found lower", True, "opposite"),
        ("Does it raise weight?", "asked higher; found higher", True, "same"),
        ("Does it raise weight?", "asked higher; found lower; found higher", True, "mixed"),
        ("Does it raise weight?", "weight was 80 and 82 kg", False, "unstated"),
        ("Is it safe?", "pain was lower", False, "unstated"),
        ("Is fall rate at risk lower?", "fall rate was lower, risk too", False, "same"),
    ],
)
def test_directions_are_seen_from_the_question(goal, text, restated, expected):
    assert direction(goal, [text], restated=restated) == expected


def test_relevant_sentences_give_a_statistic_and_share_most_with_the_question():
    passages = Passages.of(stems("Does the drug lower pain?"), [SOURCE["text"], "The drug lowers pain, we think."])
    assert [passages.sentences[at] for at in passages.relevant] == ["Pain was lower in the drug group (p=0.01)."]
    assert passages.origin("pain was lower in the drug group")[0] == 0
