"""Makes a typed tree of sections from settings. Checks keys, then types and ranges, then which keys have no effect.

This module does not know Chimera's own keys: `chimera.config.tree` declares the tree.
"""

import json
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from chimera.config.source import Setting
from chimera.core.errors import ConfigError, likeness

SECRET_KEY = re.compile(r"api[-_]?key|token$|secret|passw|credential|^(?:proxy-)?authorization$", re.IGNORECASE)
"""Matches the last part of a key if its value is probably a secret."""
ALIKE = 0.7
"""How alike the last part of an unknown key and that of a valid one must be for it to be named."""

ADDED = "added to the default"
"""Metadata of a mapping whose settings are added to its default. Of any other mapping they replace it."""
_PLAIN_NAMES: dict[Any, str] = {
    type(None): "null",
    str: "text",
    bool: "true | false",
    int: "whole number",
    float: "number",
    dict: "mapping",
}
_BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


AnyPath = Annotated[Path, AfterValidator(Path.expanduser)]
"""A path that may begin with ~, which no shell replaces in a file or behind an = sign."""


class ConfigSection(BaseModel):
    """Base of every configuration section: frozen, numbers are finite, and unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    def idle(self) -> Mapping[str, str]:
        """Keys and sections below this one that do not exist because of more than one key, each with the reason."""
        return {}


@dataclass(frozen=True, slots=True)
class When:
    """Metadata of a key that exists only with certain values of another key of its section.

    Attributes:
        key: The other key.
        holds: True for a value of it with which the annotated key exists.
        values: Those values in words, such as "vllm" or "above 0".
    """

    key: str
    holds: Callable[[Any], bool]
    values: str

    @classmethod
    def equal(cls, key: str, *values: Any) -> "When":
        """The other key has one of `values`."""
        return cls(key, lambda value: value in values, " or ".join(map(str, values)))

    @classmethod
    def unless(cls, key: str, *values: Any) -> "When":
        """The other key has none of `values`."""
        return cls(key, lambda value: value not in values, f"other than {' or '.join(map(str, values))}")

    @classmethod
    def set(cls, key: str) -> "When":
        """The other key is neither null, 0, false nor empty."""
        return cls(key, bool, "set")

    @classmethod
    def unset(cls, key: str) -> "When":
        """The other key is null, 0, false or empty."""
        return cls(key, lambda value: not value, "unset")


Tree = TypeVar("Tree", bound=ConfigSection)


@dataclass(frozen=True, slots=True)
class Key:
    """One dotted key of a tree."""

    name: str
    field: FieldInfo
    default: Any

    @property
    def type(self) -> str:
        """What it takes, as shown in documentation: "whole number >= 1"."""
        bounds = [
            f"{sign} {getattr(item, name):.12g}"
            for item in self.field.metadata
            for name, sign in _BOUNDS.items()
            if getattr(item, name, None) is not None
        ]
        return " ".join([_annotation_name(self.field.annotation), *bounds])

    @property
    def description(self) -> str:
        """What it means, as shown in documentation."""
        return self.field.description or ""


def sections(section: ConfigSection) -> dict[str, ConfigSection]:
    """The sections directly below `section`, by their keys relative to it; each entry of a table is one."""
    by_key: dict[str, ConfigSection] = {}
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, ConfigSection):
            by_key[name] = value
        elif _is_table(field):
            by_key |= {f"{name}.{key}": entry for key, entry in value.items()}
    return by_key


def tables(section: ConfigSection, prefix: str = "") -> Iterator[tuple[str, FieldInfo, bool]]:
    """The tables below `section`: dotted key, field, and true if it has entries."""
    for name, field in type(section).model_fields.items():
        if _is_table(field):
            yield f"{prefix}{name}", field, bool(getattr(section, name))
    for name, below in sections(section).items():
        yield from tables(below, f"{prefix}{name}.")


def _is_table(field: FieldInfo) -> bool:
    """True if a field is a table: sections by names that the user chooses."""
    if get_origin(field.annotation) is not dict:
        return False
    kind = _entry(field)
    return isinstance(kind, type) and issubclass(kind, ConfigSection)


def _entry(field: FieldInfo) -> Any:
    """The type of a table's entries."""
    kind = get_args(field.annotation)[1]
    return get_args(kind)[0] if hasattr(kind, "__metadata__") else kind


def keys(tree: ConfigSection, prefix: str = "", *, examples: bool = False) -> Iterator[Key]:
    """Every dotted key below `tree`, in the order of declaration; `tree` supplies the defaults.

    Args:
        examples: True for the keys that an entry of an empty table would have too, with NAME as its name.
    """
    below = sections(tree)
    for name, field in type(tree).model_fields.items():
        inner = {key: subsection for key, subsection in below.items() if key == name or key.startswith(f"{name}.")}
        for key, subsection in inner.items():
            yield from keys(subsection, f"{prefix}{key}.", examples=examples)
        if not inner and not _is_table(field):
            yield Key(f"{prefix}{name}", field, getattr(tree, name))
        elif not inner and examples:
            yield from keys(_entry(field)(), f"{prefix}{name}.NAME.", examples=True)
    for name, value in (tree.model_extra or {}).items():
        yield Key(f"{prefix}{name}", FieldInfo(annotation=Any), value)


def validate(tree: Tree, settings: Mapping[str, Setting], context: Mapping[str, Any] | None = None) -> Tree:
    """Build a tree of the same shape as `tree`, which supplies the defaults, from settings that passed `check_keys`.

    Args:
        context: What validators get as pydantic's context.

    Raises:
        ConfigError: a wrong type or value; names the key, the value, the place and what is allowed.
    """
    nested = tree.model_dump(mode="json")
    table = [*keys(tree)]
    mappings, added = _mappings(table), {key.name for key in table if ADDED in key.field.metadata}
    for mapping in {within(key, mappings - added) for key in settings}:
        if mapping is not None:
            _put(nested, mapping, {})  # One that is set takes nothing from the defaults.
    for key, setting in settings.items():
        try:
            json.dumps(setting.value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{key} {setting.place} is neither text, finite number, list nor true/false") from error
        value = {} if setting.value is None and key in mappings else setting.value
        if value != {} or not within(key, added):
            _put(nested, key, value)
    try:
        return type(tree).model_validate_json(json.dumps(nested), strict=True, context=context)
    except ValidationError as error:
        raise _explain(error, settings, {key.name: key.type for key in table}) from error


def _put(nested: dict[str, Any], key: str, value: Any) -> None:
    *above, last = key.split(".")
    for name in above:
        if not isinstance(nested.get(name), dict):
            nested[name] = {}
        nested = nested[name]
    nested[last] = value


def without_effect(config: ConfigSection, settings: Mapping[str, Setting]) -> Iterator[tuple[Setting, str]]:
    """Each setting of a key that does not exist beside the others, with a sentence. A null sets nothing: left out."""
    reasons = absent(config)
    for name, setting in settings.items():
        if setting.value is not None and (key := within(name, reasons)):
            yield setting, f"{name} {setting.place} has no effect because {reasons[key]}: remove it"


def absent(section: ConfigSection, prefix: str = "") -> dict[str, str]:
    """The dotted keys, and whole sections, below `section` that do not exist beside its other values, with why."""
    reasons = {f"{prefix}{key}": reason for key, reason in section.idle().items()}
    for name, field in type(section).model_fields.items():
        for when in (item for item in field.metadata if isinstance(item, When)):
            if not when.holds(value := getattr(section, when.key)):
                reason = f"{prefix}{when.key} is {_plain(value)} (it needs {when.key} {when.values})"
                reasons.setdefault(f"{prefix}{name}", reason)
    for name, below in sections(section).items():
        if f"{prefix}{name}" not in reasons:
            reasons |= absent(below, f"{prefix}{name}.")
    return reasons


def _plain(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)


def effective(section: ConfigSection) -> dict[str, Any]:
    """The tree as nested plain values, without the keys and sections that do not exist beside the others."""
    values = section.model_dump(mode="json")
    for key in absent(section):
        *sections, last = key.split(".")
        target, above = values, values
        for name in sections:
            target, above = target[name], target
        target.pop(last, None)
        if sections and not target:
            above.pop(sections[-1])
    return values


def _mappings(table: Iterable[Key]) -> set[str]:
    """The keys that take a mapping of any names."""
    return {key.name for key in table if isinstance(key.default, dict)}


def within(key: str, names: Container[str]) -> str | None:
    """The one of `names` that is `key` or lies above it, the nearest first; None if there is none."""
    while key not in names:
        key, dot, _ = key.rpartition(".")
        if not dot:
            return None
    return key


def check_keys(
    tree: ConfigSection,
    settings: Mapping[str, Setting],
    names_elsewhere: Mapping[str, str],
    options: Mapping[str, str],
    gone: Mapping[str, str],
) -> dict[str, Setting]:
    """Check that `tree` has the keys; returns the settings without sections that are set to null or {}.

    Args:
        names_elsewhere: The last part of our key by the name that other software gives to the same thing.
        options: The option of a command by the key that somebody may take it for.
        gone: What became of a key, or section, of an earlier version. It may hold `{above}`, the key's section, and
            `{value}`; the key may have * for a name that users choose.

    Raises:
        ConfigError: an unknown key, with the nearest valid one; a value for a section; a section for a value.
    """
    if not settings:
        return {}
    table = [*keys(tree)]
    names, mappings = [key.name for key in table], _mappings(table)
    checked: dict[str, Setting] = {}
    for key, setting in settings.items():
        if key in names or within(key, mappings):
            if within(key, mappings):
                _refuse_secret(key, setting.value, setting.place)
            checked[key] = setting
        elif any(name.startswith(f"{key}.") for name in names):
            if setting.value not in (None, {}):
                first = next(name for name in names if name.startswith(f"{key}."))
                raise ConfigError(f"{key} {setting.place} is a section: set one of its keys, such as {first}")
        elif key in {name for name, *_ in tables(tree)}:
            if setting.value not in (None, {}):
                raise ConfigError(f"{key} {setting.place} is a table: set its entries, such as {key}.NAME")
        else:
            if key in options:
                raise ConfigError(f"unknown key {key} {setting.place}: it is no setting but {options[key]}")
            if became := _became(key, setting.value, gone, names, names_elsewhere):
                raise ConfigError(f"unknown key {key} {setting.place}: {became}")
            raise ConfigError(_unknown(key, setting, names, names_elsewhere))
    return checked


def _became(
    key: str, value: Any, gone: Mapping[str, str], names: Container[str], elsewhere: Mapping[str, str]
) -> str | None:
    """What became of a key of an earlier version; None if there was none, or its section lacks what replaced it."""
    above, _, last = key.rpartition(".")
    old = within(key, gone) or within(re.sub(r"^(\w+)\.\w+", r"\1.*", f"{above}.{elsewhere.get(last, last)}"), gone)
    new = re.match(r".*\{above\}\.(\w+)", gone[old]) if old else None
    if old is None or (new and f"{above}.{new[1]}" not in names):
        return None
    return gone[old].format(above=above, value=_shown(key, value))


def overlay(below: Mapping[str, Setting], above: Mapping[str, Setting]) -> dict[str, Setting]:
    """Both; `above` overrides `below` key by key, and what it sets as a whole replaces all that lies below it."""
    left = {key: setting for key, setting in below.items() if not any(key.startswith(f"{name}.") for name in above)}
    return left | dict(above)


def _unknown(key: str, setting: Setting, names: list[str], names_elsewhere: Mapping[str, str]) -> str:
    parent, _, last = key.rpartition(".")
    if parent in names:
        return f"{parent} {setting.place} takes one value, it has no key {last}"
    _refuse_secret(key, "", setting.place)
    if near := _nearest_key(parent, (last, names_elsewhere.get(last, last)), names):
        return f"unknown key {key} {setting.place}: the nearest key is {near} (config --all lists all)"
    section = parent.removeprefix("pipeline.") if any(name.startswith(f"{parent}.") for name in names) else ""
    listed = f"config {section} lists the keys of {parent}" if section else "config --all lists all"
    return f"unknown key {key} {setting.place}: no key is like it (python -m chimera {listed})"


def _refuse_secret(key: str, value: Any, place: str) -> None:
    """Raise ConfigError if a text is probably a secret by its key, here or in the lists and mappings of `value`."""
    for name, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        _refuse_secret(f"{key}.{name}", part, place)
    last = key.rpartition(".")[2]
    hidden = SECRET_KEY.search(last) and not last.endswith(("_name", "_env", "_file", "_path"))  # Where a secret is.
    if hidden and isinstance(value, str):
        raise ConfigError(
            f"{key} {place} looks like a secret: put it into the environment or .env "
            "(.env.example lists the names), never into the configuration"
        )


def _nearest_key(section: str, last: Sequence[str], names: Sequence[str]) -> str | None:
    """The key most like `section` with one of the names `last`, first in the same section; None if none is alike."""

    def rank(name: str) -> tuple[bool, float, float]:
        own_section, _, own_last = name.rpartition(".")
        alike = max(likeness(word, own_last) for word in last)
        sections = max(likeness(section, candidate) for candidate in (own_section, own_section.partition(".")[2]))
        return own_section == section and alike >= ALIKE, alike, sections

    best = max(names, key=rank)
    return best if rank(best)[1] >= ALIKE else None


def _explain(error: ValidationError, settings: Mapping[str, Setting], types: Mapping[str, str]) -> ConfigError:
    first = error.errors(include_url=False)[0]
    path = [str(part) for part in first["loc"]]
    message = first["msg"].removeprefix("Value error, ")
    for length in range(len(path), 0, -1):
        key = ".".join(path[:length])
        if key in settings:
            allowed = re.sub(r"^\w+ should ", "it must ", message)
            setting = settings[key]
            if first["type"] not in ("literal_error", "value_error"):
                allowed += f" ({types[within(key, types) or key]})"
            return ConfigError(f"{key} is {_shown(key, setting.value)} {setting.place}, but {allowed}")
    place = next((s.place for key, s in settings.items() if key.startswith(".".join(path))), "")
    return ConfigError(f"{'.'.join(path)} {place}: {message}" if path else message)


def _shown(key: str, value: Any) -> str:
    text = json.dumps(value)
    return "a value not shown here" if SECRET_KEY.search(key) or re.search(r"//[^/]*@", text) else text


def _annotation_name(annotation: Any) -> str:
    if get_origin(annotation) is Annotated:
        return _annotation_name(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return " | ".join(str(choice) for choice in get_args(annotation))
    if get_origin(annotation) is dict:
        return "mapping"
    if get_origin(annotation) in (tuple, list):
        return f"list of {_annotation_name(get_args(annotation)[0])}"
    if get_args(annotation):
        return " | ".join(_annotation_name(part) for part in get_args(annotation))
    return _PLAIN_NAMES.get(annotation) or str(annotation.__name__).lower()
