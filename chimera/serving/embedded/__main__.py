"""The server process: `python -m chimera.serving --fd N --parent PID`, started by `chimera.serving.process`.

Reads its settings and key as one JSON object from stdin, serves until SIGTERM, and ends with its parent.
"""

import argparse
import json
import logging
import socket
import sys

from chimera.run.parent import end_with

GRACE_S = 5
"""Seconds that running requests get to finish when the server is told to stop."""


def main() -> int:
    """Serve until told to stop; returns the exit code."""
    parser = argparse.ArgumentParser(prog="chimera.serving", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="the listening socket, inherited from the parent")
    parser.add_argument("--parent", type=int, required=True, help="process id to end with")
    options = parser.parse_args()
    # The parent may end while this process still imports its libraries, so the watch begins before them.
    end_with(options.parent)

    from chimera.config.tree import ModelConfig, ServingConfig
    from chimera.core.errors import ChimeraError, ModelError
    from chimera.core.limits import out_of_memory

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    settings = json.load(sys.stdin)
    models = {key: ModelConfig.model_validate(model) for key, model in settings["models"].items()}
    serving = ServingConfig.model_validate(settings["serving"])

    import uvicorn

    from chimera.serving.embedded.app import create_app
    from chimera.serving.embedded.service import Service

    try:
        service = Service(models, serving)
    except ChimeraError as error:
        print(error, file=sys.stderr, flush=True)
        return error.exit_code
    except (MemoryError, OSError, RuntimeError) as error:
        if (sentence := out_of_memory(error)) is None:
            raise
        print(sentence, file=sys.stderr, flush=True)
        return ModelError.exit_code
    config = uvicorn.Config(
        create_app(service, settings["api_key"]),
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=GRACE_S,
    )
    # uvicorn 0.54's own `fd` takes the socket for a Unix one, so TCP_NODELAY stays off: 40 ms for every answer.
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=options.fd)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
