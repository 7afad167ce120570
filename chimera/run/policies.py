"""Which policy is live for each learner: the weights behind a logical model, or the supervisor's bandit.

The run's ledger is the record: what went live and what was rolled back, in order. Whoever continues or uses a run reads
from it what it has to serve.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from chimera.core.errors import RunError

Learner = Literal["junior", "senior", "supervisor"]
"""What a phase can change: the juniors' weights, the seniors', or who chooses among hypotheses."""

WENT_LIVE = "went_live"
ROLLED_BACK = "rolled_back"


@dataclass(frozen=True, slots=True)
class Policy:
    """One learned policy.

    Attributes:
        learner: What it replaces.
        version: Its name in rollouts and reports, unique in the run, such as "junior@sft".
        folder: Where its weights or parameters are, relative to the run.
    """

    learner: Learner
    version: str
    folder: str

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
        known = bool(fields) and all(isinstance(one, str) for one in fields) and data["learner"] in get_args(Learner)
        if not known or Path(data["folder"]).is_absolute() or ".." in Path(data["folder"]).parts:
            raise RunError(
                f"{str(data)[:80]!r} names no learned policy of its run: restore ledger and checkpoints from a copy"
            )
        return cls(data["learner"], data["version"], data["folder"])


def live(events: Iterable[Mapping[str, Any]]) -> dict[Learner, Policy]:
    """The policies that are live after `events` of a ledger; a learner that is missing is as the run began."""
    found: dict[Learner, Policy] = {}
    for event in events:
        if event["event"] == WENT_LIVE:
            policy = Policy.load(event["policy"])
            found[policy.learner] = policy
    return found
