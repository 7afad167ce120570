"""`python -m chimera config`: every key with its type, default and meaning; `--yaml` prints what is in effect."""

import argparse

from chimera.config.loader import keys
from chimera.config.tree import Config, dump_config
from chimera.core.cli import add_config_arguments, config_from, parse_arguments


def key_table() -> list[tuple[str, str, str, str]]:
    """Every dotted key with its type, default and description, as text."""
    return [(key.name, key.type, _default(key.default), key.description) for key in keys(Config(), examples=True)]


def main(argv: list[str]) -> int | None:
    """Print the table of keys; with `--yaml`, the configuration that the other arguments give."""
    parser = argparse.ArgumentParser(prog="python -m chimera config", description=__doc__)
    parser.add_argument("--yaml", action="store_true", help="print the configuration in effect as a YAML file")
    add_config_arguments(parser)
    arguments = parse_arguments(parser, argv)
    config = config_from(arguments)
    if arguments.yaml:
        print(dump_config(config), end="")
        return None
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("key", "type", "default", "meaning"):
        table.add_column(column, no_wrap=column == "key", overflow="fold")
    for row in key_table():
        table.add_row(*row)
    Console(markup=False).print(table)
    return None


def _default(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return "-" if value is None else str(value)


if __name__ == "__main__":
    from chimera.core.cli import run_command

    run_command(main)
