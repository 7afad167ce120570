"""Rewrites a JSON schema with the keywords that llguidance compiles, and closes its objects."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, permutations
from math import comb, perm
from typing import Any

from referencing.exceptions import Unresolvable

from chimera.serving.embedded.schemas.logic import Document, any_of, literals_of

COMPILED = frozenset(
    "type const enum required minItems maxItems minProperties maxProperties minLength maxLength pattern "
    "minimum maximum exclusiveMinimum exclusiveMaximum multipleOf".split()
)
"""Keywords that stay as they are."""
FORMATS = frozenset("date-time time date duration email hostname ipv4 ipv6 uuid uri".split())
"""Formats that constrain text; others are annotations."""
REFUSED = frozenset("contains unevaluatedItems $dynamicRef $recursiveRef".split())
DEPENDENCIES = frozenset("dependencies dependentRequired dependentSchemas".split())
PARTS = DEPENDENCIES | frozenset("allOf anyOf oneOf not if then else $ref".split())
"""Keywords whose schemas are for the same value as the schema that has them."""
MOST_LISTS = 330
"""The most lists of different items that are written out."""

Names = dict[tuple[str, str], bool]
"""A set, in order, of an object's properties: (properties or patternProperties, name or pattern). It has CLOSED if a
schema names properties otherwise than as required ones."""
CLOSED: Names = {("", ""): True}


class UnsupportedSchema(ValueError):
    """No grammar keeps a keyword; the message names it and its place."""

    def __init__(self, keyword: str, place: str, reason: str = "cannot be enforced: leave it out") -> None:
        super().__init__(f"{keyword} at {place} {reason}")


def closed_schema(schema: Mapping[str, Any], *, arguments: bool = False) -> dict[str, Any]:
    """`schema` as llguidance can compile it. Each value of the result is valid against `schema`.

    An object that names properties, or patterns of them, has no others unless its schema says so
    (additionalProperties). An object that names none is a dictionary with any names. Unknown keywords and formats are
    annotations.

    Args:
        arguments: The schema is for a tool's arguments: an object, and an empty one if nothing else is said.

    Raises:
        UnsupportedSchema: A keyword can be neither kept nor replaced.
    """
    root = dict(schema)
    if arguments and not root.keys() & {"type", "$ref", "allOf", "anyOf", "oneOf"}:
        root["type"] = "object"
    if arguments and root.keys() <= {"type", "title", "description", "$schema"}:
        root["properties"] = {}
    rewriting = _Rewriting(root)
    rewritten = rewriting.rewrite(rewriting.root, "#", {})
    return {**rewritten, "$defs": rewriting.definitions}


class _Rewriting:
    """One schema's rewriting; `definitions` are the targets of its references, rewritten."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._document = Document(root)
        self.root = self._document.root
        self._defined: dict[tuple[str, bool], str] = {}
        self.definitions: dict[str, Any] = {}

    def rewrite(self, schema: Any, place: str, others: Names | None) -> Any:
        """`schema` rewritten.

        Args:
            others: Properties that other parts of the same object's schema name; None leaves this part open.
        """
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise UnsupportedSchema("the value", place, "is no JSON schema")
        schema = self._with_listed_names(schema, place)
        core: dict[str, Any] = {}
        parts: list[tuple[Any, str]] = []
        for key, value in schema.items():
            core |= self._keyword(key, value, schema, f"{place}/{key}")
            if more := self._parts(key, value, schema, f"{place}/{key}"):
                core.setdefault("allOf", [])  # Properties are written in the order of the keywords.
                parts += more
        if others is not None and self._says(schema):
            others = None
        if others is None and schema.get("unevaluatedProperties", True) is not True:
            raise UnsupportedSchema("unevaluatedProperties", place)
        if others is not None:
            others = others | self._named({key: schema[key] for key in schema if key not in PARTS})
        if core.keys() == {"allOf"} and len(parts) == 1:
            return self._part(*parts[0], others)
        rest: list[Names | None] = [None] * len(parts)
        if others is not None:
            named = [self._named(part) for part, _ in parts]
            fixed = others
            for (part, _), names in zip(parts, named, strict=True):
                fixed = fixed if _branches(part) else fixed | names
            branching = [index for index, names in enumerate(named) if not names.keys() <= fixed.keys()]
            for index in branching:
                rest[index] = fixed
                for other in branching:
                    rest[index] = rest[index] | (named[other] if other != index else {})
            if not branching:
                core = _closed(core, fixed)
        if parts:
            core["allOf"] = [self._part(*part, names) for part, names in zip(parts, rest, strict=True)]
        return core

    def _part(self, part: Any, place: str, others: Names | None) -> Any:
        """One part of a value's schema, rewritten; see `_parts`."""
        if not isinstance(part, dict) or len(part) > 1 or not part.keys() & {"$ref", "anyOf"}:
            return self.rewrite(part, place, others)
        if "anyOf" in part:
            return {"anyOf": [self.rewrite(part, f"{place}/{i}", others) for i, part in enumerate(part["anyOf"])]}
        closed = _closed({}, others | self._named(part)) if others and not self._says(part) else {}
        key = part["$ref"], others is not None and not others
        if key not in self._defined:
            self._defined[key] = str(len(self._defined))
            target = self._resolve(part["$ref"], place)
            self.definitions[self._defined[key]] = self.rewrite(target, part["$ref"], {} if key[1] else None)
        return {"$ref": f"#/$defs/{self._defined[key]}", **closed}

    def _keyword(self, key: str, value: Any, schema: Mapping[str, Any], place: str) -> dict[str, Any]:
        """The keyword as it stands in the rewritten schema; empty if it is a part of the value or an annotation."""
        if key in REFUSED or (key == "unevaluatedProperties" and not isinstance(value, bool)):
            raise UnsupportedSchema(key, place)
        if key in ("properties", "patternProperties"):
            return {key: {name: self.rewrite(part, f"{place}/{name}", {}) for name, part in value.items()}}
        if key == "prefixItems" or (key == "items" and isinstance(value, list)):
            return {key: [self.rewrite(part, f"{place}/{index}", {}) for index, part in enumerate(value)]}
        if key in ("additionalProperties", "additionalItems", "items"):
            return {key: self.rewrite(value, place, {})}
        if key == "uniqueItems" and value is True and schema.get("maxItems") not in (0, 1):
            return {"enum": self._different(schema, place)}
        return {key: value} if key in COMPILED or (key == "format" and value in FORMATS) else {}

    def _parts(self, key: str, value: Any, schema: Mapping[str, Any], place: str) -> list[tuple[Any, str]]:
        """Schemas that a keyword adds for the same value, with their places."""
        match key:
            case "allOf":
                return [(part, f"{place}/{index}") for index, part in enumerate(value)]
            case "anyOf" | "$ref":
                return [({key: value}, place)]
            case "oneOf":
                part = any_of(list(self._exclusive(value, schema, place)))
            case "not":
                part = self._refusing(value, place)
            case "if" if schema.keys() & {"then", "else"}:
                otherwise = {"allOf": [self._refusing(value, place), schema.get("else", True)]}
                part = any_of([{"allOf": [value, schema.get("then", True)]}, otherwise])
            case _ if key in DEPENDENCIES:
                return [
                    (any_of([{"properties": {name: False}}, _with(name, need)]), f"{place}/{name}")
                    for name, need in value.items()
                ]
            case _:
                return []
        return [(part, place)]

    def _refusing(self, schema: Any, place: str) -> Any:
        """A schema of values that `schema` refuses; raises UnsupportedSchema if none are known."""
        if (refusing := self._document.negation(schema)) is False and schema not in (True, {}):
            raise UnsupportedSchema(place.rpartition("/")[2], place)
        return refusing

    def _exclusive(self, options: Sequence[Any], schema: Mapping[str, Any], place: str) -> Iterator[Any]:
        """The options of the oneOf of `schema`, each without what other options accept."""
        rest = {key: value for key, value in schema.items() if key != "oneOf"}
        for index, option in enumerate(options):
            whole = {"allOf": [rest, option]}
            overlapping = [
                other
                for position, other in enumerate(options)
                if position != index and not self._document.disjoint(whole, other)
            ]
            refusing = [self._refusing(other, place) for other in overlapping]
            possible = [
                any_of([part for part in _options(each) if not self._document.disjoint(whole, part)])
                for each in refusing
            ]
            yield False if False in possible else {"allOf": [option, *possible]} if possible else option

    def _different(self, schema: Mapping[str, Any], place: str) -> list[list[Any]]:
        """All lists of different items, or those in the order of the enum if they are too many."""
        items = schema.get("items")
        items = self._resolve(items["$ref"], place) if isinstance(items, dict) and "$ref" in items else items
        values = literals_of(items) if isinstance(items, dict) else None
        if values is None:
            raise UnsupportedSchema("uniqueItems", place, "can be enforced for the items of an enum alone: leave it out")
        sizes = range(schema.get("minItems", 0), min(schema.get("maxItems", len(values)), len(values)) + 1)
        for arranged, count in ((permutations, perm), (combinations, comb)):
            if sum(count(len(values), size) for size in sizes) <= MOST_LISTS:
                return [list(chosen) for size in sizes for chosen in arranged(values, size)]
        raise UnsupportedSchema("uniqueItems", place, f"allows more than {MOST_LISTS} lists: leave it out")

    def _with_listed_names(self, schema: Mapping[str, Any], place: str) -> dict[str, Any]:
        """`schema` without propertyNames: they become its properties or their pattern."""
        schema = dict(schema)
        names = schema.pop("propertyNames", True)
        names = self._resolve(names["$ref"], place) if isinstance(names, dict) and "$ref" in names else names
        if names is True or names.keys() <= {"type", "title", "description"}:
            return schema
        allowed, rest, named = literals_of(names), schema.get("additionalProperties", True), schema.get("properties", {})
        if "patternProperties" in schema or (allowed is None and names.keys() - {"type"} != {"pattern"}):
            raise UnsupportedSchema("propertyNames", place)
        if allowed is not None:
            changes = {"properties": {name: named.get(name, rest) for name in allowed}}
        else:
            kept = {name: part for name, part in named.items() if re.search(names["pattern"], name)}
            changes = {"properties": kept, "patternProperties": {names["pattern"]: rest}}
        return schema | changes | {"additionalProperties": False}

    def _resolve(self, reference: Any, place: str) -> Any:
        try:
            return self._document.resolve(reference)
        except Unresolvable as error:
            raise UnsupportedSchema(f"$ref {str(reference)[:80]!r}", place, "names no part of this schema") from error

    def _named(self, schema: Any, seen: tuple[str, ...] = ()) -> Names:
        """Properties that `schema` and the parts for the same value name."""
        names: Names = {}
        for key, value in schema.items() if isinstance(schema, dict) else ():
            if key in ("properties", "patternProperties"):
                names |= CLOSED | {(key, name): True for name in value}
            elif key == "required":
                names |= {("properties", name): True for name in value}
            elif key == "unevaluatedProperties" and value is False:
                names |= CLOSED
            elif key in ("allOf", "anyOf", "oneOf"):
                for part in value:
                    names |= self._named(part, seen)
            elif key in ("if", "then", "else"):
                names |= self._named(value, seen)
            elif key in DEPENDENCIES:
                for name, need in value.items():
                    names |= self._named(_with(name, need), seen)
            elif key == "$ref" and value not in seen:
                names |= self._named(self._resolve(value, "$ref"), (*seen, value))
        return names

    def _says(self, schema: Any, seen: tuple[str, ...] = ()) -> bool:
        """True if `schema` says whether its objects have other properties than the named ones."""
        if not isinstance(schema, dict):
            return False
        reference = schema.get("$ref")
        return (
            "additionalProperties" in schema
            or schema.get("unevaluatedProperties") is True
            or any(self._says(part, seen) for part in schema.get("allOf", ()))
            or (bool(reference) and reference not in seen
                and self._says(self._resolve(reference, "$ref"), (*seen, reference)))
        )


def _with(name: str, need: Any) -> dict[str, Any]:
    """The schema of an object that has a property, and what it needs then: a schema or other properties."""
    if isinstance(need, str | list):
        return {"required": [name, *([need] if isinstance(need, str) else need)]}
    return {"allOf": [{"required": [name]}, need]}


def _options(schema: Any) -> list[Any]:
    """The schemas of which a negation is any."""
    return schema["anyOf"] if isinstance(schema, dict) and schema.keys() == {"anyOf"} else [schema]


def _branches(part: Any) -> bool:
    """True if a part names different properties for different values."""
    if not isinstance(part, dict):
        return False
    return bool(part.keys() & {"anyOf", "oneOf", "if", *DEPENDENCIES}) or any(map(_branches, part.get("allOf", ())))


def _closed(core: dict[str, Any], names: Names) -> dict[str, Any]:
    """`core` for objects that have no properties but `names`."""
    types = core.get("type", "object")
    least = core.get("minProperties", 0)
    patterns = any(key == "patternProperties" for key, _ in names)
    if not names.keys() >= CLOSED.keys() or "object" not in types or (least > len(names) - 1 and not patterns):
        return core
    if not core.keys() & {"type", "const", "enum", "allOf"}:
        core = {"type": "object", **core}
    closed: dict[str, Any] = {"properties": {}, **core}
    for key in ("properties", "patternProperties") if patterns else ("properties",):
        more = {name: True for kind, name in names if kind == key and name not in core.get(key, {})}
        closed[key] = {**core.get(key, {}), **more}
    return {**closed, "additionalProperties": False}
