"""JSON schemas of foreign tools: what models are told of them, and what can be checked of a call's arguments.

Any program may have written such a schema. It may be wrong, refer to parts that do not exist, or hold ECMAScript
patterns that Python cannot read. What cannot be checked here goes to the tool's server, which checks it.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from langchain_core.utils.json_schema import dereference_refs

_USUAL = ("type", "properties", "required", "additionalProperties", "$defs", "definitions")
_ANNOTATIONS = ("title", "description", "$schema", "$id", "$comment", "examples", "default")
_TYPES = ("string", "integer", "number", "boolean", "array", "object", "null")


def schema_fault(schema: Any, document: Any) -> str | None:
    """Why arguments cannot be checked by `schema`, a part of `document`; None if they can."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for

    try:
        validator_for(schema, default=Draft202012Validator).check_schema(schema)
        dereference_refs({"schema": schema}, full_schema=document)
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


def in_plain_form(schema: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The schema in the form that every model server takes, and a sentence that says what this form cannot.

    OpenAI and Anthropic refuse `oneOf` and the like beside the properties, so those of all alternatives are listed.
    """
    top = _inlined({"$ref": schema["$ref"]}, schema) if "$ref" in schema else schema
    top = top if isinstance(top, Mapping) else {}
    rest = {key: _inlined(value, schema) for key, value in top.items() if key not in (*_USUAL, *_ANNOTATIONS)}
    lists = [rest[key] for key in ("oneOf", "anyOf", "allOf") if isinstance(rest.get(key), list)]
    parts = [*(part for parts in lists for part in parts if isinstance(part, Mapping)), top]
    listed = [part["properties"] for part in parts if isinstance(part.get("properties"), Mapping)]
    required = top.get("required")
    is_open = top.get("additionalProperties", bool(rest) or not isinstance(top.get("properties", {}), Mapping))
    return {
        "type": "object",
        "properties": {name: _property(value, schema) for part in listed for name, value in part.items()},
        "required": [name for name in required if isinstance(name, str)] if isinstance(required, list) else [],
        "additionalProperties": is_open is not False,
    }, f"Its arguments must also fit the JSON schema {json.dumps(rest)}." if rest else ""


def _inlined(schema: Any, document: Mapping[str, Any]) -> Any:
    """`schema` with what it refers to; unchanged if a reference cannot be followed."""
    try:
        return dereference_refs({"schema": schema}, full_schema=dict(document))["schema"]
    except Exception:  # noqa: BLE001  a foreign reference can be wrong in any way
        return schema


def _property(schema: Any, document: Mapping[str, Any]) -> dict[str, Any]:
    """One property; a schema that model servers may refuse is put into words."""
    if isinstance(schema, Mapping) and schema_fault(schema, document) is None:
        return _inlined(schema, document)
    parts = schema if isinstance(schema, Mapping) else {}
    kind = {"type": parts["type"]} if parts.get("type") in _TYPES else {}
    about = f"{parts.get('description', '')} It must fit the JSON schema {json.dumps(schema)}."
    return {**kind, "description": about.strip()}
