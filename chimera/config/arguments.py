"""The arguments of commands that read a configuration: `--config FILE` and overrides such as gather.tasks=20."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from chimera.core.errors import ConfigError

if TYPE_CHECKING:
    from chimera.config.tree import Config


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--config FILE` and positional `key=value` overrides; parse with `parse_arguments`."""
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="YAML file; the defaults, as in configs/local.yaml, without it"
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="key=value",
        help="settings other than the file's (python -m chimera config)",
    )


def config_from(
    arguments: argparse.Namespace,
    *,
    own_question: bool = False,
    recorded: bool = False,
    reads: Sequence[str] | None = None,
    load: "Callable[..., Config] | None" = None,
) -> "Config":
    """The configuration that `--config` and the overrides ask for; `own_question`, `recorded` as in `load_config`.

    `load` is `training.configuration.load_config` for commands that read the phases' own settings.

    `reads` names the sections (or keys) that the command reads. A file may hold other sections, for other
    commands. An override of another section would have no effect and is refused.

    Raises:
        ConfigError: see `chimera.config.tree.load_config`; or an override has no effect on this command.
    """
    from chimera.config.loader import within
    from chimera.config.tree import load_config

    config = (load or load_config)(arguments.config, arguments.overrides, own_question=own_question, recorded=recorded)
    for override in arguments.overrides:
        key = override.partition("=")[0].strip()
        full_key = f"pipeline.{key}" if key.partition(".")[0] in config.pipeline else key
        if reads is not None and within(full_key, reads) is None:
            raise ConfigError(f"{key} has no effect on this command, which reads {', '.join(reads)}: leave it out")
    return config
