"""Every error that Chimera raises on purpose: one sentence with the value, the place and the remedy."""

import errno
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class ChimeraError(Exception):
    """Base of all errors that a user may see; entry points print it as one line and exit with `exit_code`."""

    exit_code = 1

    def _render_traceback_(self) -> list[str]:
        """The error as notebooks show it: one line without secrets, as in commands."""
        from chimera.core.secrets import redact

        return [f"error: {redact(str(self))}"]


class ConfigError(ChimeraError):
    """A configuration file, override or environment variable is wrong."""

    exit_code = 2


class DataError(ChimeraError):
    """A data file is broken; the message names file, record and field."""

    exit_code = 3


class ModelError(ChimeraError):
    """A model server failed or refused a request.

    `retriable` is True if the same request may succeed later (time-out, 429, 5xx), after `wait_s` seconds if the server
    names a time.
    """

    exit_code = 4

    def __init__(self, message: str, *, retriable: bool = False, wait_s: float | None = None) -> None:
        super().__init__(message)
        self.retriable, self.wait_s = retriable, wait_s


class UnreachableError(ModelError):
    """No server answers at the address, so no server has received the request."""


class RateLimitError(UnreachableError):
    """A server refuses every call for its rate, for longer than may be waited: as if it could not be reached."""


class RoleError(ChimeraError):
    """A role could not do its work, for example because its output stayed unparseable after the repair attempt."""

    exit_code = 5

    def __init__(self, role: str, reason: str) -> None:
        super().__init__(f"{role}: {reason}")
        self.role = role
        self.reason = reason

    def __reduce__(self) -> tuple[type["RoleError"], tuple[str, str]]:
        return (RoleError, (self.role, self.reason))


class RunError(ChimeraError):
    """A run directory or a run's process is not in the state that a command needs."""

    exit_code = 6


STORAGE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
"""Error numbers of disk faults: no space, no quota, file too large, read-only, input/output error."""


ALIKE = 0.6
"""Names that are less alike are not taken for each other: a hint that fits badly misleads more than none."""
_WORDS = re.compile(r"[\W_]+|(?<=[a-z])(?=[A-Z])")


def likeness(name: str, other: str) -> float:
    """How alike two names are, from 0 to 1: by their letters, or because one has all words of the other."""
    from difflib import SequenceMatcher

    letters = SequenceMatcher(None, name.casefold(), other.casefold()).ratio()
    words, others = ({word.casefold() for word in _WORDS.split(text) if word} for text in (name, other))
    return max(letters, 0.9) if words and others and (words <= others or others <= words) else letters


def nearest(name: str, names: Iterable[str], at_least: float = ALIKE) -> str | None:
    """The known name that is most like `name`; None if none is alike."""
    best = max(names, key=lambda other: likeness(name, other), default=None)
    return best if best is not None and likeness(name, best) >= at_least else None


def suggestion(name: str, names: Iterable[str], otherwise: str = "", at_least: float = ALIKE) -> str:
    """Ends the message about an unknown name: the known name that is most like it, or else `otherwise`."""
    near = nearest(name, names, at_least)
    return f"did you mean {near!r}?" if near else otherwise


def storage_fault(error: BaseException) -> RunError | None:
    """The `RunError` for an operating system's error that the disk or a path caused; None for any other error."""
    place = getattr(error, "filename", None) or "a file"
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG):
        return RunError(f"{place} cannot be used ({error.strerror}): name another place, or allow it")
    if isinstance(error, OSError) and error.errno in STORAGE:
        return RunError(f"{place} cannot be written ({error.strerror}): make room there, then continue with --resume")
    return None


@contextmanager
def boundary(error: type[ChimeraError], stage: str) -> Iterator[None]:
    """Turn an unexpected exception inside `stage` into an `error` that names it; a `ChimeraError` passes unchanged."""
    try:
        yield
    except ChimeraError:
        raise
    except Exception as cause:
        raise error(f"{stage}: {type(cause).__name__}: {cause}") from cause
