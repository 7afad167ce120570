"""Answers whose texts fit into their tokens, whatever a model writes."""

import json
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agents.roles import ROLES
from agents.visit.prompting import opening, response_format, schema_format
from agents.visit.quoting import answer_format
from chimera.config.sections.models import ModelConfig
from chimera.rubric.text import MAX_WORDS, words
from chimera.serving.client import Endpoint, HttpModel
from chimera.serving.requests.lengths import SHORTEST, WORDS, bounded


def schema_of(form):
    return form["json_schema"]["schema"]


def longest(schema):
    """The most letters that an answer may have, with all its quotes and commas; texts to choose from count a third."""
    if schema["type"] == "object":
        return sum(len(name) / 3 + 2 + longest(field) for name, field in schema["properties"].items())
    if schema["type"] == "array":
        return schema["maxItems"] * longest(schema["items"])
    if "enum" in schema:
        return max(map(len, schema["enum"])) / 3
    return schema["maxLength"] if schema["type"] == "string" else 5


@pytest.mark.parametrize("max_tokens", [400, 768])
@pytest.mark.parametrize("role", ROLES.values(), ids=ROLES)
def test_no_answer_of_a_role_can_be_cut_in_a_text(role, max_tokens):
    form = response_format(role)
    if evidence := schema_of(form)["properties"].get("evidence"):
        evidence["items"] = {"type": "string", "enum": ["x" * 150, "y" * 200, "z" * 100]}
    before = json.dumps(form)
    schema = schema_of(bounded(form, max_tokens))
    assert longest(schema) <= max_tokens
    assert longest(schema) > 0.6 * max_tokens or longest(schema) == longest(schema_of(form))
    assert json.dumps(form) == before


@pytest.mark.parametrize(("studies", "letters"), [(1, 160), (2, 160), (4, 125)])
def test_each_of_several_findings_counts_once(studies, letters):
    sources = [{"id": str(number), "text": "Of 500 adults fewer fell (p=0.01)."} for number in range(studies)]
    messages = opening(ROLES["Geneticist"], "Does it?", form="findings", sources=sources)
    schema = schema_of(bounded(answer_format(ROLES["Geneticist"], messages, "read"), 4000))
    finding = schema["properties"]["findings"]["prefixItems"][-1]["properties"]
    assert finding["condition"]["properties"]["says"]["maxLength"] == pytest.approx(letters, abs=2)


def test_what_fits_stays_as_it_is_and_no_text_becomes_too_short_to_say_anything():
    text = {"type": "string", "maxLength": 600}
    form = schema_format("x", {"type": "object", "properties": {"why": text, "free": {"type": "string"}}})
    assert bounded(form, 1000) == form
    assert schema_of(bounded(form, 8))["properties"]["why"]["maxLength"] == SHORTEST
    assert bounded({"type": "json_object"}, 8) == {"type": "json_object"}


@settings(max_examples=200, deadline=None)
@example([*["a"] * 24, "(n)"])
@given(st.lists(st.sampled_from(["a", "word", "it's", "x-ray", "0.5", "é", "(n=3)", ",", " ", "  "]), max_size=60))
def test_a_phrase_has_never_more_words_than_the_board_takes(pieces):
    text = " ".join(pieces)
    fits = re.search(WORDS, text) is not None
    assert not fits or len(words(text)) <= MAX_WORDS
    assert fits or len(re.findall(r"\w+", text)) > MAX_WORDS


def test_only_models_that_may_ramble_are_bounded():
    from chimera.serving.process import _endpoint

    form = response_format(ROLES["ProtocolDesigner"])
    for path, same in (("nano", True), ("some/model", False)):
        endpoint = _endpoint("http://x/v1", "junior", "none", ModelConfig(path=path))
        sent = HttpModel({"junior": endpoint}).request("junior", [], response_format=form)
        assert (sent["response_format"] == form) is same
    assert not Endpoint("http://x/v1", "m", "none").bounded
