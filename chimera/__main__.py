"""`python -m chimera` lists the commands; `python -m chimera train ...` runs `python -m chimera.train ...`."""

import importlib
import sys
from typing import NoReturn

from chimera.core.cli import run_command
from chimera.core.errors import ConfigError, suggestion

COMMANDS: dict[str, tuple[str, str]] = {
    "train": ("chimera.train", "run the phases: the society answers tasks, its roles learn from the traces"),
    "eval": ("chimera.eval", "evaluate a run's stages on test tasks and write a report; verify one"),
    "study": ("chimera.study", "train and evaluate with several seeds, and report over all of them"),
    "ask": ("chimera.ask", "put one question to the society and see how it decides"),
    "doctor": ("chimera.doctor", "try every model, tool and resource of a configuration before a run"),
    "serve": ("chimera.serving.command", "serve what a run learned, or any model, to OpenAI's and LangChain's clients"),
    "planted": ("chimera.planted", "serve a model whose errors are known, on which searches over prompts are tried"),
    "view": ("chimera.view", "look at runs on a web page of this machine, also while they go on"),
    "plan": ("chimera.plan", "say what a configuration needs of memory and disk, and what to change"),
    "trace": ("chimera.trace", "show what happened in a rollout, call by call and token by token"),
    "export": ("chimera.export", "write what a role has learned as a folder that other programs load"),
    "data": ("chimera.data.tasks", "show the tasks: source, splits and a sample"),
    "graph": ("chimera.graph", "draw the society as PNG, SVG and Mermaid"),
    "config": ("chimera.config.command", "list every configuration key, or print the configuration that is in effect"),
}
"""Each command's module, which has `main(argv)`, and one line about it."""


def usage() -> str:
    width = max(map(len, COMMANDS))
    lines = "\n".join(f"  {name:<{width}}  {line}" for name, (_, line) in COMMANDS.items())
    return (
        "usage: python -m chimera COMMAND ...\n\nA society of nine LLM scientists on PubMedQA; each role learns by its "
        f"own algorithm.\n\n{lines}\n\npython -m chimera COMMAND --help tells what a command takes."
    )


def main(argv: list[str]) -> int | None:
    """Run the command that `argv` names, or list the commands."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    name, *rest = argv
    if name not in COMMANDS:
        hint = suggestion(name, COMMANDS, "python -m chimera says what each is for")
        raise ConfigError(f"there is no command {name!r}: {hint} (commands: {', '.join(COMMANDS)})")
    sys.argv[0] = f"python -m chimera {name}"
    return importlib.import_module(COMMANDS[name][0]).main(rest)


def run() -> NoReturn:
    """The console script `chimera`."""
    run_command(main)


if __name__ == "__main__":
    run()
