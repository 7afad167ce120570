"""`python -m chimera config [PART]`: every key, or those below PART; `--yaml` prints what is in effect.

A key comes with its type, default and meaning. Where the output is read by a program, each key is one line.
"""

import argparse
import shutil
import sys
import textwrap
from collections.abc import Sequence

from chimera.config.loader import keys
from chimera.config.names_elsewhere import NAMES
from chimera.config.tree import Config, dump_config
from chimera.core.cli import add_config_arguments, config_from, parse_arguments
from chimera.core.errors import ConfigError, suggestion

Row = tuple[str, str, str, str]


def key_table(parts: Sequence[str] = ()) -> list[Row]:
    """The dotted keys, each with its type, default and description as text: all, or those with one of `parts`.

    Args:
        parts: Such as "ppo", "ppo.lr" or "lr".

    Raises:
        ConfigError: No key has such a part.
    """
    rows = [(key.name, key.type, _default(key.default), key.description) for key in keys(Config(), examples=True)]
    for part in parts:
        if not any(_has(row, part) for row in rows):
            known = dict.fromkeys(word for name, *_ in rows for word in (name, *name.split(".")))
            hint = suggestion(NAMES.get(part, part), known, "without it, all are listed")
            raise ConfigError(f"no key has the part {part!r}: {hint}")
    return [row for row in rows if not parts or any(_has(row, part) for part in parts)]


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
    add_config_arguments(parser)
    arguments = parse_arguments(parser, argv)
    parts = [text for text in arguments.overrides if "=" not in text]
    arguments.overrides = [text for text in arguments.overrides if "=" in text]
    if arguments.yaml and parts:
        raise ConfigError(f"--yaml prints the whole configuration: leave {parts[0]!r} out")
    config = config_from(arguments)
    if arguments.yaml:
        print(dump_config(config), end="")
        return None
    rows = key_table(parts)
    width = max(len(name) for name, *_ in rows)
    for row in rows:
        print(_paragraph(row) if sys.stdout.isatty() else _line(row, width))
    return None


def _line(row: Row, width: int) -> str:
    name, kind, default, meaning = row
    return f"{name:<{width}}  {default}  ({kind})  {meaning}"


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
