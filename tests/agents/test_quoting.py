"""What a role may quote: sentences that it has read, by schema, by number, or checked afterwards."""

import json
from string import ascii_lowercase, digits

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.roles import ROLES
from agents.schemas import MAX_QUOTE, Hypothesis
from agents.tools.text.excerpts import PARAGRAPH, split_sentences
from agents.visit.prompting import opening, tool_message
from agents.visit.quoting import (
    MAX_ENUM,
    answer_format,
    fault,
    numbered,
    numbers,
    passage_text,
    resolved,
    sentences,
    texts_read,
)
from agents.visit.sources import sources_seen, sources_within
from chimera.core.quotes import MIN_QUOTE_WORDS, occurs

SEARCH = "literature_search"
GENETICIST, REFINER = ROLES["Geneticist"], ROLES["HypothesisRefiner"]
FIRST, SECOND = "Pain fell by 3.2 points (p=0.03).", "In the final analysis pain did not fall (p=0.41)."
TEXT = f"METHODS: We asked 80 adults. RESULTS: {FIRST} {SECOND} Yes."
GOAL = "Does it lower pain?"
TRUE = {"evidence": [SECOND], "comparison": "lower", "claim": "it does not work", "answer": "no"}
FALSE = {**TRUE, "evidence": ["Pain fell by 3.3 points (p=0.03)."]}

# In pieces: one regular expression of the same texts takes ten times as long.
FIRST_WORDS = st.text(ascii_lowercase, min_size=3, max_size=9).map(str.capitalize)
WORDS = st.text(f"{ascii_lowercase}{digits}.,%=", min_size=1, max_size=9)
FURTHER_WORDS = st.lists(WORDS, min_size=3, max_size=30).map(" ".join)
SENTENCES = st.lists(st.builds("{} {}{}".format, FIRST_WORDS, FURTHER_WORDS, st.sampled_from(".?!")), max_size=8)


def hypothesis(*evidence):
    return Hypothesis(evidence=list(evidence), comparison="c", claim="c", answer="no")


def read(text=TEXT):
    return [*opening(GENETICIST, GOAL), tool_message("call", {"results": [{"id": "s-1", "text": text}]}, GOAL)]


def evidence_of(form):
    return form["json_schema"]["schema"]["properties"]["evidence"]


def test_the_schema_lists_the_sentences_that_were_read_without_headings_and_fragments():
    form = answer_format(GENETICIST, read(), "read")
    evidence, schema = evidence_of(form), form["json_schema"]["schema"]
    assert evidence["items"]["enum"] == ["We asked 80 adults.", FIRST, SECOND]
    assert (evidence["minItems"], evidence["maxItems"]) == (1, 3)
    jsonschema.validate(TRUE, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(FALSE, schema)


def test_who_has_read_nothing_can_quote_nothing():
    schema = answer_format(GENETICIST, opening(GENETICIST, GOAL), "read")["json_schema"]["schema"]
    jsonschema.validate({**TRUE, "evidence": []}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(TRUE, schema)


def test_free_quotes_are_not_listed_and_one_is_needed():
    evidence = evidence_of(answer_format(GENETICIST, read(), "free"))
    assert "enum" not in evidence["items"]
    assert evidence["minItems"] == 1
    assert fault(hypothesis("anything at all"), read(), "free") is None
    assert "quote at least one sentence" in str(fault(hypothesis(), read(), "free"))


def test_who_is_shown_no_passage_may_repeat_the_evidence_that_it_was_handed():
    debating = opening(GENETICIST, GOAL, hypotheses=[{**TRUE, "author": "you"}])
    for role, messages in ((REFINER, opening(REFINER, GOAL, hypothesis=TRUE)), (GENETICIST, debating)):
        assert evidence_of(answer_format(role, messages, "read"))["items"]["enum"] == [SECOND]
    shown = opening(REFINER, GOAL, sources=[{"id": "s-1", "text": TEXT}], hypothesis=FALSE)
    assert FALSE["evidence"][0] not in evidence_of(answer_format(REFINER, shown, "read"))["items"]["enum"]


def test_the_mark_of_a_gap_is_no_part_of_a_quote():
    assert sentences([f"{FIRST} [...] {SECOND}"]) == [FIRST, SECOND]


@given(SENTENCES)
def test_numbered_sentences_stay_apart_for_whoever_reads_them_next(parts):
    low = [part[0].lower() + part[1:] for part in parts]
    (passage,) = numbered([{"id": "s", "text": PARAGRAPH.join(low)}])
    assert sentences([passage_text(passage)]) == list(passage["sentences"].values())


def test_roles_that_do_not_quote_keep_their_schema():
    peer = ROLES["PeerReviewer"]
    messages = opening(peer, GOAL, sources=[{"id": "s-1", "text": TEXT}])
    assert answer_format(peer, messages, "read") == answer_format(peer, messages, "free")


def test_more_sentences_than_servers_take_are_checked_instead_of_listed():
    text = " ".join(f"Sentence number {number} says this." for number in range(MAX_ENUM + 1))
    assert "enum" not in evidence_of(answer_format(GENETICIST, read(text), "read"))["items"]
    assert fault(hypothesis("Sentence number 7 says this."), read(text), "read") is None


@given(st.lists(SENTENCES | st.lists(st.sampled_from([FIRST, SECOND, "It is so."]), max_size=4), max_size=4))
def test_every_listed_sentence_of_any_passages_stands_word_for_word(passages):
    texts = [" ".join(parts) for parts in passages]
    for sentence in sentences(texts):
        assert occurs(sentence, texts), sentence
        assert len(sentence.split()) >= MIN_QUOTE_WORDS
        assert len(sentence) <= MAX_QUOTE


def test_a_sentence_that_is_too_long_is_cut_between_words():
    text = "It " + "really " * 200 + "works."
    (sentence,) = sentences([text])
    assert len(sentence) <= MAX_QUOTE
    assert occurs(sentence, [text])


def test_splitting_is_linear_in_dots():
    """Each dot was once tried with all dots that follow it."""
    assert [one.text for one in split_sentences("." * 200_000)] == ["." * 200_000]


def test_numbered_sentences_are_read_back():
    first = numbered([{"id": "s-1", "text": TEXT}])
    messages = [*opening(GENETICIST, GOAL), tool_message("a", {"results": first}, GOAL)]
    second = numbered([{"id": "s-2", "text": "Nobody was harmed here."}], messages)
    messages.append(tool_message("b", {"results": second}, GOAL))
    assert numbers(messages) == {"1": "We asked 80 adults.", "2": FIRST, "3": SECOND, "4": "Nobody was harmed here."}
    assert evidence_of(answer_format(GENETICIST, messages, "numbered"))["items"]["enum"] == ["1", "2", "3", "4"]
    assert resolved(hypothesis("3", "4"), messages) == hypothesis(SECOND, "Nobody was harmed here.")
    assert fault(resolved(hypothesis("3"), messages), messages, "numbered") is None
    assert "'9' stands in no passage" in str(fault(resolved(hypothesis("9"), messages), messages, "numbered"))
    assert [source["id"] for source in sources_seen({"Geneticist": messages})] == ["s-1", "s-2"]


def juniors_read(society_kit, *answers):
    """A model whose Geneticist searches and then gives `answers`, and a toolbox with the passage."""
    model = society_kit.Model(Geneticist=[[(SEARCH, {"query": "q"})], *answers])
    return model, society_kit.Toolbox({"q": TEXT})


@pytest.mark.parametrize("second", [TRUE, FALSE], ids=["mended", "left to the reviewers"])
async def test_a_false_quote_is_asked_for_once_more_with_the_fault_named(society_kit, second):
    model, toolbox = juniors_read(society_kit, FALSE, second)
    state = await society_kit.make(model, toolbox, quotes="read").run(society_kit.brief)
    told = json.loads(model.of("Geneticist")[-1].messages[-1]["content"])
    assert "'Pain fell by 3.3 points (p=0.03).' stands in no passage that you have read" in told["error"]
    assert state["initial_hypotheses"][0]["evidence"] == second["evidence"]


async def test_numbers_are_resolved_before_anybody_else_reads_them(society_kit):
    model, toolbox = juniors_read(society_kit, {**TRUE, "evidence": ["3"]})
    state = await society_kit.make(model, toolbox, quotes="numbered").run(society_kit.brief)
    assert state["initial_hypotheses"][0]["evidence"] == [SECOND]
    results = json.loads(state["messages"]["Geneticist"][3]["content"])["results"]
    assert results == [{"id": "q", "sentences": {"1": "We asked 80 adults.", "2": FIRST, "3": SECOND}}]


@pytest.mark.parametrize(("most", "seen"), [(1200, [{"id": "q", "text": TEXT}]), (0, None)])
async def test_the_refiner_reads_the_passages_that_the_juniors_found(society_kit, most, seen):
    model, toolbox = juniors_read(society_kit, TRUE)
    await society_kit.make(model, toolbox, quotes="free", refiner_max_chars=most).run(society_kit.brief)
    payload = json.loads(model.of("HypothesisRefiner")[0].messages[1]["content"])
    assert payload.get("sources") == seen


def test_the_passage_that_was_quoted_comes_first_and_what_does_not_fit_is_left_out():
    sources = [{"id": "a", "text": "Nothing here at all. " * 10}, {"id": "b", "text": TEXT}]
    assert [one["id"] for one in sources_within(sources, [SECOND], 1000)] == ["b", "a"]
    assert sources_within(sources, [SECOND], len(TEXT)) == [sources[1]]
    (cut,) = sources_within(sources, [SECOND], 120)
    assert SECOND in cut["text"]
    assert len(cut["text"]) <= 120
    assert sources_within([], [SECOND], 100) == []


def test_texts_are_those_of_the_visit_alone():
    messages = opening(REFINER, GOAL, sources=[{"id": "s", "text": TEXT}], hypothesis=TRUE, justification="x")
    assert texts_read(messages) == [TEXT]


CHINESE = "方法：将90例患者随机分为两组。结果：锌组复发率为12.5%，低于对照组。"


def test_sentences_without_spaces_can_be_quoted():
    assert sentences([CHINESE]) == ["方法：将90例患者随机分为两组。", "结果：锌组复发率为12.5%，低于对照组。"]


@pytest.mark.parametrize(
    ("quote", "text", "is_quote"),
    [
        ("锌组复发率为12.5%", CHINESE, True),
        ("患者随机分为两组", CHINESE, True),
        ("患者随机 分为两组", "将90例患者随机分为两\n组。", True),
        ("复发率", CHINESE, False),
        ("锌组复发率为12.5%，高于对照组", CHINESE, False),
        ("锌组复发率为12", CHINESE, False),
        ("罹病期間は2日短縮", "亜鉛で罹病期間は2日短縮した。", True),
        ("COVID感染率は低い", "患者のCOVID感染率は低い。", True),
        ("OVID感染率は低い", "患者のCOVID感染率は低い。", False),
        ("pain did not fall", "In all pain did not fall.", True),
        ("ain did not fall", "In all pain did not fall.", False),
    ],
)
def test_quotes_occur_where_words_have_no_spaces_between_them(quote, text, is_quote):
    assert occurs(quote, [text]) is is_quote
