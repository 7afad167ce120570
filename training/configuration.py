"""The algorithms by name, and the configuration of what trains: every phase has its algorithm's own settings."""

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from chimera.config import tree
from chimera.config.pipeline import PhaseSettings
from chimera.config.tree import Config
from chimera.core.errors import ConfigError, suggestion
from chimera.core.imports import load_named
from chimera.run.policies import Part
from training.algorithms.bandit import Bandit
from training.algorithms.distil import Distil
from training.algorithms.dpo import Dpo
from training.algorithms.gather import Gather
from training.algorithms.rejection import Rejection
from training.algorithms.sft import Sft
from training.algorithms.star import Star
from training.guidance.aflow import Aflow
from training.guidance.fewshot import Fewshot
from training.guidance.gepa import Gepa
from training.guidance.lessons import LessonsAlgorithm
from training.ppo.phase import Ppo

ALGORITHMS: Mapping[str, type[Any]] = {
    "gather": Gather,
    "sft": Sft,
    "ppo": Ppo,
    "bandit": Bandit,
    "rejection": Rejection,
    "dpo": Dpo,
    "star": Star,
    "distil": Distil,
    "fewshot": Fewshot,
    "lessons": LessonsAlgorithm,
    "gepa": Gepa,
    "aflow": Aflow,
}
"""The class of each algorithm. An entry of `pipeline` may name a user's class as module:Class."""
METHODS = {"check": ("plan", "settings", "config", "dataset"), "learn": ("plan", "settings", "bench")}
"""The methods of an algorithm (see `training.learning.base.Algorithm`), with their parameters."""


def load_config(
    path: Path | str | None = None,
    overrides: Sequence[str] = (),
    *,
    own_question: bool = False,
    recorded: bool = False,
    trial: bool = False,
) -> Config:
    """The configuration with each phase's own settings; see `chimera.config.tree.load_config`.

    Raises:
        ConfigError: As there, and of `find_algorithm`.
    """
    return tree.load_config(
        path, overrides, settings_of=settings_of, own_question=own_question, recorded=recorded, trial=trial
    )


def settings_of(algorithm: str) -> type[PhaseSettings]:
    """The class of an algorithm's settings.

    Raises:
        ConfigError: As of `find_algorithm`.
    """
    return find_algorithm(algorithm).Settings


def find_algorithm(name: str) -> type[Any]:
    """The class of an algorithm, by its name or as module:Class.

    Raises:
        ConfigError: It does not exist, cannot be imported, or lacks an attribute or method that a phase needs.
    """
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    if ":" not in name:
        hint = suggestion(name, ALGORITHMS, f"there are {', '.join(ALGORITHMS)}")
        raise ConfigError(f"there is no algorithm {name!r}: {hint} (or module:Class of your own)")
    algorithm = load_named(name, f"algorithm {name!r}")
    if fault := _fault(algorithm):
        raise ConfigError(f"algorithm {name!r} does not fit training.learning.base.Algorithm: {fault}")
    return algorithm


def _fault(algorithm: Any) -> str | None:
    """Why an object is no algorithm, as a sentence; None if it is one."""
    if not isinstance(algorithm, type):
        return "it is no class"
    settings = getattr(algorithm, "Settings", None)
    if not (isinstance(settings, type) and issubclass(settings, PhaseSettings)):
        return "it has no class Settings that is a chimera.config.pipeline.PhaseSettings"
    if getattr(algorithm, "part", "") not in (None, *get_args(Part)):
        return "its attribute part is none of None, 'weights', 'choice', 'guidance' and 'graph'"
    for method, names in METHODS.items():
        function = getattr(algorithm, method, None)
        if not callable(function):
            return f"it has no method {method}({', '.join(names)})"
        parameters = list(inspect.signature(function).parameters)[1:]
        if len(parameters) != len(names):
            return f"its method {method} takes ({', '.join(parameters)}) and not ({', '.join(names)})"
    if not inspect.iscoroutinefunction(algorithm.learn):
        return "its method learn is not async"
    return None
