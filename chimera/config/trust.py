"""Code that settings name: modules to import and programs to start. A run may come from somebody else, so that what
its own settings name runs only if the user names it too, or if it is an installed package.

Commands that only read a run import and start nothing of it, whatever it names (`chimera.config.pipeline.PlainPhase`).
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from chimera.config.roles import MCP
from chimera.config.source import parse_overrides
from chimera.config.tree import Config
from chimera.core.errors import ConfigError
from chimera.core.imports import is_installed

Work = Literal["rollouts", "answers", "training"]
"""Uses of a configuration: rollouts alone need tools; answers need models too; training also
algorithms and optimisers, and may ask all models."""


@dataclass(frozen=True, slots=True)
class NamedCode:
    """A module or a program that settings name.

    Attributes:
        keys: The settings that name it.
        value: What they name: module:name, a module, or the words of a program as in a shell.
        name: What `--trust` takes for it: the module, or the words of the program.
        is_module: False for a program.
    """

    keys: tuple[str, ...]
    value: str
    name: str
    is_module: bool = True

    def trusted(self, names: Sequence[str]) -> bool:
        """True if it may run for a user who trusts `names`; a module's name is also that of the modules below it."""
        if not self.is_module:
            return self.name in names
        return is_installed(self.name) or any(f"{self.name}.".startswith(f"{name}.") for name in names)

    def __str__(self) -> str:
        return f"{'import' if self.is_module else 'start'} {self.value} ({self.keys[0]})"


def named_code(config: Config, work: Work) -> Iterator[NamedCode]:
    """The modules and programs that `config` names and `work` would run, except Chimera's own."""
    if work == "training" or (work == "answers" and config.evaluation.labels):  # That baseline loads the algorithms.
        yield from _of_phases(config)
    for role, references in config.roles.references().items():
        for reference in references:
            if ":" in reference and not reference.startswith(MCP):
                yield _module(f"roles.{role}.tools", reference)
    for name in dict.fromkeys(config.roles.mcp().values()):
        if command := config.tools.mcp[name].command:
            yield _program((f"tools.mcp.{name}.command",), command)
    if work == "rollouts":
        return
    # A user's own algorithm, which is not imported here, may ask any model.
    for slot, model in (config.models if work == "training" else config.used()).items():
        if model.kind == "vllm" and model.python:
            keys = (f"models.{slot}.python", *([f"models.{slot}.args"] if model.args else []))
            yield _program(keys, (model.python, *model.args))


def _of_phases(config: Config) -> Iterator[NamedCode]:
    for name, phase in config.pipeline.items():
        if ":" in phase.algorithm:
            yield _module(f"pipeline.{name}.algorithm", phase.algorithm)
        verl = getattr(phase, "verl", None)
        optim = verl.get("optim") if isinstance(verl, Mapping) else None
        if isinstance(optim, Mapping) and (module := optim.get("optimizer_impl")):
            yield _module(f"pipeline.{name}.verl.optim.optimizer_impl", str(module))


def _module(key: str, reference: str) -> NamedCode:
    return NamedCode((key,), reference, reference.partition(":")[0])


def _program(keys: tuple[str, ...], command: Sequence[str]) -> NamedCode:
    words = shlex.join(command)
    return NamedCode(keys, words, words, is_module=False)


def check_trusted(
    config: Config, place: object, work: Work, trust: Sequence[str], overrides: Sequence[str] = ()
) -> None:
    """Make sure that the user trusts the code which somebody else's settings would run.

    Args:
        config: The configuration, with settings from `place` that the user did not give now.
        trust: The names that the user gave to `--trust`.
        overrides: Those of the command line; what they name is the user's own.

    Raises:
        ConfigError: It names a module or a program that the user did not name, and that is no installed package.
    """
    user_keys = {key.removeprefix("pipeline.") for key in parse_overrides(overrides)}
    foreign = [
        code
        for code in dict.fromkeys(named_code(config, work))
        if not (code.trusted(trust) or user_keys >= {key.removeprefix("pipeline.") for key in code.keys})
    ]
    if foreign:
        raise ConfigError(
            f"{place} would have this command {' and '.join(map(str, foreign))}, and it may come from somebody else: "
            f"if you trust that, add {trust_options(foreign)}"
        )


def options_to_use(config: Config, work: Work = "answers") -> str:
    """The options with which commands use a run of `config`, by default `eval` and `ask --run`, after a space."""
    options = trust_options([code for code in named_code(config, work) if not code.trusted(())])
    return options and f" {options}"


def trust_options(codes: Sequence[NamedCode]) -> str:
    """The options of a command that trusts `codes`, as in a shell."""
    return " ".join(shlex.join(["--trust", name]) for name in dict.fromkeys(code.name for code in codes))
