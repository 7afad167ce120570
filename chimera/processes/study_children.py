"""Runs the commands of a study, one at a time, with output in a file, and ends all their processes."""

import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from chimera.core.errors import RunError
from chimera.core.secrets import ENVIRONMENT
from chimera.processes.child_environment import child_environment
from chimera.processes.children import Command

STOP_S = 9.5
"""Seconds after Ctrl-C at which a command is killed with all its processes. It must stop within ten seconds."""


def run_child(module: str, arguments: Sequence[str], log_file: Path, *, what: str, keys: Sequence[str] = ()) -> None:
    """Run `python -m module arguments` until it ends, with its output appended to `log_file`.

    Ctrl-C or SIGTERM interrupts the command, and a second one kills it.

    Args:
        module: For example "chimera.train".
        log_file: Receives the output; its folder is made.
        what: What the command does, for messages: "training of run data0-seed1".
        keys: Environment variables, or patterns of them, with the keys that its configuration names or its providers
            read, besides those of every command.

    Raises:
        RunError: The command failed; names its exit code, its last line and its log.
        KeyboardInterrupt: The user stopped it.
    """
    environment = child_environment(*ENVIRONMENT, "WANDB_*", "NETRC", *keys, network=True)
    child = Command(what, module, arguments, log_file, {**environment, "PYTHONUNBUFFERED": "1"})
    watch = threading.Timer(STOP_S, child.kill)
    watch.daemon = True
    interrupts = 0

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts > 1:
            child.kill()
            return
        os.write(sys.stderr.fileno(), b"\nstopping; once more kills at once\n")
        child.signal(signal.SIGINT)
        watch.start()

    before = {}
    try:
        child.tell("")
        before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
        child.join()
    finally:
        child.kill()
        watch.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)
    if interrupts:
        raise KeyboardInterrupt
    if child.exit_code != 0:
        raise RunError(
            f"{child.ending()}: {child.last_words(1)} (its output is in {log_file}); when the cause is mended, the "
            "same command goes on from here"
        )
