"""`python -m chimera serve [RUN]`: an OpenAI-compatible server on this machine, for what a run learned or any model.

It chats, streams, calls tools and follows JSON schemas. It listens on 127.0.0.1 and answers only requests with its
key, which is CHIMERA_API_KEY of the environment or .env, or is made and printed.
"""

import argparse
import json
import logging
import os
import secrets as random_secrets
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from chimera.config.arguments import add_config_arguments, config_from
from chimera.core.cli import parse_arguments
from chimera.core.errors import ConfigError, suggestion

if TYPE_CHECKING:
    from chimera.config.sections.models import ModelConfig
    from chimera.config.tree import Config

KEY = "CHIMERA_API_KEY"
INTRODUCTION = """{url} serves {names}; Ctrl-C ends it
key: {shown_key}

# the OpenAI SDK
import os
from openai import OpenAI

client = OpenAI(base_url="{url}", api_key={key})
question = {{"role": "user", "content": "Does aspirin prevent stroke?"}}
print(client.chat.completions.create(model={model}, messages=[question]).choices[0].message.content)

# LangChain
import os
from langchain_openai import ChatOpenAI

print(ChatOpenAI(base_url="{url}", api_key={key}, model={model}).invoke("Does aspirin prevent stroke?").content)
"""


def main(argv: list[str]) -> None:
    arguments = parse_arguments(_parser(), argv)
    if arguments.run is not None and "=" in arguments.run:  # argparse takes the first setting for the run.
        arguments.overrides.insert(0, arguments.run)
        arguments.run = None
    config, models = _plain(arguments) if arguments.run is None else _trained(arguments)

    from chimera.core.machine import LOOPBACK, listen_at
    from chimera.core.secrets import load_secrets, protect_logging, register_secret
    from chimera.serving.embedded.__main__ import run_server
    from chimera.serving.embedded.checkpoint import locate
    from chimera.serving.process import CHILD_ENVIRONMENT

    users_key = load_secrets([KEY]).get(KEY)
    if users_key is not None and not (users_key.isascii() and users_key.isprintable() and " " not in users_key):
        raise ConfigError(f"{KEY} cannot be sent in a header: use printable ASCII characters without blanks")
    key = users_key or random_secrets.token_urlsafe(24)
    register_secret(KEY, key)
    logging.basicConfig(level=logging.WARNING)
    protect_logging()
    for model in models.values():
        locate(model.path)  # Download here: what decodes has no network.
    os.environ |= CHILD_ENVIRONMENT | {"OMP_NUM_THREADS": str(config.serving.threads)}
    with listen_at(arguments.port) as listener:
        introduction = INTRODUCTION.format(
            url=f"http://{LOOPBACK}:{listener.getsockname()[1]}/v1",
            names=", ".join(f"{name} ({model.path})" for name, model in models.items()),
            shown_key=f"the value of {KEY}" if users_key else key,
            key=f'os.environ["{KEY}"]' if users_key else f'"{key}"',
            model=json.dumps(next(iter(models))),
        )
        log_file = Path(tempfile.gettempdir()) / "serve.log"
        with suppress(KeyboardInterrupt):  # It is how a server ends.
            run_server(listener, key, models, config.serving, log_file, lambda: print(introduction, flush=True))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m chimera serve", description=__doc__)
    parser.add_argument("run", nargs="?", metavar="RUN", help="the run's name or folder, or 'latest'")
    parser.add_argument("--slot", metavar="S", help="of a run: this slot alone, such as refiner; all without it")
    parser.add_argument("--model", metavar="FOLDER", help="instead of a run: any model folder (the bundled nano)")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="the port; any free one without it")
    add_config_arguments(parser)
    return parser


def _plain(arguments: argparse.Namespace) -> "tuple[Config, dict[str, ModelConfig]]":
    """The model of `--model`, or of the first slot, under the name of its folder."""
    from chimera.config.sections.models import SLOTS

    first = next(iter(SLOTS))
    if arguments.slot is not None:
        raise ConfigError(f"--slot {arguments.slot} is of a run: name the run, or leave --slot out")
    if arguments.model is not None:
        arguments.overrides.append(f"models.{first}.path={json.dumps(arguments.model)}")
    config = config_from(arguments, own_question=True, reads=("serving", "models"))
    model = config.models[first]
    if not model.has_weights:
        raise ConfigError(f"models.{first} is of kind {model.kind}, which has no weights here: give --model FOLDER")
    path = Path(model.path).expanduser()
    return config, {path.resolve().name if path.is_dir() else model.path: _embedded(model, model.path)}


def _trained(arguments: argparse.Namespace) -> "tuple[Config, dict[str, ModelConfig]]":
    """The slots of a run with the weights that are live at its end, those that have learned first.

    Raises:
        ConfigError, RunError: There is no such run or slot, or weights are not those that the run has sealed.
    """
    if arguments.model is not None or arguments.config is not None:
        raise ConfigError(f"the run {arguments.run} brings its own models and settings: leave --model and --config out")
    from chimera.run.directory import Run
    from chimera.run.inputs import check_inputs
    from chimera.run.policies import live
    from chimera.run.seals import checked

    path = Path(arguments.run)
    runs_dir = config_from(arguments, own_question=True, reads=("runs_dir", "serving")).runs_dir
    folder = path.parent if path.parent != Path() else runs_dir
    run = Run.latest(folder) if arguments.run == "latest" else Run.open(path.name, folder)
    arguments.config = run.config_file
    config = config_from(arguments, own_question=True, recorded=True)
    check_inputs(run.events(), run.config, config)
    learned = {policy.target: policy.folder for policy in live(run.events()).values() if policy.part == "weights"}
    slots = {
        name: _embedded(model, str(checked(run, learned[name])) if name in learned else model.path)
        for name, model in sorted(config.used().items(), key=lambda slot: slot[0] not in learned)
        if model.has_weights
    }
    if arguments.slot in slots:
        return config, {arguments.slot: slots[arguments.slot]}
    if arguments.slot is not None or not slots:
        hint = suggestion(
            str(arguments.slot), slots, "name one of them" if slots else "it has endpoints and rubrics alone"
        )
        place = f"--slot {arguments.slot}: " if arguments.slot is not None else ""
        raise ConfigError(f"{place}run {run.name!r} has no such weights; {hint} (slots: {', '.join(slots)})")
    return config, slots


def _embedded(model: "ModelConfig", path: str) -> "ModelConfig":
    """The weights in `path` in the embedded server, whatever serves them in the configuration."""
    return type(model)(path=path, dtype=model.dtype)


if __name__ == "__main__":
    from chimera.core.cli import run_command

    run_command(main)
