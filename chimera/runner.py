"""`python -m chimera.runner`: work on rollouts of a run that is under way, here or on another machine."""

import argparse
import sys
from pathlib import Path

from chimera.core.cli import add_trust_argument, run_command


def main(argv: list[str]) -> int | None:
    parser = argparse.ArgumentParser(
        prog="python -m chimera.runner",
        description=f"{__doc__} From another machine: ssh -N -L 4747:127.0.0.1:4747 -L 4748:127.0.0.1:4748 HOST",
    )
    parser.add_argument("--store", required=True, metavar="URL", help="such as http://127.0.0.1:4747")
    parser.add_argument("--key-file", required=True, type=Path, help="a copy of the run's cluster.key_file, mode 600")
    parser.add_argument(
        "--authority",
        type=Path,
        metavar="FILE",
        help="a copy of the run's cluster.tls.authority, for a --store that begins with https; without it the "
        "authorities that this system trusts",
    )
    add_trust_argument(parser)
    arguments = parser.parse_args(argv)

    import training  # noqa: F401  before Agent Lightning, which so leaves LiteLLM out
    from chimera.config.trust import check_trusted
    from training.lab.runners.runner import Doors, serve, worker_name
    from training.lab.runners.visitors import spec_here, visit

    store_url = arguments.store.rstrip("/")
    authority = arguments.authority and str(arguments.authority)
    told, store_key, gateway_key = visit(store_url, arguments.key_file, authority)
    spec = spec_here(told, Doors(store_url, str(told["gateway"]), store_key, gateway_key, authority))
    check_trusted(spec.config, f"the run at {store_url}", "rollouts", arguments.trust)
    print(f"{worker_name(told['number'])} works for the run at {store_url}", file=sys.stderr, flush=True)
    serve(spec, told["number"], ends=True)
    print("the run has ended", file=sys.stderr)
    return None


if __name__ == "__main__":
    run_command(main)
