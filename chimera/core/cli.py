"""What all commands share: exit codes, one-line errors, and the arguments for the configuration."""

import argparse
import gc
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import TextIOWrapper
from typing import NoReturn

from chimera.core.errors import ChimeraError, ConfigError, RunError, storage_fault
from chimera.core.files import check_utf8
from chimera.core.machine import check_machine, out_of_memory, own_temporary_folder

Main = Callable[[list[str]], int | None]
"""A command's `main(argv)`: `argv` is without the program's name; None means exit code 0."""

INTERRUPTED, UNEXPECTED = 130, 70
COLLECT_AFTER = 50_000
"""New objects before Python looks for garbage; its own 700 would cost a sixth of the time that imports take."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
HUB_LOGGER = "huggingface_hub.utils._http"


def run_command(main: Main) -> NoReturn:
    """Check the machine (`chimera.core.machine`), run `main` in a temporary folder of its own and exit the process.

    A `ChimeraError` or a full disk gives one line on stderr and the error's exit code. Ctrl-C and SIGTERM give 130, and
    a closed pipe on stdout 0 without a message. Any other exception is a bug: 70 and a traceback without secrets.
    """
    from chimera.core.secrets import redact

    gc.set_threshold(COLLECT_AFTER)
    if isinstance(sys.stdout, TextIOWrapper):  # A terminal or log that is not UTF-8 gets "?" for what it cannot show.
        sys.stdout.reconfigure(errors="replace")
    keep_direct()
    logging.getLogger(HUB_LOGGER).addFilter(_said_once())
    remove_temporary_folder: Callable[[], None] | None = None
    try:
        check_machine()
        if (remove_temporary_folder := own_temporary_folder()) is not None:
            signal.signal(signal.SIGTERM, signal.default_int_handler)
        code = main(sys.argv[1:]) or 0
        sys.stdout.flush()
    except ChimeraError as error:
        print(f"error: {redact(str(error))}", file=sys.stderr)
        code = error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except Exception as error:  # noqa: BLE001  (the last frame of the program: shown and turned into an exit code)
        sentence = out_of_memory(error) or storage_fault(error)
        print(
            f"error: {redact(str(sentence))}\n" if sentence else redact(traceback.format_exc()), end="", file=sys.stderr
        )
        code = RunError.exit_code if sentence else UNEXPECTED
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    if code or "torch" in sys.modules:
        # Everything is closed by now. Unloading torch and VeRL would take up to ten seconds. After an error or Ctrl-C,
        # Python would also wait for threads that may never end, such as one that calls an unreachable server.
        logging.shutdown()
        sys.stderr.flush()
        if remove_temporary_folder is not None:
            remove_temporary_folder()
        os._exit(code)
    sys.exit(code)


def _said_once() -> Callable[[logging.LogRecord], bool]:
    """A filter: without network the hub's client says the same for half a minute, and when it will try again."""
    messages: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        new = text not in messages and not text.startswith("Retrying in")
        messages.add(text)
        return new

    return is_new


def keep_direct(*hosts: str) -> None:
    """Exclude this machine's own servers and `hosts` from proxies, here and in child processes.

    NO_PROXY has two spellings.
    """
    for name in ("NO_PROXY", "no_proxy"):
        listed = [entry for entry in os.environ.get(name, "").split(",") if entry]
        os.environ[name] = ",".join(dict.fromkeys([*listed, *LOOPBACK, *hosts]))


def count(text: str) -> int:
    """A number of an argument, which is at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return number


def parse_arguments(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Parse `argv`, with overrides allowed before, between and after options.

    Raises:
        ConfigError: An argument is not UTF-8, as one from a terminal with another encoding.
    """
    check_utf8(list(argv), "on the command line", ConfigError)
    return parser.parse_intermixed_args(list(argv))


def add_trust_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--trust NAME`, for commands that run code which a run's own settings name."""
    parser.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="NAME",
        help="a module that may be imported, or a program with its arguments that may be started, though only the "
        "run's own settings name it; a run may come from somebody else, so nothing else of it runs except installed "
        "packages (may be given several times)",
    )
