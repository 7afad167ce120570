"""`python -m chimera config [PART]`: the keys with type, default and meaning; `--yaml` prints what is in effect.

Listed are the keys that exist with the defaults, each once: a slot that is `like` another, and a phase after others,
show only what differs; `config roles` and `config society.graph` show the keys of these. `--all` lists all of all, and
a PART shows every key that has it, also the name of an algorithm that no phase has.
Where the output is read by a program, each key is one line.
"""

import argparse
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import getitem
from typing import Any

import yaml

from chimera.config.arguments import add_config_arguments, config_from
from chimera.config.loader import ConfigSection, Key, absent, effective, keys, sections, tables, within
from chimera.config.names_elsewhere import NAMES
from chimera.config.tree import Config, dump_config
from chimera.core.cli import parse_arguments
from chimera.core.errors import ConfigError, suggestion

Row = tuple[str, str, str, str]
WHOLE = {
    "reward": "weights of its parts",
    "roles": "the slot whose model plays each role, and its tools",
    "society.graph": "who works, and in which order",
}
"""Sections that are listed as one row."""
MISSING = object()


def key_table(parts: Sequence[str] = (), *, every: bool = False, config: Config | None = None) -> list[Row]:
    """The dotted keys, each with its type, default and description as text.

    Args:
        parts: Such as "ppo", "ppo.lr" or "lr": the keys that have one of them.
        every: True for keys that exist only beside other settings, and those of entries that repeat others.
        config: The keys of this configuration; of the default one without it.

    Raises:
        ConfigError: No key has such a part.
    """
    from training.configuration import load_config

    config = config or load_config()
    rows = [_row(key) for key in keys(config, examples=True)] if parts or every else [*_first_of_each(config)]
    for part in parts:
        if not any(_has(row, part) for row in rows):
            words = dict.fromkeys(word for name, *_ in rows for word in (name, *name.split(".")))
            hint = suggestion(NAMES.get(part, part), words, "without it, the usual ones are listed")
            raise ConfigError(f"no key has the part {part!r}: {hint}")
    return [row for row in rows if not parts or any(_has(row, part) for part in parts)]


def _row(key: Key) -> Row:
    return key.name, key.type, _default(key.default), key.description


def _first_of_each(config: Config) -> Iterator[Row]:
    """The keys that exist with the defaults. An entry like an earlier one of its table is one row: what differs.

    Left out is what an earlier phase has too, with the same default and meaning, and an algorithm that names its phase.
    """
    hidden, values, entries = absent(config), effective(config), dict(_entries(config))
    whole = {path: f"as {earlier}" for path, earlier in entries.items() if earlier and not within(path, WHOLE)} | WHOLE
    shown: set[object] = set()
    for key in keys(config):
        path = within(key.name, whole)
        if within(key.name, hidden) is not None:
            continue
        if path is None:
            row = _row(key)
            *_, section, name = ["", *key.name.split(".")]
            alike = (name, *row[1:])
            if alike not in shown and key.default != section:
                shown.add(alike)
                yield row
        elif path not in shown:
            shown.add(path)
            entry, earlier = _at(values, path), _at(values, entries[path]) if entries.get(path) else {}
            differs = {name: value for name, value in entry.items() if earlier.get(name, MISSING) != value}
            yield path, whole[path], yaml.safe_dump(differs, default_flow_style=True, width=1000).strip(), ""
    yield from (_row(Key(name, field, {})) for name, field, filled in tables(config) if not filled)


def _entries(section: ConfigSection, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Each section below `section`, with the earlier one of the same form and parent, or an empty text."""
    first: dict[tuple[str, type[ConfigSection]], str] = {}
    for name, below in sections(section).items():
        path = f"{prefix}{name}"
        earlier = first.setdefault((path.rpartition(".")[0], type(below)), path)
        yield path, "" if earlier == path else earlier
        yield from _entries(below, f"{path}.")


def _at(values: Mapping[str, Any], path: str) -> Any:
    return reduce(getitem, path.split("."), values)


def _has(row: Row, part: str) -> bool:
    return f".{part.strip('.')}." in f".{row[0]}."


def main(argv: list[str]) -> int | None:
    """Print the keys; with `--yaml`, the configuration that the other arguments give."""
    parser = argparse.ArgumentParser(
        prog="python -m chimera config",
        description=__doc__,
        epilog="An argument without = is a PART: config ppo, config ppo.lr, config lr.",
    )
    parser.add_argument("--yaml", action="store_true", help="print the configuration in effect as a YAML file")
    parser.add_argument("--all", action="store_true", help="list also keys that exist only beside other settings")
    add_config_arguments(parser)
    arguments = parse_arguments(parser, argv)
    parts = [text for text in arguments.overrides if "=" not in text]
    arguments.overrides = [text for text in arguments.overrides if "=" in text]
    if arguments.yaml and parts:
        raise ConfigError(f"--yaml prints the whole configuration: leave {parts[0]!r} out")
    from training.configuration import ALGORITHMS, load_config

    config = config_from(arguments, load=load_config)
    heads = dict.fromkeys(part.partition(".")[0] for part in parts)
    if others := [name for name in heads if name in ALGORITHMS and name not in config.pipeline]:
        arguments.overrides += [f"pipeline.{name}.roles=juniors" for name in others]
        config = config_from(arguments, load=load_config)
    if arguments.yaml:
        print(dump_config(config), end="")
        return None
    rows = key_table(parts, every=arguments.all, config=config)
    width = max(len(name) for name, *_ in rows)
    for row in rows:
        name, kind, default, meaning = row
        line = f"{name:<{width}}  {default}  ({kind})  {meaning}".rstrip()
        print(_paragraph(row) if sys.stdout.isatty() else line)
    return None


def _paragraph(row: Row) -> str:
    """A key with its type and default, and its meaning below it, as wide as the terminal."""
    name, kind, default, meaning = row
    columns = shutil.get_terminal_size().columns
    head = textwrap.fill(f"{name}  {default}  ({kind})", columns, subsequent_indent="    ")
    return f"{head}\n{textwrap.fill(meaning, columns, initial_indent='    ', subsequent_indent='    ')}"


def _default(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "[]"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    from chimera.core.cli import run_command

    run_command(main)
