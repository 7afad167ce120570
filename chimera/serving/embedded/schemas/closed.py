"""Rewrites a JSON schema with the keywords that llguidance compiles, and closes its objects."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import combinations, permutations
from math import comb, perm
from typing import Any

from referencing.exceptions import Unresolvable

from chimera.serving.embedded.schemas.logic import SchemaDocument, any_of, literals_of

COUNTS = {"minItems", "maxItems", "minProperties", "maxProperties", "minLength", "maxLength"}
NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
COMPILED = {"type", "const", "enum", "required", "pattern"} | COUNTS | NUMBERS
FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
"""Formats that constrain text; others are annotations."""
REFUSED = {"contains", "unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$recursiveRef"}
DEPENDENCIES = {"dependencies", "dependentRequired", "dependentSchemas"}
BRANCHES = {"anyOf", "oneOf", "if", "then", "else"} | DEPENDENCIES
PARTS = {"allOf", "not", "$ref"} | BRANCHES
"""Keywords whose schemas are for the same value as the schema that has them."""
_NEGATED = re.compile(r"(?<!\\)(?:\\\\)*\[\^(?!\\x00)")
MOST_CHOICES, MOST_OPTIONS = 130, 300
"""The most lists or sets of names that are written out, and the most options of a oneOf that are compared."""

Names = dict[tuple[str, str], bool]
"""What the parts of an object's schema name, in order: (properties or patternProperties, the name or pattern). CLOSED
is in it if a part does so otherwise than by `required`, and OPEN if one has additionalProperties."""
CLOSED, OPEN = ("closed", ""), ("open", "")


class UnsupportedSchema(ValueError):
    """No grammar keeps a keyword; the message names it and its place."""

    def __init__(self, keyword: str, place: str, reason: str = "cannot be enforced: leave it out") -> None:
        super().__init__(f"{keyword} at {place} {reason}")


def _unresolvable(error: Unresolvable, place: str) -> UnsupportedSchema:
    return UnsupportedSchema(f"$ref {error.ref[:80]!r}", place, "names no part of this schema")


def _without_nul(pattern: str) -> str:
    """The same pattern, whose negated classes exclude NUL too, which no text here holds.

    A class that admits NUL admits quotes and backslashes in llguidance 1.9.1, also where the class excludes them.
    """
    return _NEGATED.sub(r"\g<0>\\x00", pattern)


def closed_schema(schema: Mapping[str, Any], *, arguments: bool = False) -> dict[str, Any]:
    """`schema` as llguidance can compile it. Each value of the result is valid against `schema`.

    An object that names properties, or patterns of them, has no others unless its schema says so
    (additionalProperties). An object that names none is a dictionary with any names. Unknown keywords and formats are
    annotations.

    Args:
        arguments: The schema is for a tool's arguments: an object, and an empty one if nothing else is said.

    Raises:
        UnsupportedSchema: A keyword can be neither kept nor replaced, or the schema is none.
    """
    root = dict(schema)
    if arguments and not root.keys() & {"type", "$ref", "allOf", "anyOf", "oneOf"}:
        root["type"] = "object"
    if arguments and root.keys() <= {"type", "title", "description", "$schema"}:
        root["properties"] = {}
    document = SchemaDocument(root)
    rewriting = _Rewriting(document)
    try:
        rewritten = rewriting.rewrite(root, "#", {})
    except Unresolvable as error:
        raise _unresolvable(error, "#") from error
    except (AttributeError, TypeError):
        if (fault := document.fault()) is None:
            raise
        raise UnsupportedSchema(*fault) from None
    return {**(rewritten if isinstance(rewritten, dict) else {"allOf": [rewritten]}), "$defs": rewriting.definitions}


class _Rewriting:
    """One schema's rewriting; `definitions` are the targets of its references, rewritten."""

    def __init__(self, document: SchemaDocument) -> None:
        self._document = document
        self._defined: dict[tuple[str, bool], str] = {}
        self.definitions: dict[str, Any] = {}

    def rewrite(self, schema: Any, place: str, others: Names | None) -> Any:
        """`schema` rewritten.

        Args:
            others: What other parts of the same object's schema name; None leaves this part open.
        """
        if isinstance(schema, bool):
            return schema
        schema = self._with_listed_names(schema, place)
        core: dict[str, Any] = {}
        parts: list[tuple[Any, str]] = []
        for key, value in schema.items():
            core |= self._keyword(key, value, schema, f"{place}/{key}")
            if more := self._parts(key, value, schema, f"{place}/{key}"):
                core.setdefault("allOf", [])  # Properties are written in the order of the keywords.
                parts += more
        plain = self._named({key: schema[key] for key in schema if key not in PARTS})
        named = [self._named(part) for part, _ in parts]
        others = None if others is None or any(OPEN in names for names in (plain, *named)) else others | plain
        if core.keys() == {"allOf"} and len(parts) == 1:
            return self._part(*parts[0], others)
        rest: list[Names | None] = [None] * len(parts)
        if others is not None:
            for (part, _), names in zip(parts, named, strict=True):
                others = others if _branches(part) else others | names
            new = [index for index, names in enumerate(named) if not names.keys() <= others.keys()]
            for index in new:
                rest[index] = others | _joined(
                    names for other, names in enumerate(named) if other in new and other != index
                )
            core = core if new else _closed(core, others)
        return core | ({"allOf": [self._part(*part, rest[i]) for i, part in enumerate(parts)]} if parts else {})

    def _part(self, part: Any, place: str, others: Names | None) -> Any:
        """One part of a value's schema, rewritten; see `_parts`."""
        if not isinstance(part, dict) or len(part) > 1 or not part.keys() & {"$ref", "anyOf"}:
            return self.rewrite(part, place, others)
        if "anyOf" in part:
            return {"anyOf": [self.rewrite(part, f"{place}/{i}", others) for i, part in enumerate(part["anyOf"])]}
        closed = _closed({}, others | self._named(part)) if others else {}
        key = part["$ref"], others is not None and not others
        if key not in self._defined:
            self._defined[key] = str(len(self._defined))
            target = self._resolve(part["$ref"], place)
            self.definitions[self._defined[key]] = self.rewrite(target, part["$ref"], {} if key[1] else None)
        return {"$ref": f"#/$defs/{self._defined[key]}", **closed}

    def _keyword(self, key: str, value: Any, schema: dict[str, Any], place: str) -> dict[str, Any]:
        """The keyword as it stands in the rewritten schema; empty if it is a part of the value or an annotation."""
        if key in REFUSED:
            raise UnsupportedSchema(key, place)
        if key == "minProperties" and value > 1 + len(schema.get("required", ())):
            # A name may be written twice, and then counts once.
            raise UnsupportedSchema(key, place, "can be kept for named properties alone: lower it to 1")
        if key in ("properties", "patternProperties"):
            named = _without_nul if key == "patternProperties" else str
            return {key: {named(name): self.rewrite(part, f"{place}/{name}", {}) for name, part in value.items()}}
        if isinstance(value, list) and key in ("prefixItems", "items"):
            return {key: [self.rewrite(part, f"{place}/{index}", {}) for index, part in enumerate(value)]}
        if key in ("additionalProperties", "additionalItems", "items"):
            return {key: self.rewrite(value, place, {})}
        if key == "pattern" and isinstance(value, str):
            return {key: _without_nul(value)}
        return {key: value} if key in COMPILED or (key == "format" and value in FORMATS) else {}

    def _parts(self, key: str, value: Any, schema: Mapping[str, Any], place: str) -> list[tuple[Any, str]]:
        """Schemas that a keyword adds for the same value, with their places."""
        match key:
            case "allOf":
                return [(part, f"{place}/{index}") for index, part in enumerate(value)]
            case "anyOf" | "$ref":
                part = {key: value}
            case "oneOf":
                part = any_of(list(self._exclusive(value, schema, place)))
            case "uniqueItems" if value and schema.get("maxItems") not in (0, 1):
                part = {"enum": self._different(schema, place)}
            case "not":
                part = self._refusing(value, place)
            case "if" if schema.keys() & {"then", "else"}:
                otherwise = {"allOf": [self._refusing(value, place), schema.get("else", True)]}
                part = any_of([{"allOf": [value, schema.get("then", True)]}, otherwise])
            case _ if key in DEPENDENCIES:
                return [
                    ({"anyOf": [{"properties": {name: False}}, _with(name, need)]}, f"{place}/{name}")
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
        if len(options) > MOST_OPTIONS:
            raise UnsupportedSchema("oneOf", place, f"has more than {MOST_OPTIONS} options: use anyOf")
        rest = {key: value for key, value in schema.items() if key != "oneOf"}
        for index, option in enumerate(options):
            whole = {"allOf": [rest, option]}
            refusing = [
                self._refusing(other, place)
                for position, other in enumerate(options)
                if position != index and not self._document.disjoint(whole, other)
            ]
            possible = [
                any_of([part for part in _options(each) if not self._document.disjoint(whole, part)])
                for each in refusing
            ]
            yield False if False in possible else {"allOf": [option, *possible]} if possible else option

    def _different(self, schema: Mapping[str, Any], place: str) -> list[list[Any]]:
        """All lists of different items, or those in the order of the enum if they are too many."""
        items = schema.get("items")
        items = self._resolve(items["$ref"], place) if isinstance(items, dict) and "$ref" in items else items
        if (values := literals_of(items) if isinstance(items, dict) else None) is None:
            raise UnsupportedSchema("uniqueItems", place, "can be kept for the items of an enum alone: leave it out")
        values = [value for index, value in enumerate(values) if value not in values[:index]]
        sizes = range(int(schema.get("minItems", 0)), min(int(schema.get("maxItems", len(values))), len(values)) + 1)
        for arranged, count in ((permutations, perm), (combinations, comb)):
            if sum(count(len(values), size) for size in sizes) <= MOST_CHOICES:
                return [list(chosen) for size in sizes for chosen in arranged(values, size)]
        raise UnsupportedSchema("uniqueItems", place, f"allows more than {MOST_CHOICES} lists: leave it out")

    def _with_listed_names(self, schema: Mapping[str, Any], place: str) -> dict[str, Any]:
        """`schema` without propertyNames, which become its properties or their pattern."""
        rest = dict(schema)
        if "unevaluatedProperties" in rest and (rest["unevaluatedProperties"] is True or not rest.keys() & PARTS):
            rest.setdefault("additionalProperties", rest.pop("unevaluatedProperties"))
        names: Any = rest.pop("propertyNames", True)
        names = {"enum": []} if names is False else {} if names is True else names
        names = self._resolve(names["$ref"], place) if "$ref" in names else names
        properties, other = rest.get("properties", {}), rest.get("additionalProperties", True)
        constraints = names.keys() - {"type", "title", "description"}
        if not constraints:
            return rest
        if constraints in ({"enum"}, {"const"}) and "patternProperties" not in rest:
            allowed = [name for name in literals_of(names) or () if isinstance(name, str)]
            properties = {name: properties.get(name, other) for name in allowed}
        elif constraints == {"pattern"} and not properties and "patternProperties" not in rest:
            rest["patternProperties"] = {names["pattern"]: other}
        else:
            raise UnsupportedSchema("propertyNames", place)
        return rest | {"properties": properties, "additionalProperties": False}

    def _resolve(self, reference: Any, place: str) -> Any:
        try:
            return self._document.resolve(reference)
        except Unresolvable as error:
            raise _unresolvable(error, place) from error

    def _named(self, schema: Any, seen: tuple[str, ...] = ()) -> Names:
        names: Names = {}
        for key, value in schema.items() if isinstance(schema, dict) else ():
            parts: list[Any] = []
            match key:
                case "properties" | "patternProperties":
                    named = _without_nul if key == "patternProperties" else str
                    names |= {CLOSED: True, **{(key, named(name)): True for name in value}}
                case "required":
                    names |= {("properties", name): True for name in value}
                case "additionalProperties":
                    names[OPEN] = True
                case "allOf" | "anyOf" | "oneOf":
                    parts = value
                case "if" | "then" | "else":
                    parts = [value]
                case "$ref" if value not in seen:
                    with suppress(Unresolvable):  # It is refused when it is rewritten.
                        parts = [self._document.resolve(value)]
                    seen = (*seen, value)
                case _ if key in DEPENDENCIES:
                    parts = [_with(name, need) for name, need in value.items()]
                case _:
                    continue
            more = _joined(self._named(part, seen) for part in parts)
            names |= {name: True for name in more if name != OPEN or key not in BRANCHES}
        return names


def _joined(every: Iterable[Names]) -> Names:
    return {name: True for names in every for name in names}


def _with(name: str, need: Any) -> dict[str, Any]:
    """The schema of an object that has a property, and what it needs then: a schema or other properties."""
    if isinstance(need, str | list):
        return {"required": [name, *([need] if isinstance(need, str) else need)]}
    return {"allOf": [{"required": [name]}, need]}


def _options(schema: Any) -> list[Any]:
    """The schemas of which a negation is any."""
    return schema["anyOf"] if isinstance(schema, dict) and schema.keys() == {"anyOf"} else [schema]


def _branches(part: Any) -> bool:
    """True if a part can name different properties for different values."""
    if not isinstance(part, dict):
        return False
    return bool(part.keys() & BRANCHES) or any(map(_branches, part.get("allOf", ())))


def _closed(core: dict[str, Any], names: Names) -> dict[str, Any]:
    """`core` for objects that have no properties but `names`."""
    patterns = any(key == "patternProperties" for key, _ in names)
    few = core.get("minProperties", 0) > len(names) - 1 and not patterns
    if CLOSED not in names or OPEN in names or "object" not in core.get("type", "object") or few:
        return core
    closed: dict[str, Any] = {} if core.keys() & {"type", "const", "enum", "allOf"} else {"type": "object"}
    closed |= {"properties": {}, **core}
    for key in ("properties", "patternProperties") if patterns else ("properties",):
        more = {name: True for kind, name in names if kind == key and name not in core.get(key, {})}
        closed[key] = {**core.get(key, {}), **more}
    return {**closed, "additionalProperties": False}
