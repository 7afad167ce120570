"""The entries of `pipeline`: the settings common to all, and the class of each algorithm."""

import inspect
import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, SerializeAsAny, ValidationInfo, field_validator

from chimera.config.loader import ConfigSection
from chimera.core.errors import ConfigError, suggestion
from chimera.core.named import load_named

ALGORITHMS: Mapping[str, str] = {
    "gather": "training.algorithms.gather:Gather",
    "sft": "training.algorithms.sft:Sft",
    "ppo": "training.ppo.phase:Ppo",
    "bandit": "training.algorithms.bandit:Bandit",
    "rejection": "training.algorithms.rejection:Rejection",
    "dpo": "training.algorithms.dpo:Dpo",
    "star": "training.algorithms.star:Star",
    "distil": "training.algorithms.distil:Distil",
}
"""Module and class of each algorithm. An entry of `pipeline` may name a user's class in the same form."""
PROTOCOL = {"novelty": 0.1, "feasibility": 0.2, "impact": 0.3, "clarity": 0.15, "efficiency": 0.05}
DEFAULT: Mapping[str, Mapping[str, Any]] = {
    "gather": {},
    "sft": {
        "algorithm": "rejection",
        "roles": ("juniors",),
        "reward": {"alignment": 1.0, "groundedness": 0.5},
        "answers": 6,
    },
    "ppo": {
        "roles": ("HypothesisRefiner",),
        "start": "junior",
        "reward": {"alignment": 1.0, "groundedness": 0.2},
        "states": 32,
        "n": 8,
        "curriculum": "pass_rate",
        "lr": 2.5e-4,
        "norm_adv_by_std_in_grpo": False,
        "ppo_mini_batch_size": 32,
        "ppo_epochs": 2,
    },
    "design": {
        "algorithm": "ppo",
        "roles": ("ProtocolDesigner",),
        "reward": PROTOCOL,
        "states": 24,
        "n": 6,
        "steps": 4,
        "ppo_mini_batch_size": 72,
    },
    "bandit": {"roles": ("Supervisor",)},
}
"""The default pipeline. A phase with one of these names takes from here what it does not set itself; if it names
another algorithm, only the roles."""


METHODS = {"check": ("plan", "settings", "config", "dataset"), "learn": ("plan", "settings", "bench")}
"""The methods of an algorithm (see `training.learning.base.Algorithm`), with their parameters."""


class PhaseSettings(ConfigSection):
    """One entry of `pipeline`. An algorithm's own settings are a subclass."""

    algorithm: str = Field(
        default="",
        description=f"{' | '.join(ALGORITHMS)}, or module:Class of your own; without it that of the "
        "default phase with the entry's name, or the name",
    )
    roles: tuple[str, ...] = Field(default=(), description="the roles that it trains: roles, or juniors, seniors")
    shared: bool = Field(
        default=False, description="other phases may train the same weights through the answers of other roles"
    )

    def asks(self) -> tuple[str, ...]:
        """Slots whose models the phase calls (`Bench.ask`), such as a teacher's; no role needs to use them."""
        return ()

    def needs_rollouts(self) -> bool:
        """True if it learns from rollouts of earlier phases, and so cannot be the first phase of a run."""
        return False

    def needs_log_probs(self) -> bool:
        """True if it learns from its roles' tokens with their log-probabilities under the weights that sampled them."""
        return False

    @field_validator("roles", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        if isinstance(value, str):
            return (value,)
        return tuple(value) if isinstance(value, list) else value


class Recorded(PhaseSettings):
    """The settings of a run's phase whose own algorithm is not imported: those of the algorithm are plain data."""

    model_config = ConfigDict(extra="allow")


IMPORTS = "imports"
"""Key of a validation's context: true to import the classes of a user's own algorithms. Without it they are not."""


def settings_class(algorithm: str, *, imports: bool) -> type[PhaseSettings]:
    """The class of an algorithm's settings; `Recorded` for one that is not Chimera's own, if it is not imported.

    Raises:
        ConfigError: As of `find_algorithm`.
    """
    return Recorded if ":" in algorithm and not imports else find_algorithm(algorithm).Settings


def find_algorithm(name: str) -> type[Any]:
    """The class of an algorithm, by its name or as module:Class.

    Raises:
        ConfigError: It does not exist, cannot be imported, or lacks an attribute or method that a phase needs.
    """
    if name not in ALGORITHMS and ":" not in name:
        hint = suggestion(name, ALGORITHMS, f"there are {', '.join(ALGORITHMS)}")
        raise ConfigError(f"there is no algorithm {name!r}: {hint} (or module:Class of your own)")
    found = load_named(ALGORITHMS.get(name, name), f"algorithm {name!r}")
    if lacks := _lacks(found):
        raise ConfigError(f"algorithm {name!r} does not fit training.learning.base.Algorithm: {lacks}")
    return found


def _lacks(found: Any) -> str | None:
    """Why a class is no algorithm, as a sentence; None if it is one."""
    if not isinstance(found, type):
        return "it is no class"
    settings = getattr(found, "Settings", None)
    if not (isinstance(settings, type) and issubclass(settings, PhaseSettings)):
        return "it has no class Settings that is a chimera.config.pipeline.PhaseSettings"
    if getattr(found, "part", "") not in (None, "weights", "choice"):
        return "its attribute part is none of None, 'weights' and 'choice'"
    for method, names in METHODS.items():
        function = getattr(found, method, None)
        if not callable(function):
            return f"it has no method {method}({', '.join(names)})"
        given = list(inspect.signature(function).parameters)[1:]
        if len(given) != len(names):
            return f"its method {method} takes ({', '.join(given)}) and not ({', '.join(names)})"
    if not inspect.iscoroutinefunction(found.learn):
        return "its method learn is not async"
    return None


def _settings(value: Any, info: ValidationInfo) -> Any:
    """The settings of one entry, in which `named` has set `algorithm`."""
    if not isinstance(value, Mapping):
        return value
    kind = settings_class(value["algorithm"], imports=bool(info.context and info.context.get(IMPORTS)))
    return kind.model_validate_json(json.dumps(dict(value)), strict=True)


def algorithm_of(name: str, given: Any = None) -> str:
    """The algorithm of the entry `name`: the given one, that of the default phase with this name, or the name."""
    return str(given or DEFAULT.get(name, {}).get("algorithm", name))


def named(entries: Any) -> Any:
    """Set `algorithm` of each entry of a `pipeline` (see `algorithm_of`)."""
    if not isinstance(entries, Mapping):
        return entries
    return {
        name: {**one, "algorithm": algorithm_of(name, one.get("algorithm"))} if isinstance(one, Mapping) else one
        for name, one in entries.items()
    }


Pipeline = Annotated[
    dict[str, Annotated[SerializeAsAny[PhaseSettings], BeforeValidator(_settings)]], BeforeValidator(named)
]
"""Phases by name, in the order of the run."""
