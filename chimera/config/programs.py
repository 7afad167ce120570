"""Programs that a configuration starts: MCP servers. A run that somebody gave you must not start any unasked."""

import json
import shlex
from collections.abc import Sequence

from chimera.config.source import parse_overrides
from chimera.config.tree import Config
from chimera.core.errors import ConfigError


def confirmations(config: Config) -> tuple[str, ...]:
    """The overrides that confirm each program that `config` starts."""
    servers = {name: config.tools.mcp[name] for name in config.roles.mcp().values()}
    return tuple(
        f"tools.mcp.{name}.command={json.dumps(list(server.command), ensure_ascii=False)}"
        for name, server in servers.items()
        if server.command
    )


def is_confirmation(key: str) -> bool:
    """True if an override of `key` names a program."""
    return key.startswith("tools.mcp.") and key.endswith(".command")


def check_confirmed(config: Config, overrides: Sequence[str]) -> None:
    """Make sure that the command line names each program that a run's own settings start.

    Args:
        config: The configuration, with settings from a run.
        overrides: Those of the command line.

    Raises:
        ConfigError: A program is named by the run's settings only.
    """
    given = parse_overrides(overrides)
    for confirmation in confirmations(config):
        key, _, value = confirmation.partition("=")
        if key not in given:
            raise ConfigError(
                f"the run's settings start the program {shlex.join(json.loads(value))!r} ({key}), and a run may come "
                f"from somebody else: if you trust it, add {shlex.quote(confirmation)}"
            )
