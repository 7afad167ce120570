"""The entries of `pipeline`: the settings common to all phases, and the default phases.

Which algorithms there are, and what settings each has, `training.configuration` alone knows and passes in.
"""

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationInfo,
    field_validator,
    model_serializer,
)

from chimera.config.loader import ConfigSection

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
        "ppo_mini_batch_size": 32,
        "verl": {"actor": {"ppo_epochs": 2}, "algorithm": {"norm_adv_by_std_in_grpo": False}},
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


class PhaseSettings(ConfigSection):
    """One entry of `pipeline`. An algorithm's own settings are a subclass.

    Attributes:
        learns_weights: False for an algorithm that changes no weights, so its slots need no servers of their own.
    """

    learns_weights: ClassVar[bool] = True

    algorithm: str = Field(
        default="",
        description="gather | sft | ppo | bandit | rejection | dpo | star | distil | fewshot | lessons | gepa | aflow, "
        "or module:Class of your own; "
        "without it that of the default phase with the entry's name, or the name",
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

    def most(self) -> str:
        """The most that it spends on training tasks, in words; empty if nobody can say."""
        return ""

    @field_validator("roles", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        if isinstance(value, str):
            return (value,)
        return tuple(value) if isinstance(value, list) else value


class PlainPhase(PhaseSettings):
    """A phase that is read and not run: what its algorithm adds is plain data, and nothing of it is imported."""

    model_config = ConfigDict(extra="allow")

    @model_serializer
    def _as_it_was_set(self) -> dict[str, Any]:
        return {name: value for name, value in self if name in self.model_fields_set}


SettingsOf = Callable[[str], type[PhaseSettings]]
"""Gives the class of an algorithm's settings by the algorithm's name, or its module:Class."""
SETTINGS_OF = "settings_of"
"""Key of a validation's context: a `SettingsOf`. Without it every phase is a `PlainPhase`."""


def _settings(value: Any, info: ValidationInfo) -> Any:
    """The settings of one entry, in which `named` has set `algorithm`."""
    if not isinstance(value, Mapping):
        return value
    settings_of = info.context and info.context.get(SETTINGS_OF)
    kind = settings_of(value["algorithm"]) if settings_of else PlainPhase
    return kind.model_validate_json(json.dumps(dict(value)), strict=True)


def algorithm_of(name: str, algorithm: Any = None) -> str:
    """The algorithm of the entry `name`: the given one, that of the default phase with this name, or the name."""
    return str(algorithm or DEFAULT.get(name, {}).get("algorithm", name))


def named(entries: Any) -> Any:
    """Set `algorithm` of each entry of a `pipeline` (see `algorithm_of`)."""
    if not isinstance(entries, Mapping):
        return entries
    return {
        name: {**entry, "algorithm": algorithm_of(name, entry.get("algorithm"))}
        if isinstance(entry, Mapping)
        else entry
        for name, entry in entries.items()
    }


Pipeline = Annotated[
    dict[str, Annotated[SerializeAsAny[PhaseSettings], BeforeValidator(_settings)]], BeforeValidator(named)
]
"""Phases by name, in the order of the run."""
