"""JSON schemas of users as grammars: what is accepted, what is refused in one line, and that every value is valid."""

import json
import random
import re

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema.validators import validator_for
from stream_kit import TOOL
from tokenizers import Tokenizer

from chimera.serving.embedded.grammar import Grammars, ToolStyle, allowed_tokens, schema_grammar, tools_grammar
from chimera.serving.embedded.protocol import BadRequest

A, B = {"type": "object", "properties": {"a": {"const": 1}}}, {"type": "object", "properties": {"b": {"const": 1}}}
KINDS = [{"properties": {"kind": {"const": kind}, kind: {"const": 1}}, "required": ["kind"]} for kind in "xy"]
TREE = {"type": "object", "properties": {"sub": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}
ABC = {"properties": {name: {"const": 1} for name in "abc"}}
EXACT = {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"], "additionalProperties": False}
TAGS = ("<tool_call>", "</tool_call>")
CALL = '<tool_call>{"name":"literature_search","arguments":{"query":"p"}}</tool_call>'
SPACED_CALL = '<tool_call>\n{"name": "literature_search", "arguments": {"query": "p"}}\n</tool_call>'
SPACED = ToolStyle("\n", ": ", ", ", ": ", ", ", "\n", "\n")


@pytest.fixture(scope="module")
def tokenizer(serving_model):
    return Tokenizer.from_file(str(serving_model() / "tokenizer.json"))


@pytest.fixture(scope="module")
def grammars(tokenizer):
    return Grammars(tokenizer, 512, [tokenizer.token_to_id("<|im_end|>")])


@pytest.fixture(scope="module")
def check(tokenizer, grammars):
    """Asserts which texts a grammar accepts: byte by byte, but for the tags of calls, which are tokens."""

    def tokens(text):
        for piece in re.split("(</?tool_call>)", text):
            if piece in TAGS:
                yield tokenizer.token_to_id(piece)
            else:
                yield from (grammars.ordinary[bytes([byte])] for byte in piece.encode())

    def check(grammar, accepted, refused):
        def accepts(text):
            matcher, ids = grammars.matcher(grammar, "response_format"), list(tokens(text))
            return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

        assert [text for text in accepted if not accepts(text)] == []
        assert [text for text in refused if accepts(text)] == []

    return check


@pytest.mark.parametrize(
    ("schema", "accepted", "refused"),
    [
        (EXACT, ['{"a":"x"}'], ['{"a": "x"}', '{"a":"y"}', "{}", "", CALL]),
        (A, ['{"a":1}', "{}"], ['{"a":1,"z":2}', "[]"]),
        ({"properties": {"a": {"const": 1}}}, ['{"a":1}'], ['{"z":2}', "7"]),
        (A | {"additionalProperties": True}, ['{"a":1,"z":2}'], ['{"a":2}']),
        (A | {"required": ["a", "z"]}, ['{"a":1,"z":[]}'], ['{"a":1}', '{"a":1,"z":0,"y":0}']),
        ({"type": "object", "properties": {}}, ["{}"], ['{"z":2}']),
        ({"type": "object"}, ["{}", '{"z":2}'], ["1"]),
        ({"type": "object", "patternProperties": {"^a": {"const": 1}}}, ['{"ab":1}'], ['{"b":1}']),
        ({"properties": {"o": A}}, ['{"o":{"a":1}}'], ['{"o":{"z":1}}']),
        ({"allOf": [A, B]}, ['{"a":1,"b":1}', "{}"], ['{"a":1,"z":2}']),
        ({"allOf": [A, B | {"additionalProperties": {}}]}, ['{"b":1,"z":2}'], ['{"b":2}']),
        (A | {"unevaluatedProperties": False}, ['{"a":1}'], ['{"z":2}']),
        (A | {"unevaluatedProperties": True, "allOf": [B]}, ['{"a":1,"z":2}'], ['{"b":2}']),
        ({"anyOf": [A, B]}, ['{"a":1}', '{"b":1}'], ['{"a":1,"b":1}']),
        (A | {"anyOf": KINDS}, ['{"a":1,"kind":"x","x":1}'], ['{"a":1,"kind":"x","y":1}', '{"a":1}']),
        ({"$ref": "#/$defs/tree", "$defs": {"tree": TREE}}, ['{"sub":[{"sub":[]}]}'], ['{"sub":[{"z":1}]}']),
        ({"$ref": "#/x~1y/0", "x/y": [A]}, ['{"a":1}'], ['{"z":1}']),
        ({"oneOf": [{"const": 1}, {"type": "string", "enum": ["s"]}]}, ["1", '"s"'], ["2"]),
        ({"oneOf": KINDS}, ['{"kind":"x","x":1}', '{"kind":"y"}'], ['{"kind":"z"}', '{"kind":"x","y":1}']),
        (ABC | {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, ['{"a":1}', '{"b":1,"c":1}'], ['{"a":1,"b":1}']),
        ({"type": "string", "not": {"enum": ["ab", ""]}}, ['"a"', '"abc"', '"ac"'], ['"ab"', '""']),
        ({"type": "string", "not": {"enum": ['say "a"', "a\\b"]}}, ['"say"'], [r'"say \"a\""', r'"a\\b"']),
        ({"type": "string", "pattern": r'^[^\\/:*?"<>|]+$'}, ['"a.txt"'], [r'"a\"b"', r'"a\\b"']),
        ({"type": "object", "patternProperties": {'^[^"]+$': {"const": 1}}}, ['{"a":1}'], [r'{"a\"b":1}']),
        ({"type": "string", "not": {"pattern": "^[ab]+$"}}, ['"abc"', '""'], ['"ab"']),
        (ABC | {"not": {"required": ["a", "b"]}}, ['{"a":1}', '{"b":1,"c":1}'], ['{"a":1,"b":1}']),
        (ABC | {"dependencies": {"a": ["b"]}}, ['{"c":1}', '{"a":1,"b":1}'], ['{"a":1}']),
        (ABC | {"dependentRequired": {"a": ["b"]}}, ['{"b":1}', '{"a":1,"b":1}'], ['{"a":1,"c":1}']),
        (ABC | {"dependentSchemas": {"a": {"required": ["c"]}}}, ['{"a":1,"c":1}'], ['{"a":1}']),
        (ABC | {"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"required": ["c"]}},
         ['{"a":1,"b":1}', '{"c":1}'], ['{"a":1}', "{}"]),
        ({"type": "array", "items": {"enum": ["a", 1]}, "uniqueItems": True}, ["[]", '[1,"a"]'], ["[1,1]"]),
        ({"items": {"enum": ["a", "a"]}, "uniqueItems": True, "enum": [["a"], ["a", "a"]]}, ['["a"]'], ['["a","a"]']),
        ({"type": "array", "items": {"type": "string"}, "uniqueItems": True, "maxItems": 1}, ['["a"]'], ['["a","a"]']),
        ({"propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"const": 1}}, ['{"b":1}'], ['{"c":1}']),
        (ABC | {"minProperties": 1}, ['{"c":1}', '{"a":1,"b":1}'], ["{}"]),
        (ABC | {"propertyNames": {"enum": ["a", 1]}}, ['{"a":1}'], ['{"b":1}', '{"1":1}']),
        (ABC | {"propertyNames": False}, ["{}"], ['{"a":1}']),
        ({"propertyNames": {"pattern": "^[bz]"}, "type": "object"}, ['{"b":1,"z":[]}'], ['{"a":1}', '{"y":1}']),
        ({"type": "string", "format": "a-format-of-ours"}, ['"x"'], ["1"]),
        ({"type": "string", "format": "date"}, ['"2020-02-01"'], ['"x"']),
        ({"type": "integer", "x-order": {"not": {}}, "nullable": True}, ["1"], ["null"]),
    ],
)  # fmt: skip
def test_schemas_accept(check, schema, accepted, refused):
    check(schema_grammar(schema), accepted, refused)
    for text in accepted:
        jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize(
    ("parameters", "accepted", "refused"),
    [
        (None, ["{}"], ['{"a":1}']),
        ({}, ["{}"], ['{"a":1}', "[]"]),
        ({"type": "object"}, ["{}"], ['{"a":1}']),
        ({"type": "object", "description": "nothing", "properties": {}}, ["{}"], ['{"a":1}']),
        ({"properties": {"a": {"const": 1}}}, ['{"a":1}'], ['{"b":1}', "7"]),
        ({"type": "object", "additionalProperties": True}, ['{"a":1}'], ["7"]),
        ({"$ref": "#/$defs/a", "$defs": {"a": A}}, ['{"a":1}'], ['{"b":1}']),
    ],
)
def test_a_tool_takes_the_arguments_that_it_names(check, parameters, accepted, refused):
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    calls = [
        [f'<tool_call>{{"name":"f","arguments":{arguments}}}</tool_call>' for arguments in some]
        for some in (accepted, refused)
    ]
    check(tools_grammar([tool], ToolStyle(), must_call=True, parallel=False, answer=None), *calls)


@pytest.mark.parametrize(
    ("options", "accepted", "refused"),
    [
        ({}, ["", "free {text}", CALL, "text " + CALL, CALL + CALL], [CALL + " text", CALL[:-1] + "<tool_call>"]),
        ({"parallel": False}, [CALL], [CALL + CALL]),
        ({"answer": EXACT}, ['{"a":"x"}', CALL], ["text", "text " + CALL, '{"a":"x"}' + CALL]),
        ({"must_call": True, "answer": EXACT}, [CALL, CALL + CALL], ['{"a":"x"}', ""]),
        ({"style": SPACED, "must_call": True}, [SPACED_CALL, f"{SPACED_CALL}\n{SPACED_CALL}"], [CALL, SPACED_CALL * 2]),
        (
            {"must_call": True},
            [CALL],
            [CALL.replace("literature_search", "other"), CALL.replace('"p"', '"too long now"')],
        ),
    ],
    ids=["auto", "one call", "call or schema", "required", "spaced", "arguments"],
)
def test_where_tools_are_offered_exactly_the_forms_of_the_choice_are_accepted(check, options, accepted, refused):
    usual = {"style": ToolStyle(), "must_call": False, "parallel": True, "answer": None}
    check(tools_grammar([TOOL], **usual | options), accepted, refused)


def nested(depth):
    schema = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"properties": {"a": {"items": {}, "uniqueItems": True}}}, ["uniqueItems", "#/properties/a"]),
        ({"uniqueItems": True, "items": {"enum": list(range(40))}}, ["uniqueItems", "#/uniqueItems"]),
        ({"items": [{}, {"contains": {"const": 1}}]}, ["contains", "#/items/1"]),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"not": {"pattern": "xy"}}}}, ["not", "#/$defs/a/not"]),
        ({"oneOf": [{"pattern": "a"}, {"pattern": "b"}]}, ["oneOf", "#/oneOf"]),
        ({"oneOf": [{"const": number} for number in range(400)]}, ["oneOf", "300"]),
        (A | {"allOf": [B], "unevaluatedProperties": False}, ["unevaluatedProperties", "#/unevaluatedProperties"]),
        ({"type": "object", "minProperties": 2}, ["minProperties", "#/minProperties"]),
        (ABC | {"minProperties": 2}, ["minProperties", "#/minProperties"]),
        ({"propertyNames": {"minLength": 2}}, ["propertyNames", "#"]),
        ({"properties": {"a": {"$ref": "http://example.org/x"}}}, ["$ref", "http://example.org/x", "#/properties/a"]),
        ({"oneOf": [{"$ref": "#/nowhere"}, {"type": "object"}]}, ["$ref", "#/nowhere"]),
        ({"not": {"$ref": "#nowhere"}}, ["$ref", "#nowhere"]),
        ({"anyOf": [{"items": {"$ref": "#/a"}}, {"$ref": "#/b"}]}, ["$ref", "#/a", "#/anyOf/0/items"]),
        ({"properties": {"a": {"type": "object", "required": True}}}, ["required", "#/properties/a/required"]),
        ({"anyOf": [{"properties": [1]}]}, ["properties", "#/anyOf/0/properties"]),
        ({"propertyNames": {"pattern": "["}}, ["regex", "["]),
        (ABC | {"propertyNames": {"enum": ["a"], "pattern": "(a+)+$"}}, ["propertyNames", "#"]),
        ({"type": "string", "pattern": "(?=a)b"}, ["look-around"]),
        ({"$ref": "#"}, ["JSON schema"]),
        (nested(400), ["nested"]),
        ({"properties": {f"p{number}": {} for number in range(14)},
          "dependencies": {f"p{number}": [f"p{number - 1}"] for number in range(14)}}, ["too large"]),
    ],
)  # fmt: skip
def test_what_no_grammar_keeps_is_refused_in_one_short_line(grammars, schema, named):
    with pytest.raises(BadRequest) as caught:
        grammars.matcher(schema_grammar(schema), "response_format")
    assert [word for word in named if word not in caught.value.message] == []
    assert caught.value.param == "response_format"
    assert len(caught.value.message) < 400
    assert "\n" not in caught.value.message


def test_a_refused_tool_is_named(grammars):
    bad = {"properties": {"a": {"contains": {}}}}
    tools = [{"type": "function", "function": {"name": name, "parameters": bad}} for name in "fg"]
    with pytest.raises(BadRequest) as caught:
        tools_grammar(tools, ToolStyle(), must_call=True, parallel=True, answer=None)
    assert caught.value.param == "tools"
    assert "tools.0.function.parameters" in caught.value.message
    assert "#/properties/a/contains" in caught.value.message


NAMES = st.sampled_from("abcd")


def schemas():
    """Small schemas of all keywords that are rewritten; some of them have no values."""
    texts = st.lists(st.sampled_from(["x", "y", "", "xy", 'q"', 1, True, None]), min_size=1, max_size=4, unique_by=repr)
    leaves = st.one_of(
        texts.map(lambda values: {"enum": values}),
        st.sampled_from(["x", 1, False]).map(lambda value: {"const": value}),
        st.sampled_from(["boolean", "null", ["string", "null"]]).map(lambda kind: {"type": kind, "maxLength": 3}),
        st.integers(-3, 9).map(lambda low: {"type": "integer", "minimum": low, "maximum": low + 4}),
        st.just({"type": "string", "maxLength": 4, "format": "unheard-of"}),
        st.sampled_from([{"$ref": "#/$defs/x"}, {"type": "string", "pattern": "^[xy]+$", "maxLength": 3}]),
    )

    def nest(inner):
        several = st.lists(inner, min_size=1, max_size=3)
        some = st.lists(NAMES, max_size=2, unique=True)
        objects = st.fixed_dictionaries(
            {"properties": st.dictionaries(NAMES, inner, max_size=3)},
            optional={
                "type": st.just("object"),
                "required": some,
                "additionalProperties": st.one_of(st.just(False), inner),
                "dependentRequired": st.dictionaries(NAMES, some, max_size=2),
                "dependentSchemas": st.dictionaries(NAMES, inner, max_size=1),
                "minProperties": st.integers(0, 2),
                "maxProperties": st.integers(1, 3),
                "unevaluatedProperties": st.booleans(),
                "propertyNames": st.one_of(
                    st.lists(NAMES, min_size=1, unique=True).map(lambda names: {"enum": names}),
                    st.just({"pattern": "^[ab]"}),
                ),
            },
        )
        combined = st.fixed_dictionaries(
            {},
            optional={
                "type": st.sampled_from(["object", "string", ["object", "integer"]]),
                "properties": st.dictionaries(NAMES, inner, max_size=2),
                **dict.fromkeys(("allOf", "anyOf", "oneOf"), several),
                **dict.fromkeys(("not", "if", "then", "else", "$ref"), inner),
            },
        ).map(lambda schema: schema | ({"$ref": "#/$defs/x"} if "$ref" in schema else {}))
        arrays = st.builds(
            lambda items, unique: {"type": "array", "items": items, "maxItems": 2, "uniqueItems": unique},
            inner,
            st.booleans(),
        )
        return st.one_of(objects, combined, arrays)

    return st.recursive(leaves, nest, max_leaves=8)


@settings(max_examples=150, deadline=None)
@given(schema=schemas(), target=schemas(), draft=st.sampled_from(["2020-12", "07"]), seed=st.integers(0, 2**32))
def test_every_value_of_a_grammar_is_valid(grammars, schema, target, draft, seed):
    """Random tokens stand for the model; a schema that cannot be kept is refused."""
    dialect = {"07": "http://json-schema.org/draft-07/schema#"}.get(
        draft, f"https://json-schema.org/draft/{draft}/schema"
    )
    whole = {"$schema": dialect, **schema, "$defs": {"x": {"type": "object", "properties": {"d": target}}}}
    try:
        matcher = grammars.matcher(schema_grammar(whole), "response_format")
    except BadRequest:
        return
    text = written_at_random(grammars, matcher, random.Random(seed))
    if text is not None:
        validator = validator_for(whole)
        validator(whole).validate(json.loads(text))


def written_at_random(grammars, matcher, draw):
    """The text of an answer; None if it is not finished after some tokens."""
    written = b""
    for _ in range(120):
        allowed = np.flatnonzero(allowed_tokens([matcher], grammars.vocab)[0])
        assert len(allowed), matcher.get_error()
        ending = [token for token in allowed if any(mark in grammars.token_bytes[token] for mark in b'"}]')]
        token = int(draw.choice(ending if ending and draw.random() < 0.5 else allowed))
        if matcher.is_accepting() and (draw.random() < 0.5 or token not in grammars.ordinary.values()):
            return written.decode()
        assert matcher.consume_token(token)
        written += grammars.token_bytes[token]
    return None
