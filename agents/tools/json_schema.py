"""JSON schemas of foreign tools: what models are told of them, and what can be checked of a call's arguments.

Any program may have written such a schema. It may be wrong, refer to parts that do not exist, or hold ECMAScript
patterns that Python cannot read. What cannot be checked here goes to the tool's server, which checks it.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from langchain_core.utils.json_schema import dereference_refs

_PLAIN = ("type", "properties", "required", "additionalProperties", "$defs", "definitions")
_ANNOTATIONS = ("title", "description", "$schema", "$id", "$comment", "examples", "default")
_TYPES = ("string", "integer", "number", "boolean", "array", "object", "null")


def schema_fault(schema: Any, document: Any = None) -> str | None:
    """Why arguments cannot be checked by `schema`, a part of `document`; None if they can."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for

    try:
        validator_for(schema, default=Draft202012Validator).check_schema(schema)
        dereference_refs({"schema": schema}, full_schema=schema if document is None else document)
    except Exception as error:  # noqa: BLE001  a foreign schema can be wrong in any way
        return " ".join((str(error).splitlines() or [type(error).__name__])[0].split())
    return None


def faults(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The places and faults of arguments, as far as `schema` can be read; nothing is fetched for it."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for
    from referencing import Registry

    try:
        validator = validator_for(schema, default=Draft202012Validator)(schema, registry=Registry())
        for fault in validator.iter_errors(arguments):
            yield ".".join(map(str, fault.absolute_path)), fault.message
    except Exception:  # noqa: BLE001  the schema is at fault and not the call: the tool's server checks the rest
        return


def plain(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema's parameters in the form that every model server takes: nothing but an object's properties.

    OpenAI and Anthropic refuse `oneOf` and the like beside the properties, so those of all alternatives are listed, and
    `rule` puts the rest into words.
    """
    parts = list(_parts(schema, schema)) or [{}]
    listed = [part.get("properties", {}) for part in parts]
    properties: dict[str, Any] = {}
    for part in filter(_is_object, listed):
        properties |= {name: _plain_property(value, schema) for name, value in part.items() if name not in properties}
    always = [part.get("required") for part in _parts(schema, schema, ("allOf",))]
    names = [name for part in always if isinstance(part, list) for name in part if isinstance(name, str)]
    is_open = not all(map(_is_object, listed)) or any({"$ref", "patternProperties"} & set(part) for part in parts)
    is_open = is_open or any(part.get("additionalProperties", False) is not False for part in parts)
    extra = parts[0].get("additionalProperties", is_open)
    return {
        "type": "object",
        "properties": properties,
        "required": list(dict.fromkeys(names)),
        "additionalProperties": extra if isinstance(extra, bool) else True,
    }


def rule(schema: Mapping[str, Any]) -> str:
    """What a schema demands beside its properties, such as one of two alternatives, as a sentence; empty if nothing."""
    top = next(_parts(schema, schema), {})
    rest = {key: value for key, value in top.items() if key not in (*_PLAIN, *_ANNOTATIONS)}
    return f"Its arguments must also fit the JSON schema {json.dumps(_inlined(rest, schema))}." if rest else ""


def _parts(
    schema: Any, document: Mapping[str, Any], keys: Iterable[str] = ("allOf", "anyOf", "oneOf", "then", "else")
) -> Iterator[Mapping[str, Any]]:
    """The schema and its alternatives, each without a reference at its top where that can be followed."""
    part = _inlined(schema, document) if _is_object(schema) and "$ref" in schema else schema
    if not _is_object(part):
        return
    yield part
    for key in keys:
        choices = part.get(key)
        for choice in choices if isinstance(choices, list) else (choices,):
            yield from _parts(choice, document, keys)


def _inlined(schema: Any, document: Mapping[str, Any]) -> Any:
    """`schema` with what it refers to; unchanged if a reference cannot be followed."""
    try:
        return dereference_refs({"schema": schema}, full_schema=dict(document))["schema"]
    except Exception:  # noqa: BLE001  a foreign reference can be wrong in any way
        return schema


def _plain_property(schema: Any, document: Mapping[str, Any]) -> dict[str, Any]:
    """One property; a schema that model servers may refuse is told in words."""
    if _is_object(schema) and schema_fault(schema, document) is None:
        return _inlined(schema, document)
    if schema is True:
        return {}
    kind = schema.get("type") if _is_object(schema) else None
    about = schema.get("description", "") if _is_object(schema) else ""
    in_words = {"description": f"{about} It must fit the JSON schema {json.dumps(schema)}.".strip()}
    return {"type": kind, **in_words} if kind in _TYPES else in_words


def _is_object(value: Any) -> bool:
    return isinstance(value, Mapping)
