"""W&B's own service, `wandb-core`, with an environment, a log and an end that are ours.

wandb 0.28 starts it with the whole environment of its process, secrets too, and with its terminal. At the interpreter's
exit it waits for the service without a limit. So the service is started here, and can be killed at any time.
"""

import os
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from chimera.config.loader import effective
from chimera.config.tree import Config
from chimera.core.secrets import redact_tree
from chimera.processes.child_environment import child_environment
from chimera.processes.programs import Program
from chimera.run.directory import Run
from training.watch.wandb.rows import SECTION

if TYPE_CHECKING:
    import wandb

LIMITS = {"WANDB_INIT_TIMEOUT": "30", "WANDB_FINISH_TIMEOUT": "15"}
"""Default limits, in seconds, for W&B's server to answer and to take the last rows."""
OFFLINE_INIT_SECONDS = 300.0
"""The first limit offline, where only this machine can be slow."""
COLLECTORS = ("disable_code", "disable_git", "x_disable_machine_info", "x_disable_meta", "x_disable_stats")
"""Settings that stop what W&B collects by itself."""
NOTES = f"Look at the section '{SECTION}' first. Other metrics have no chart of their own; Add panel finds them."


class WandbService(Program):
    """The service of this process's W&B. The thread that starts it must outlive it.

    Args:
        run: Its output is appended to a log of this run, and its files lie in a folder of it.
    """

    def __init__(self, run: Run) -> None:
        folder = run.path / "wandb"
        folder.mkdir(exist_ok=True)
        ours = {"WANDB_DATA_DIR": str(folder / "data"), "WANDB_CACHE_DIR": str(folder / "cache")}
        os.environ |= {"WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false", **ours}
        for name, seconds in LIMITS.items():
            os.environ.setdefault(name, seconds)
        import wandb
        from wandb.util import get_core_path

        self._teardown = wandb.teardown
        self._port_folder = TemporaryDirectory(prefix="wandb-", ignore_cleanup_errors=True)
        self._port = Path(self._port_folder.name, "port")
        command = [get_core_path(), "--no-observability", "--pid", str(os.getpid()), "--port-filename", str(self._port)]
        environment = child_environment("WANDB_*", network=True)
        super().__init__("W&B", command, run.path / "logs" / "wandb.log", environment)

    def connect(self) -> None:
        """Make this the service that `wandb.init` uses and `wandb.teardown` ends."""
        from wandb.sdk import wandb_setup
        from wandb.sdk.lib.service.service_connection import ServiceConnection
        from wandb.sdk.lib.service.service_port_file import poll_for_token
        from wandb.sdk.lib.service.service_process import ServiceProcess

        setup = wandb_setup.singleton()
        with self._port_folder:
            token = poll_for_token(self._port, self._process, timeout=setup.settings.x_service_wait)
        client = token.connect(asyncer=setup.asyncer)
        itself = ServiceProcess(connection_token=token, process=self._process)
        setup._connection = ServiceConnection(setup.asyncer, client, itself)  # pyright: ignore[reportPrivateUsage]

    def finish(self, shown: "wandb.Run") -> None:
        """Let W&B send the rest and end; `Run.finish` alone does not wait for the end of W&B's file."""
        shown.finish()
        self._teardown()

    def abandon(self) -> None:
        """Kill the service, so that W&B can be started anew in this process."""
        self.kill()
        with suppress(Exception, SystemExit):  # Its service is gone.
            self._teardown()


def start_wandb(run: Run, run_id: str, config: Config, key: str | None, *, online: bool) -> "wandb.Run":
    """Start or continue the W&B run; raises whatever wandb raises.

    W&B collects nothing by itself: no console, no code, no system metrics, nothing about the machine. Its page's
    stop button, which would interrupt the main thread, does nothing.
    """
    import wandb

    settings = wandb.Settings(
        api_key=key if online else None,
        console="off",
        finish_timeout_raises=True,
        host="",
        reinit="create_new",
        stop_fn=lambda: None,
        x_save_requirements=False,
        **dict.fromkeys(COLLECTORS, True),
    )
    if not online:
        settings.init_timeout = OFFLINE_INIT_SECONDS
    return wandb.init(
        project=os.environ.get("WANDB_PROJECT") or "chimera",
        id=run_id,
        name=run.path.name,
        dir=run.path,
        mode="online" if online else "offline",
        resume="allow" if online else None,
        config=redact_tree(effective(config)),
        notes=NOTES,
        settings=settings,
    )
