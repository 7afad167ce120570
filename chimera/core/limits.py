"""The operating system's limits: checks them before a command starts, and explains errors that they cause."""

import errno

from chimera.core.errors import ConfigError

FILES = 64
"""Open files (and sockets) of one process of a run, without those for each concurrent rollout."""
FILES_EACH = 8
"""Open files for each concurrent rollout: calls of three juniors at once, and its tools'."""


def allow_files(setting: str, rollouts: int) -> None:
    """Let this process and its children open as many files as `rollouts` concurrent rollouts need.

    Args:
        setting: The setting of their number, such as "rollouts.concurrency".
        rollouts: Their number.

    Raises:
        ConfigError: The limit is lower, and cannot be raised from here.
    """
    import resource  # Windows has none; there, a command says so first.

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
    """The sentence for an error caused by a lack of memory or threads; None for any other error."""
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
        "rollouts.concurrency and serving.slots"
    )
