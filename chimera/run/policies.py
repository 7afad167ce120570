"""Which policies are live: a versioned artifact replaces one part of the society.

The run's ledger is the record: what went live and what was rolled back, in order. Whoever continues or uses a run reads
from it what it has to serve.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from chimera.core.errors import RunError

Part = Literal["weights", "choice"]
"""What a policy replaces: the weights of a slot, or the model that chooses among the hypotheses."""
Place = tuple[Part, str]
"""Part and target of a policy: exactly one is live at each."""

WENT_LIVE = "went_live"
ROLLED_BACK = "rolled_back"
BY_MODEL = "supervisor"
"""The policy of a choice that the supervisor's model made."""
SELECTION = "selection"
"""The name under which policy versions tell who chooses among hypotheses, beside the versions of the slots' weights."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One learned policy.

    Attributes:
        part: What it replaces.
        target: Of whom: a slot for weights, a role for a choice.
        version: Its name in rollouts and reports, unique in the run, such as "junior@sft".
        folder: Where its weights or parameters are, relative to the run.
    """

    part: Part
    target: str
    version: str
    folder: str

    @classmethod
    def made(cls, part: Part, target: str, name: str) -> "Policy":
        """The policy that a phase, or a step of it such as "ppo-3", called `name` has made."""
        return cls(part, target, f"{target}@{name}", f"models/{target}/{name}")

    @property
    def place(self) -> Place:
        """Where it is live."""
        return self.part, self.target

    @property
    def slot(self) -> str:
        """The name under which rollouts carry its version: the slot's, or `SELECTION`."""
        return SELECTION if self.part == "choice" else self.target

    def dump(self) -> dict[str, str]:
        """Plain data for the ledger."""
        return asdict(self)

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> "Policy":
        """The inverse of `dump`.

        Raises:
            RunError: It is no policy.
        """
        fields = [data.get(name) for name in cls.__slots__] if isinstance(data, Mapping) else []
        known = bool(fields) and all(isinstance(one, str) for one in fields) and data["part"] in get_args(Part)
        if not known or Path(data["folder"]).is_absolute() or ".." in Path(data["folder"]).parts:
            raise RunError(
                f"{str(data)[:80]!r} names no learned policy of its run: restore ledger and checkpoints from a copy, "
                "or read a run of an earlier version with that version"
            )
        return cls(*(data[name] for name in cls.__slots__))


def live(events: Iterable[Mapping[str, Any]]) -> dict[Place, Policy]:
    """The policies that are live after `events` of a ledger; a place that is missing is as the run began."""
    found: dict[Place, Policy] = {}
    for event in events:
        if event["event"] == WENT_LIVE:
            policy = Policy.load(event["policy"])
            found[policy.place] = policy
    return found
