"""The operating system's limits: what a command needs is checked before it starts, and what it met is told in words."""

import errno
import resource

from chimera.core.errors import ConfigError

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


def out_of_memory(error: BaseException) -> str | None:
    """The sentence for an error that says that the system gave no more memory or threads; None for any other."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, MemoryError) or (isinstance(seen, OSError) and seen.errno == errno.ENOMEM):
            break
        if isinstance(seen, RuntimeError) and ("allocate memory" in str(seen) or "start new thread" in str(seen)):
            break
        seen = seen.__cause__ or seen.__context__
    if seen is None:
        return None
    said = str(seen).splitlines()[0] if str(seen) else type(seen).__name__
    return (
        f"the system gives no more memory or threads ({said}): raise the limits (ulimit -v, ulimit -u), or lower "
        "rollouts.runners and serving.slots"
    )
