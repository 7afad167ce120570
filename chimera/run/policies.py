"""The live policies. A policy is a versioned artifact that replaces one part of the society.

The run's ledger records every go-live and roll-back in order. Commands that continue or use a run read from it which
policies to serve.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from chimera.core.errors import RunError
from chimera.core.types import GRAPH, GUIDANCE, SELECTION

Part = Literal["weights", "choice", "guidance", "graph"]
"""What a policy replaces: the weights of a slot, the model that chooses among hypotheses, what roles are told, or who
works in which order."""
Place = tuple[Part, str]
"""Part and target of a policy. Exactly one policy is live at each place."""

WENT_LIVE = "went_live"
ROLLED_BACK = "rolled_back"
BY_MODEL = "supervisor"
"""The policy name of choices that the supervisor's model made."""
SOCIETY = "society"
"""The target of guidance and graph, which are of the whole society."""


def learned_slots(events: Iterable[Mapping[str, Any]]) -> set[str]:
    """The slots for which a run has learned weights, by its ledger's events."""
    policies = (event["policy"] for event in events if "policy" in event)
    return {policy["target"] for policy in policies if policy["part"] == "weights"}


def version_key(place: Place) -> str:
    """The key of a place's policy in tables of versions."""
    part, target = place
    return {"choice": SELECTION, "guidance": GUIDANCE, "graph": GRAPH}.get(part, target)


@dataclass(frozen=True, slots=True)
class Policy:
    """One learned policy.

    Attributes:
        target: The slot whose weights, or the role whose choice, it replaces; or `SOCIETY`.
        version: Its name in rollouts and reports, unique in the run, such as "junior@sft".
        folder: Where its weights or parameters are, relative to the run.
    """

    part: Part
    target: str
    version: str
    folder: str

    @classmethod
    def made(cls, part: Part, target: str, name: str) -> "Policy":
        """The policy made by the phase `name`, or by a step of a phase such as "ppo-3"."""
        return cls(part, target, f"{target}@{name}", f"models/{target}/{name}")

    @property
    def place(self) -> Place:
        return self.part, self.target

    @property
    def slot(self) -> str:
        """The key of its version in rollouts: the slot's name, or that of the part."""
        return version_key(self.place)

    def dump(self) -> dict[str, str]:
        return asdict(self)

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> "Policy":
        """The inverse of `dump`; raises RunError if `data` is not a policy."""
        fields = [data.get(name) for name in cls.__slots__] if isinstance(data, Mapping) else []
        valid = bool(fields) and all(isinstance(field, str) for field in fields) and data["part"] in get_args(Part)
        if not valid or Path(data["folder"]).is_absolute() or ".." in Path(data["folder"]).parts:
            raise RunError(
                f"{str(data)[:80]!r} names no learned policy of its run: restore ledger and checkpoints from a copy, "
                "or read a run of an earlier version with that version"
            )
        return cls(*(data[name] for name in cls.__slots__))


def live(events: Iterable[Mapping[str, Any]]) -> dict[Place, Policy]:
    """The policies that are live after `events` of a ledger; places not in the result are as at the run's start."""
    policies: dict[Place, Policy] = {}
    for event in events:
        if event["event"] == WENT_LIVE:
            policy = Policy.load(event["policy"])
            policies[policy.place] = policy
    return policies
