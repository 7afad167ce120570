"""Lengths of the texts in an answer, so that a model that rambles ends it before its tokens do.

A token of English holds at least one letter. So an answer in English whose texts have together at most as many letters
as the answer may have tokens is never cut inside a text. A letter of other scripts, such as Chinese, may take several
tokens, so such an answer may still be cut.
"""

import math
from collections.abc import Mapping
from typing import Any

from chimera.rubric.text import MAX_WORDS

SHORTEST = 24
"""Letters that every text may have, however few tokens there are."""
PHRASE = 160
"""Texts whose schema allows no more letters than this are phrases, which the board wants in at most `MAX_WORDS`."""
FEWEST_LETTERS = 3
"""Letters a token of text that is copied: sentences of studies, names of fields."""
MARKS = 6
"""Most tokens around a field, and of a number: quotes, colon, comma, digits."""
WORDS = f"^[^A-Za-z0-9]*([A-Za-z0-9]+[^A-Za-z0-9]+){{0,{MAX_WORDS - 1}}}([A-Za-z0-9]+[^A-Za-z0-9]*)?$"
"""Words as `chimera.rubric.text.words` counts them, or more."""


def bounded(form: Mapping[str, Any], max_tokens: int) -> dict[str, Any]:
    """A response format in which the free texts of an answer fit into `max_tokens` together.

    Each gets the same share of the letters that its schema allows. Texts without a limit stay without one.
    """
    if form.get("type") != "json_schema":
        return dict(form)
    schema = form["json_schema"]["schema"]
    share = (max_tokens - _copied(schema)) / max(1, _letters(schema))
    return {**form, "json_schema": {**form["json_schema"], "schema": _shortened(schema, share)}}


def _letters(schema: Any) -> int:
    """Most letters of the texts that an answer writes freely, as far as they have a limit."""
    if not isinstance(schema, dict):
        return sum(map(_letters, schema)) if isinstance(schema, list) else 0
    copied = schema.get("type") != "string" or "enum" in schema or "const" in schema
    times = 1 if "prefixItems" in schema else schema.get("maxItems", 1)  # Each of `prefixItems` occurs once.
    return (0 if copied else schema.get("maxLength", 0)) + times * sum(map(_letters, schema.values()))


def _copied(schema: Mapping[str, Any]) -> int:
    """Most tokens of what an answer does not write freely: its fields' names, and texts that it chooses."""
    if "properties" in schema:
        fields = schema["properties"].items()
        return sum(MARKS + math.ceil(len(name) / FEWEST_LETTERS) + _copied(field) for name, field in fields)
    if "prefixItems" in schema:
        return sum(map(_copied, schema["prefixItems"]))
    if "items" in schema:
        return schema.get("maxItems", 1) * _copied(schema["items"])
    choices = schema.get("enum") or [schema.get("const", "")]
    return math.ceil(1 + max(len(str(choice)) for choice in choices) / FEWEST_LETTERS)


def _shortened(schema: Any, share: float) -> Any:
    if isinstance(schema, list):
        return [_shortened(item, share) for item in schema]
    if not isinstance(schema, dict):
        return schema
    shortened = {name: _shortened(item, share) for name, item in schema.items()}
    longest = schema.get("maxLength")
    if schema.get("type") == "string" and "enum" not in schema and isinstance(longest, int):
        shortened["maxLength"] = min(longest, max(SHORTEST, int(longest * share)))
        if longest <= PHRASE:
            shortened.setdefault("pattern", WORDS)
    return shortened
