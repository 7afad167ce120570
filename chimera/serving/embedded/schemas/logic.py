"""What can be told from schemas alone: values that a schema refuses, and schemas that share no value."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jsonschema.exceptions import best_match
from jsonschema.validators import Draft202012Validator, validator_for
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

KINDS: Mapping[str, type | tuple[type, ...]] = {
    "null": type(None),
    "boolean": bool,
    "number": (int, float),
    "string": str,
    "array": list,
    "object": dict,
}
TYPES = tuple(KINDS)
DEEPEST, MOST_STEPS = 6, 200_000
"""How many levels of a schema, and schemas in all, are looked into; nothing is claimed about others."""
ONE_CLASS = re.compile(r"\^\[(?P<inverse>\^?)(?P<members>(?:\\.|[^\\\[\]])*)\](?P<some>[+*])\$")
"""A regular expression for texts of characters of one class."""


class SchemaDocument:
    """A whole JSON schema, in which references are resolved."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root, self._steps = root, 0
        resource = Resource.from_contents(root, default_specification=DRAFT202012)
        self._resolver = Registry().resolver_with_root(resource)

    def resolve(self, reference: Any) -> Any:
        """The schema that a $ref names; raises Unresolvable if this document has none."""
        try:
            return self._resolver.lookup(str(reference)).contents
        except Unresolvable as error:
            raise Unresolvable(ref=str(reference)) from error

    def fault(self) -> tuple[str, str, str] | None:
        """Keyword, place and fault if this is no JSON schema."""
        dialect = validator_for(self._root, default=Draft202012Validator)
        error = best_match(dialect(dialect.META_SCHEMA).iter_errors(self._root))
        path = [str(step) for step in error.absolute_path] if error else []
        return (path[-1] if path else "the schema", "/".join(["#", *path]), error.message[:120]) if error else None

    def negation(self, schema: Any, depth: int = DEEPEST) -> Any:
        """A schema of values that `schema` refuses: some of them, all where possible; False if none are known."""
        if isinstance(schema, bool):
            return not schema
        if not depth or self._tired():
            return False
        return any_of([refused for key in schema for refused in self._refused(key, schema[key], depth - 1)])

    def _refused(self, key: str, value: Any, depth: int) -> list[Any]:
        """Schemas of values that one keyword refuses."""
        match key:
            case "not":
                return [value]
            case "$ref":
                return [self.negation(self.resolve(value), depth)]
            case "allOf":
                return [self.negation(part, depth) for part in value]
            case "anyOf" | "oneOf":
                parts = [self.negation(part, depth) for part in value]
                return [] if False in parts else [{"allOf": parts}]
            case "type":
                return [{"type": _other_types({value} if isinstance(value, str) else set(value))}]
            case "const" | "enum":
                return _other_values([value] if key == "const" else value)
            case "pattern" if (one_class := ONE_CLASS.fullmatch(value)) and not one_class["inverse"]:
                empty = "|^$" if one_class["some"] == "+" else ""
                return [{"type": "string", "pattern": rf"[^\n{one_class['members']}]{empty}"}]
            case "required":
                return [{"type": "object", "properties": {name: False}} for name in value]
            case "properties":
                parts = {name: self.negation(part, depth) for name, part in value.items()}
                return [
                    {"type": "object", "properties": {name: part}, "required": [name]}
                    for name, part in parts.items()
                    if part is not False
                ]
            case _:
                return []

    def disjoint(self, left: Any, right: Any, depth: int = DEEPEST) -> bool:
        """True only if no value is valid against both schemas."""
        if left is False or right is False:
            return True
        if left is True or right is True or not depth or self._tired():
            return False
        lefts, rights = self._conjuncts(left, depth), self._conjuncts(right, depth)
        if False in lefts or False in rights:
            return True
        for schemas, other in ((lefts, right), (rights, left)):
            for schema in schemas:
                literals = literals_of(schema)
                if literals is not None and all(self._excludes(other, value, depth - 1) for value in literals):
                    return True
                for key in schema.keys() & {"anyOf", "oneOf"}:
                    if all(self.disjoint(option, other, depth - 1) for option in schema[key]):
                        return True
        common = set(TYPES).intersection(*(_types(schema) for schema in (*lefts, *rights)))
        required = {name for schema in (*lefts, *rights) for name in schema.get("required", ())}
        return not common or (
            common == {"object"}
            and any(
                self.disjoint(_property(schema, name), _property(other, name), depth - 1)
                for name in required
                for schema in lefts
                for other in rights
            )
        )

    def _excludes(self, schema: Any, value: Any, depth: int) -> bool:
        """True only if `value` is not valid against `schema`. Patterns are not tried: users write slow ones."""
        for conjunct in self._conjuncts(schema, depth):
            if conjunct is False or _type(value) not in _types(conjunct):
                return True
            if value not in (literals_of(conjunct) or [value]):
                return True
            for key in conjunct.keys() & {"anyOf", "oneOf"}:
                if all(self._excludes(option, value, depth - 1) for option in conjunct[key]):
                    return True
        return False

    def _tired(self) -> bool:
        self._steps += 1
        return self._steps > MOST_STEPS

    def _conjuncts(self, schema: Any, depth: int) -> list[Any]:
        """The schemas, without allOf and $ref, that all hold where `schema` does; what is True is left out."""
        if isinstance(schema, bool) or not depth:
            return [False] if schema is False else []
        parts = [*schema.get("allOf", ()), *([self.resolve(schema["$ref"])] if "$ref" in schema else [])]
        return [schema, *(conjunct for part in parts for conjunct in self._conjuncts(part, depth - 1))]


def any_of(options: Sequence[Any]) -> Any:
    """One schema for all `options`; False if there are none."""
    possible = [option for option in options if option is not False]
    return {"anyOf": possible} if len(possible) > 1 else possible[0] if possible else False


def literals_of(schema: Mapping[str, Any]) -> list[Any] | None:
    """The values that a schema lists, if it does."""
    return [schema["const"]] if "const" in schema else schema.get("enum")


def _types(schema: Mapping[str, Any]) -> set[str]:
    types = schema.get("type", TYPES)
    return {"number" if kind == "integer" else kind for kind in ([types] if isinstance(types, str) else types)}


def _type(value: Any) -> str:
    return next(name for name, kind in KINDS.items() if isinstance(value, kind))


def _other_types(types: set[str]) -> list[str]:
    return [kind for kind in TYPES if kind not in types and not (kind == "number" and "integer" in types)]


def _property(schema: Mapping[str, Any], name: str) -> Any:
    """The schema of one property, or True."""
    closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    return schema.get("properties", {}).get(name, not closed)


def _other_values(literals: Sequence[Any]) -> list[Any]:
    """Schemas of the values that are none of `literals`, without other arrays or objects than these."""
    numbers = [value for value in literals if isinstance(value, int | float) and not isinstance(value, bool)]
    patterns = [{"pattern": _other_text(value)} for value in literals if isinstance(value, str)]
    ranges = [any_of([{"exclusiveMaximum": number}, {"exclusiveMinimum": number}]) for number in numbers]
    truths = [value for value in (True, False) if all(value is not literal for literal in literals)]
    kinds = {_type(value) for value in literals} | {"boolean", "number", "string"}
    return [
        {"type": [kind for kind in TYPES if kind not in kinds]},
        {"type": "string", "allOf": patterns},
        {"type": "number", "allOf": ranges},
        *([{"enum": truths}] if truths else []),
    ]


def _other_text(text: str) -> str:
    """A regular expression for every text but `text`."""
    rest = r"(.|\n)"
    parts = [f"{re.escape(text[:end])}([^{re.escape(text[end])}]{rest}*)?" for end in range(len(text))]
    return f"^({'|'.join([*parts, f'{re.escape(text)}{rest}+'])})$"
