"""`python -m chimera.view`: a web page on this machine that shows runs, also while they go on."""

import argparse
from contextlib import suppress
from pathlib import Path

from chimera.core.cli import parse_arguments


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m chimera.view",
        description=__doc__,
        epilog="It answers on this machine only (127.0.0.1), and only to who has the key in the address that it "
        "prints. From elsewhere: ssh -L PORT:127.0.0.1:PORT HOST, with the same PORT on both sides.",
    )
    parser.add_argument("--runs-dir", metavar="DIR", help="where runs are (as runs_dir=DIR; runs without it)")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="the port; any free one without it")
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help="runs_dir=DIR")
    arguments = parse_arguments(parser, argv)
    arguments.config = None

    from chimera.config.arguments import config_from
    from chimera.core.secrets import load_secrets
    from evaluation.view.serve import serve_view

    config = config_from(arguments, own_question=True, reads=("runs_dir",))
    load_secrets()  # `redact` then hides them in what pages and logs say.
    folder = Path(arguments.runs_dir or config.runs_dir)

    def tell(address: str) -> None:
        print(address, flush=True)
        print(f"shows the runs in {folder} to whoever has this address; Ctrl-C ends it", flush=True)

    with suppress(KeyboardInterrupt):  # It is how a viewer ends.
        serve_view(folder, arguments.port, tell)


if __name__ == "__main__":
    from chimera.core.cli import run_command

    run_command(main)
