"""Describes how a run was made: versions, platform and commit; no secrets and no environment variables."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from chimera.processes.child_environment import child_environment


def now() -> str:
    """The time in UTC as ISO 8601 with microseconds, so that texts sort by time."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def describe_environment() -> dict[str, Any]:
    """Python, packages, platform, processors and the checkout's commit (None outside a checkout or without git)."""
    return {
        "created": now(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "commit": _git("rev-parse", "HEAD"),
        "modified_files": _modified_files(),
        "packages": _packages(),
    }


def describe_code() -> dict[str, Any]:
    """Time, commit and number of modified files of the code that runs now."""
    return {"time": now(), "commit": _git("rev-parse", "HEAD"), "modified_files": _modified_files()}


@cache
def _packages() -> dict[str, str]:
    return dict(sorted((item.name.lower(), item.version) for item in metadata.distributions()))


def _modified_files() -> int:
    return len((_git("status", "--porcelain", "--untracked-files=no") or "").splitlines())


def _git(*arguments: str) -> str | None:
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        command = ["git", "-C", str(root), *arguments]
        answer = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            timeout=10,
            stdin=subprocess.DEVNULL,
            env=child_environment("GIT_*"),
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
