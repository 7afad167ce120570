"""Wrong answers that were examined by replaying them with one step made right.

A repair takes a known right value: nobody makes one up. The rest of the society then works as in the rollout, from the
same state and with the same seeds.

    juniors      none was right: one junior's work is that of the same junior in a rollout of this task in which it
                 was right; where findings are combined, work with which the findings of all are; the supervisor goes on
    supervisor   a junior was right, another was selected: the right one is given to it; it justifies this choice
    refiner      the selected answer was right, the refined one is not: the selected hypothesis stays as it is; the
                 protocol designer goes on, or who decides without a protocol
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Literal

from agents.roles import DESIGNER, PRINCIPAL_INVESTIGATOR, SUPERVISOR
from evaluation.records.rollouts import RolloutRecord

Repairable = Literal["juniors", "supervisor", "refiner"]
"""The steps of `evaluation.causes.lost` for which a right value may be known."""
REPAIR = "repair"
"""The policy version of a choice that a repair gave to the supervisor."""
SUFFIX = "--repairs"
"""The end of the phase's name under which the replays of a stage are recorded."""


@dataclass(frozen=True, slots=True)
class Repair:
    """One step of a rollout made right.

    Attributes:
        of: The rollout whose answer is wrong.
        author: The junior that makes it right; None for the refiner.
        donor: The rollout that the right junior is from; None unless it is another one.
    """

    step: Repairable
    of: RolloutRecord
    author: str | None = None
    donor: RolloutRecord | None = None

    @property
    def at(self) -> str:
        """The role that works first."""
        if self.step != "refiner":
            return SUPERVISOR
        return DESIGNER if self.of.has_protocol else PRINCIPAL_INVESTIGATOR

    @property
    def rollout_id(self) -> str:
        """The id of its replay: the same repair with the same policies has the same id."""
        about = {
            "of": self.of.rollout_id,
            "step": self.step,
            "author": self.author,
            "donor": None if self.donor is None else self.donor.rollout_id,
            "versions": self.of.policy_versions,
        }
        return f"rp-{hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:12]}"


@dataclass(frozen=True, slots=True)
class Examined:
    """One wrong answer.

    Attributes:
        step: Its first wrong step (`evaluation.causes.lost`).
        repair: How this step is made right; None if no right value is known, the juniors' majority chose, which nobody
            can be told, or the rollout cannot be replayed.
        replay: The rollout with the repair; None without one.
        place: Where the replay is recorded, as file and line.
    """

    record: RolloutRecord
    step: str
    repair: Repair | None
    replay: RolloutRecord | None = None
    place: str = ""

    @property
    def mended(self) -> bool:
        """True if the answer became right."""
        return self.replay is not None and self.replay.status == "succeeded" and self.replay.answer == self.record.label
