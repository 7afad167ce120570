"""`python -m chimera serve [RUN]`: an OpenAI-compatible server on this machine, for what a run learned or any model.

It chats, streams, calls tools and follows JSON schemas, and answers only who sends its key.
"""

import argparse
import json
import logging
import os
import secrets as random_secrets
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chimera.config.arguments import add_config_arguments, config_from
from chimera.core.cli import parse_arguments
from chimera.core.errors import ConfigError, RunError, suggestion

if TYPE_CHECKING:
    from chimera.config.sections.models import ModelConfig
    from chimera.config.tree import Config

KEY = "CHIMERA_API_KEY"
QUESTION = "Does aspirin prevent stroke?"
EXAMPLES = """
# the OpenAI SDK
{import_key}from openai import OpenAI

client = OpenAI(base_url="{url}", api_key={key})
answer = client.chat.completions.create(model={model}, messages=[{{"role": "user", "content": "{question}"}}])
print(answer.choices[0].message.content)

# LangChain
{import_key}from langchain_openai import ChatOpenAI

model = ChatOpenAI(base_url="{url}", api_key={key}, model={model})
print(model.invoke("{question}").content)
"""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model under the name that clients send, and a phrase for the user that says which weights it has."""

    name: str
    config: "ModelConfig"
    about: str


def main(argv: list[str]) -> int | None:
    arguments = parse_arguments(_parser(), argv)
    if arguments.run is not None and "=" in arguments.run:  # argparse takes the first setting for the run.
        arguments.overrides.insert(0, arguments.run)
        arguments.run = None
    config, models = _of_model(arguments) if arguments.run is None else _of_run(arguments)

    from chimera.core.machine import LOOPBACK, listen_at
    from chimera.core.secrets import load_secrets, protect_logging, register_secret
    from chimera.serving.embedded.__main__ import open_service, serve_at
    from chimera.serving.embedded.checkpoint import locate
    from chimera.serving.process import CHILD_ENVIRONMENT

    key = load_secrets([KEY]).get(KEY)
    if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
        raise ConfigError(f"{KEY} cannot be sent in a header: use printable ASCII characters without blanks")
    shown, key = key is None, key or random_secrets.token_urlsafe(24)
    register_secret(KEY, key)
    logging.basicConfig(level=logging.WARNING)
    protect_logging()
    for model in models:
        locate(model.config.path)  # Download here: what decodes has no network.
    os.environ |= CHILD_ENVIRONMENT | {"OMP_NUM_THREADS": str(config.serving.threads)}
    with listen_at(arguments.port) as listener:
        log_file = Path(tempfile.gettempdir()) / "serve.log"
        service = open_service({model.name: model.config for model in models}, config.serving, log_file)
        address = f"http://{LOOPBACK}:{listener.getsockname()[1]}/v1"
        print(_introduction(address, key if shown else None, models), flush=True)
        try:
            serve_at(listener, service, key)
        except KeyboardInterrupt:
            return 0  # It is how a server ends.
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m chimera serve",
        description=__doc__,
        epilog=f"It listens on 127.0.0.1. Its key is {KEY} (environment or .env), or is made and printed.",
    )
    parser.add_argument("run", nargs="?", metavar="RUN", help="the run's name or folder, or 'latest'")
    parser.add_argument("--slot", metavar="S", help="of a run: this slot alone, such as refiner; all without it")
    parser.add_argument(
        "--model", metavar="FOLDER", help="instead of a run: any model, as models.junior.path (the bundled nano)"
    )
    parser.add_argument("--port", type=int, default=0, metavar="N", help="the port; any free one without it")
    add_config_arguments(parser)
    return parser


def _of_model(arguments: argparse.Namespace) -> "tuple[Config, list[ServedModel]]":
    """The model of `--model`, or of the slot junior, under the name of its folder."""
    if arguments.slot is not None:
        raise ConfigError(f"--slot {arguments.slot} is of a run: name the run, or leave --slot out")
    if arguments.model is not None:
        arguments.overrides.append(f"models.junior.path={json.dumps(arguments.model)}")
    config = config_from(arguments, own_question=True, reads=("serving", "models"))
    model = config.models["junior"]
    if not model.has_weights:
        raise ConfigError(f"models.junior is of kind {model.kind}, which has no weights here: give --model FOLDER")
    path = Path(model.path).expanduser()
    return config, [_served(path.resolve().name if path.is_dir() else model.path, model, model.path, model.path)]


def _of_run(arguments: argparse.Namespace) -> "tuple[Config, list[ServedModel]]":
    """The slots of a run with the weights that are live at its end, which must be those that it has sealed.

    Raises:
        ConfigError, RunError: There is no such run or slot, or files of the run were changed.
    """
    if arguments.model is not None or arguments.config is not None:
        raise ConfigError(f"the run {arguments.run} brings its own models and settings: leave --model and --config out")
    from chimera.run.directory import Run
    from chimera.run.inputs import check_inputs
    from chimera.run.policies import live
    from chimera.run.seals import checked

    path = Path(arguments.run)
    folder = config_from(arguments, own_question=True, reads=("runs_dir", "serving")).runs_dir
    folder = path.parent if path.parent != Path() else folder
    run = Run.latest(folder) if arguments.run == "latest" else Run.open(path.name, folder)
    arguments.config = run.config_file
    config = config_from(arguments, own_question=True, recorded=True)
    check_inputs(run.events(), run.config, config)
    slots = {name: model for name, model in config.used().items() if model.has_weights}
    if not slots:
        raise RunError(f"run {run.name!r} has no weights to serve: all its models are endpoints or rubrics")
    if arguments.slot is not None and arguments.slot not in slots:
        hint = suggestion(arguments.slot, slots, "name one of them")
        raise ConfigError(
            f"--slot {arguments.slot}: run {run.name!r} has no such slot with weights; {hint} (slots: "
            f"{', '.join(slots)})"
        )
    learned = {policy.target: policy for policy in live(run.events()).values() if policy.part == "weights"}
    served = [
        _served(name, model, str(checked(run, learned[name].folder)), f"{learned[name].version} of run {run.name}")
        if name in learned
        else _served(name, model, model.path, f"{model.path}, which run {run.name} has not changed")
        for name, model in slots.items()
        if arguments.slot in (None, name)
    ]
    return config, sorted(served, key=lambda model: model.name not in learned)


def _served(name: str, model: "ModelConfig", path: str, about: str) -> ServedModel:
    """A slot's weights in the embedded server, whatever has served them in the run."""
    return ServedModel(name, type(model)(path=path, dtype=model.dtype), about)


def _introduction(url: str, made_key: str | None, models: list[ServedModel]) -> str:
    """What the user is told, with examples that work as they stand."""
    width = max(len(model.name) for model in models)
    key = json.dumps(made_key) if made_key else f'os.environ["{KEY}"]'
    fields: Mapping[str, str] = {
        "url": url,
        "key": key,
        "model": json.dumps(models[0].name),
        "question": QUESTION,
        "import_key": "" if made_key else "import os\n",
    }
    lines = [
        f"{url} serves these models to who has the key; Ctrl-C ends it",
        *(f"  {model.name:<{width}}  {model.about}" for model in models),
        f"key: {made_key or f'that in {KEY}'}",
    ]
    return "\n".join(lines) + "\n" + EXAMPLES.format(**fields).rstrip()


if __name__ == "__main__":
    from chimera.core.cli import run_command

    run_command(main)
