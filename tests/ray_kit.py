"""Two Ray nodes on loopback, with a token, and the end of one of them."""

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil

from chimera.config.sections.cluster import ClusterConfig
from chimera.core.machine import free_port

HEAD, SECOND = "127.0.0.2", "127.0.0.3"
QUICK = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "60000",
    "RAY_health_check_failure_threshold": "3",
}
"""A node that was killed counts as gone after some seconds; otherwise after half a minute. A busy one gets minutes."""
TRIES = 8
"""Ray itself gives a node half a minute to start."""
FRUGAL = {
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
}


class LoopbackCluster:
    """A Ray cluster of two nodes with two CPUs each. `ray stop` would end other clusters of this machine too."""

    def __init__(self) -> None:
        # pytest's folders have names that are too long for Ray's sockets.
        self.folder = Path(tempfile.mkdtemp(prefix="ray-"))
        token_file = self.folder / "token"
        token_file.touch(0o600)
        token_file.write_text(secrets.token_hex(32))
        self.port = free_port()
        self.config = ClusterConfig(address=f"{HEAD}:{self.port}", token_file=token_file)
        self.nodes: dict[str, psutil.Process] = {}

    def start(self, address: str) -> None:
        for _ in range(TRIES):
            if self._start(address):
                return
        raise AssertionError((self.folder / f"{address}.log").read_text())

    def _start(self, address: str) -> bool:
        first = ["--head", f"--port={self.port}", f"--temp-dir={self.folder}", "--include-dashboard=false"]
        first += ["--no-monitor"]  # Of the autoscaler.
        options = first if address == HEAD else [f"--address={HEAD}:{self.port}"]
        options += [f"--node-ip-address={address}", "--num-cpus=2", "--min-worker-port=0", "--max-worker-port=0"]
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.config.token_file)}
        log_file = self.folder / f"{address}.log"
        with log_file.open("wb") as log:
            started = subprocess.Popen(
                [sys.executable, "-m", "ray.scripts.scripts", "start", *options, "--block", "--disable-usage-stats",
                 "--include-log-monitor=false", "--object-store-memory=80000000"],
                env=os.environ | token | QUICK | FRUGAL | {"PYTHONPATH": os.getcwd()},
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.nodes[address] = psutil.Process(started.pid)
        while "Ray runtime started" not in log_file.read_text():
            if started.poll() is not None:
                del self.nodes[address]
                return False
            time.sleep(0.1)
        return True

    def kill(self, address: str) -> None:
        """End a node as a power cut would: all of its processes at once."""
        node = self.nodes.pop(address)
        family = [node, *node.children(recursive=True)]
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family, timeout=60)

    def node_of(self, pid: int) -> str:
        """The address of the node that a process belongs to."""
        above = {process.pid for process in psutil.Process(pid).parents()}
        (address,) = (address for address, node in self.nodes.items() if node.pid in above)
        return address

    def close(self) -> None:
        for address in list(self.nodes):
            self.kill(address)
        shutil.rmtree(self.folder, ignore_errors=True)
