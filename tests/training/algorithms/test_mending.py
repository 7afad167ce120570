"""Pairs of an answer in parts and the same answer mended by the right parts of others."""

import json
from dataclasses import replace

import pytest
from branch_kit import REFINER, Answers, render_of
from hypothesis import given
from hypothesis import strategies as st

from agents.findings import FINDINGS, findings_right, share_right
from agents.roles import ROLES
from agents.visit.prompting import opening
from chimera.core.weighing import Vote
from chimera.serving.embedded.checkpoint import NANO, load_language
from training.algorithms.pairs import all_pairs, that_mend
from training.learning.groups import AnswerGroup, Valued
from training.learning.mending import encoder, findings_at
from training.learning.states import states_of
from training.learning.values import Worth

JUNIOR = "Geneticist"
STUDIES = ("a-1", "a-2", "a-3")
VOTES = tuple(Vote(study, "yes", 2) for study in STUDIES)
TEXTS = st.sampled_from([{}, {"indent": 1}, {"separators": (",", ":")}])


def finding(study, right):
    """A finding of a study; the quotes hold what looks like the end of a finding."""
    same = {"says": "falls", "asked": "falls", "same": True}
    return {
        "study": study, "quote": f'"findings": [{{"]}}, {study} {right}', "retracted": not right, "design": "trial",
        "size": 200, "group": same, "condition": same, "outcome": same,
        "direction": {"says": "lower", "asked": "lower", "same": True}, "significance": "significant", "answer": "yes",
    }  # fmt: skip


def text_of(rights, **form):
    """An answer with a finding of each study of `rights`, right or wrong."""
    findings = [finding(study, right) for study, right in rights.items()]
    return json.dumps({"findings": findings, "search": ""}, **form)


def letters(state, call):
    return tuple(call.asked.choice["message"]["content"].encode())


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Answers(tmp_path_factory.mktemp("mending"))


@pytest.fixture(scope="module")
def state(bench):
    (recorded,) = states_of(bench.episode(bench.earlier[0]), [REFINER])
    sources = [{"id": study, "text": "It fell."} for study in STUDIES]
    messages = opening(ROLES[JUNIOR], "Does it fall?", form=FINDINGS, sources=sources)
    call = replace(recorded.call, role=JUNIOR, asked=replace(recorded.call.asked, role=JUNIOR, messages=messages))
    visit = replace(recorded.conversation, role=JUNIOR, messages=[*messages, {"role": "assistant", "content": ""}])
    return replace(recorded, call=call, conversation=visit, votes=VOTES)


def group_of(state, texts, encode=letters):
    """A group with these answers, each worth the share of its findings that is right."""
    valued = []
    for text in texts:
        sampled = {"logprobs": {"content": [{"logprob": -1.0}]}}
        choice = {**state.call.asked.choice, **sampled, "message": {"role": "assistant", "content": text}}
        call = replace(state.call, asked=replace(state.call.asked, choice=choice))
        call = replace(call, response_ids=encode(state, call))
        valued.append(Valued(call, Worth(share_right(call.answer, state.votes), {}, "direct")))
    return AnswerGroup(state, tuple(valued), {"stale": 0, "unvalued": 0})


@given(st.lists(st.tuples(st.lists(st.booleans(), max_size=3), TEXTS), max_size=5), st.integers(1, 4))
def test_the_preferred_answer_is_the_other_one_with_all_that_any_answer_has_right(state, drawn, most):
    rights = [dict(zip(STUDIES, right, strict=False)) for right, _ in drawn]
    group = group_of(state, [text_of(right, **form) for right, (_, form) in zip(rights, drawn, strict=True)])
    pairs = that_mend(group, most, letters)
    some_right = {study for right in rights for study, is_right in right.items() if is_right}
    mendable = {
        valued.call.response_ids: sum(study in some_right and not is_right for study, is_right in right.items())
        for valued, right in zip(group.answers, rights, strict=True)
    }
    assert len(pairs) == min(most, sum(count > 0 for count in mendable.values()))
    counts = [mendable[pair.rejected.response_ids] for pair in pairs]
    assert counts == sorted(counts, reverse=True)
    assert all(count > 0 for count in counts)
    for pair in pairs:
        right_of = {side: findings_right(side.answer, VOTES) for side in (pair.chosen, pair.rejected)}
        assert pair.kind == "mended"
        studies = [finding.study for finding in pair.rejected.answer.findings]
        assert [finding.study for finding in pair.chosen.answer.findings] == studies
        for before, after in zip(pair.rejected.answer.findings, pair.chosen.answer.findings, strict=True):
            assert right_of[pair.chosen][after.study] == (before.study in some_right)
            assert before == after or not right_of[pair.rejected][before.study]
        assert pair.chosen.response_ids == letters(state, pair.chosen)
        assert pair.chosen.log_probs is None


@given(st.lists(st.booleans(), max_size=3), TEXTS)
def test_findings_stand_where_they_are_said_to_stand(rights, form):
    text = text_of(dict(zip(STUDIES, rights, strict=False)), **form)
    places = findings_at(text)
    assert {study: json.loads(text[place]) for study, place in places.items()} == {
        finding["study"]: finding for finding in json.loads(text)["findings"]
    }
    assert findings_at('{"evidence": []}') == {}


def test_mended_pairs_take_the_place_of_pairs_by_worth(state):
    rights = [{"a-1": True, "a-2": False}, {"a-1": False, "a-2": True}]
    group = group_of(state, [text_of(right) for right in rights])
    assert not group.informs
    pairs = all_pairs([group], 2, 0.0, 0, lambda group: that_mend(group, 2, letters))
    assert [pair.kind for pair in pairs] == ["mended"] * 2
    [best, worst] = group_of(state, [text_of({"a-1": True, "a-2": True}), text_of({"a-1": True})]).answers
    nothing_wrong = AnswerGroup(state, (best, worst), {"stale": 0, "unvalued": 0})
    pairs = all_pairs([nothing_wrong], 2, 0.0, 0, lambda group: that_mend(group, 2, letters))
    assert [(pair.kind, pair.chosen, pair.rejected) for pair in pairs] == [("worth", best.call, worst.call)]


def test_mended_tokens_are_those_that_the_server_would_have_sampled(bench, state):
    encode = encoder(render_of(bench))
    group = group_of(state, [text_of({"a-1": False}), text_of({"a-1": True})], encode)
    [pair] = that_mend(group, 2, encode)
    assert pair.chosen.response_ids == group.answers[1].call.response_ids
    decoded = load_language(NANO).tokenizer.decode(pair.chosen.response_ids, skip_special_tokens=True)
    assert decoded == text_of({"a-1": True})


def test_an_answer_whose_tokens_cannot_be_made_again_is_in_no_mended_pair(state):
    """Its preferred side would differ from it by how tokens were split, everywhere."""
    group = group_of(state, [text_of({"a-1": False}), text_of({"a-1": True})])
    other_tokens = tuple(
        replace(valued, call=replace(valued.call, response_ids=(*valued.call.response_ids, 0)))
        for valued in group.answers
    )
    assert that_mend(replace(group, answers=other_tokens), 2, letters) == []
