"""Reading settings: YAML files and dotted overrides become flat settings, each with the place where it was set."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from chimera.core.errors import ConfigError

MAX_DEPTH = 8
"""Deepest nesting of mappings that is read. This also stops a mapping that contains itself."""

COMMAND_LINE = "on the command line"


@dataclass(frozen=True, slots=True)
class Setting:
    """One value as the user wrote it, and its place as the end of a sentence: 'at configs/local.yaml:3'."""

    value: Any
    place: str


class _Loader(yaml.SafeLoader):
    """Safe loader with the scalars of YAML 1.2: `1e-5` is a number; `no`, `off`, `1:30` and dates are strings.

    It is not PyYAML's faster one in C, because a deeply nested file ends that with a segmentation fault.
    """

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  (PyYAML's own protocol)


_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^(?:null|Null|NULL|~|)$"), ["n", "N", "~", ""])
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), [*"tTfF"]
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?(?:0|[1-9][0-9]*)$"), [*"-+0123456789"])
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.inf)$|^\.nan$"),
    [*"-+.0123456789"],
)


class _Dumper(yaml.SafeDumper):
    """Quotes every string that any YAML reader, also an older one, would read as another type."""

    yaml_implicit_resolvers = {  # noqa: RUF012  (PyYAML's own protocol)
        first: [
            *yaml.SafeDumper.yaml_implicit_resolvers.get(first, []),
            *_Loader.yaml_implicit_resolvers.get(first, []),
        ]
        for first in {*yaml.SafeDumper.yaml_implicit_resolvers, *_Loader.yaml_implicit_resolvers}
    }


def to_yaml(value: dict[str, Any]) -> str:
    """Write `value` as YAML; `read_yaml` reads the same values back."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def read_yaml(path: Path) -> Mapping[str, Setting]:
    """Read a YAML file into settings by dotted key.

    Raises:
        ConfigError: the file cannot be read, is no YAML mapping, or sets a key twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"configuration file {path} does not exist") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file {path} cannot be read: {error}") from error
    return parse_yaml(text, str(path))


@lru_cache(maxsize=8)  # A run's settings are read many times, and PyYAML is slow: a third of a report's verification.
def parse_yaml(text: str, name: str) -> Mapping[str, Setting]:
    """Read YAML text into settings by dotted key; `name` is the file's name in messages."""
    settings: dict[str, Setting] = {}
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if isinstance(node, yaml.MappingNode):
            _flatten(loader, node, (), name, settings)
        elif node is not None:
            raise ConfigError(f"{name}:{_line(node)}: a configuration file is a mapping of sections, this is not one")
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{name} is not valid YAML: {_one_line(error)}") from error
    return settings


def parse_overrides(overrides: Sequence[str]) -> dict[str, Setting]:
    """Read `a.b=value` overrides, with values in YAML. The last override of a key counts."""
    settings: dict[str, Setting] = {}
    for override in overrides:
        key, equals, text = override.partition("=")
        key = key.strip()
        if not equals or not key:
            raise ConfigError(f"{override!r} is not an override: write key=value, for example gather.tasks=20")
        try:
            loader = _Loader(text)
            node = loader.get_single_node()
            if isinstance(node, yaml.MappingNode) and node.value:
                leaves: dict[str, Setting] = {}
                _flatten(loader, node, (key,), f"override of {key}", leaves)
                settings |= {name: Setting(setting.value, COMMAND_LINE) for name, setting in leaves.items()}
            else:
                value = None if node is None else loader.construct_object(node, deep=True)
                settings[key] = Setting(value, COMMAND_LINE)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise ConfigError(f"the value of {key} {COMMAND_LINE} is not valid YAML: {_one_line(error)}") from error
    return settings


def _flatten(
    loader: _Loader, node: yaml.MappingNode, prefix: tuple[str, ...], name: str, settings: dict[str, Setting]
) -> None:
    if node.tag != "tag:yaml.org,2002:map":
        raise yaml.constructor.ConstructorError(problem=f"tag {node.tag} is not allowed", problem_mark=node.start_mark)
    if len(prefix) > MAX_DEPTH:
        raise ConfigError(f"{name}:{_line(node)}: {'.'.join(prefix[:3])}... is nested more than {MAX_DEPTH} deep")
    for key_node, value_node in node.value:
        place = f"at {name}:{_line(key_node)}"
        if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != "tag:yaml.org,2002:str":
            raise ConfigError(
                f"{name}:{_line(key_node)}: a key must be a name, got {getattr(key_node, 'value', key_node)!r}"
            )
        if prefix and "." in key_node.value:
            remedy = "write one below the other, or take a name without a dot"
            raise ConfigError(f"{name}:{_line(key_node)}: {key_node.value!r} would be a section and its key: {remedy}")
        path = (*prefix, key_node.value)
        dotted = ".".join(path)
        earlier = settings.get(dotted) or next((s for k, s in settings.items() if k.startswith(dotted + ".")), None)
        if earlier is not None:
            raise ConfigError(f"{dotted} is set twice, {earlier.place} and {place}: keep one of them")
        if isinstance(value_node, yaml.MappingNode) and value_node.value:
            _flatten(loader, value_node, path, name, settings)
        else:
            settings[dotted] = Setting(loader.construct_object(value_node, deep=True), place)


def _line(node: yaml.Node) -> int:
    return node.start_mark.line + 1


def _one_line(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "its values are nested too deeply"
    return " ".join(str(error).split())
