"""The operating system's limits that a command needs, checked before it starts anything."""

import resource

from chimera.errors import ConfigError

FILES = 64
"""Open files, sockets among them, of one process of a run, besides those for each rollout that is made at a time."""
FILES_EACH = 8
"""Open files for each rollout at a time: three calls at once, each in and out of the gateway, and the store's."""


def allow_files(setting: str, rollouts: int) -> None:
    """Let this process and its children open the files that `rollouts` rollouts at a time need.

    Args:
        setting: What sets their number, such as "rollouts.runners".
        rollouts: The number.

    Raises:
        ConfigError: The limit is lower, and cannot be raised from here.
    """
    needed = FILES + FILES_EACH * rollouts
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ConfigError(
            f"{setting}={rollouts} needs {needed} open files, and a process may open {hard} here: raise the limit "
            f"(ulimit -n {needed}), or lower {setting}"
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
