"""This process as a member of the Ray cluster of `cluster.address`."""

import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

from chimera.config.sections.cluster import ClusterConfig
from chimera.core.errors import ConfigError, RunError

HEAD_S = 15.0
"""How long the head may be away. Ray itself waits for a minute, and then ends this process without a sentence."""
CONNECT_S, LOOK_S = 5.0, 1.0
WORKERS = {"worker_process_setup_hook": "chimera.core.imports.prefer_own_packages"}
"""Ray's workers import from the working directory first, which may have folders of the same names."""


class Membership:
    """This process's place in its cluster; whoever has called `join` leaves it again."""

    def __init__(self, address: str) -> None:
        self.users = 1
        self._address = address
        self._lost: str | None = None
        self._left = threading.Event()
        threading.Thread(target=self._watch, name="ray-head-watch", daemon=True).start()

    def check(self) -> None:
        """Raise RunError if the head has not answered for `HEAD_S` seconds."""
        if self._lost is not None:
            raise RunError(
                f"the head of the Ray cluster at {self._address} does not answer ({self._lost}); when the cluster is "
                "up, continue with --resume"
            )

    def leave(self) -> None:
        """Leave the cluster with the last user, which ends the actors that this process has started there."""
        global _membership
        import ray

        with _lock:
            self.users -= 1
            if self.users:
                return
            _membership = None
            self._left.set()
            with suppress(Exception):  # A cluster that is gone cannot be left.
                ray.shutdown()

    def _watch(self) -> None:
        host, _, port = self._address.rpartition(":")
        seen = time.monotonic()
        while not self._left.wait(LOOK_S):
            try:
                socket.create_connection((host, int(port)), CONNECT_S).close()
                seen = time.monotonic()
            except OSError as error:
                if time.monotonic() - seen > HEAD_S:
                    self._lost = error.strerror or str(error)
                    return


_lock = threading.Lock()
_membership: Membership | None = None


def join(cluster: ClusterConfig) -> Membership:
    """Make this process a member, so that `ray.remote` works in it. Ray is imported here, not before.

    A process is a member of one cluster: the next caller gets the same membership.

    Raises:
        ConfigError: The token file cannot be used.
        RunError: The cluster cannot be joined.
    """
    global _membership
    with _lock:
        if _membership is None:
            _membership = Membership(_join(cluster))
        else:
            _membership.users += 1
        return _membership


def _join(cluster: ClusterConfig) -> str:
    """Returns the head's address."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", **_token(cluster.token_file)}
    import ray
    from ray._raylet import AuthenticationTokenLoader, Config  # pyright: ignore[reportAttributeAccessIssue]
    from ray.exceptions import RayError

    # Ray 2.60 reads these variables when it is first imported, which may have been long ago.
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()
    try:
        ray.init(address=cluster.address, runtime_env=WORKERS, log_to_driver=False, configure_logging=False)
    except (OSError, ValueError, RuntimeError, RayError) as error:
        raise RunError(
            f"the Ray cluster at cluster.address={cluster.address} cannot be joined ({first_line(error)}): start a "
            "node of it on this machine (ray start), and see cluster.token_file"
        ) from error
    return ray.get_runtime_context().gcs_address


def _token(file: Path | None) -> dict[str, str]:
    """The variables that make Ray show the token in a file.

    Raises:
        ConfigError: There is none, or other users can read it.
    """
    if file is None:
        return {}
    try:
        mode = file.stat().st_mode
        with file.open("rb"):
            pass
    except OSError as error:
        raise ConfigError(f"cluster.token_file={file} cannot be read ({error.strerror}): copy the cluster's") from error
    if mode & 0o077:
        raise ConfigError(f"other users can read cluster.token_file={file}: run chmod 600 {file}")
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": os.path.abspath(file)}


def first_line(error: BaseException) -> str:
    """What matters of Ray's long messages, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:400]
