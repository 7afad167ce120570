"""The gate's verdicts of a run: what was compared with what, and what went live or back."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chimera.run.policies import ROLLED_BACK, WENT_LIVE
from evaluation.records.study import GATE
from evaluation.view.reading.watched import Snapshot


@dataclass(frozen=True, slots=True)
class Measured:
    """One measure of a comparison, with the ends of the difference's interval."""

    before: float | None
    after: float | None
    difference: float | None
    low: float | None
    high: float | None
    verdict: str | None

    @classmethod
    def load(cls, data: Mapping[str, Any] | None) -> "Measured | None":
        """A measure as the gate wrote it."""
        return None if data is None else cls(*(data.get(name) for name in cls.__slots__))


@dataclass(frozen=True, slots=True)
class Verdict:
    """One comparison of the gate.

    Attributes:
        before: The stage that the new one was compared with.
    """

    before: str
    after: str
    verdict: str
    reward: Measured | None
    alignment: Measured | None

    @property
    def phases(self) -> tuple[str, str]:
        """The names of both stages' rollouts."""
        return f"{GATE}-{self.before}", f"{GATE}-{self.after}"


@dataclass(frozen=True, slots=True)
class GateDecision:
    """What the gate decided about one phase's policy.

    Attributes:
        policy: The policy's version.
        live: True if it went live, False if it was rolled back.
        reasons: Why it was rolled back.
    """

    phase: str
    policy: str
    live: bool
    reasons: tuple[str, ...]
    time: str
    verdicts: tuple[Verdict, ...]


def decisions(snapshot: Snapshot) -> list[GateDecision]:
    """The decisions of a run in their order."""
    gate_decisions: list[GateDecision] = []
    for event in snapshot.events:
        if event["event"] in (WENT_LIVE, ROLLED_BACK):
            phase = str(event["phase"])
            rows = snapshot.gates.get(phase, {}).get("comparisons", ())
            gate_decisions.append(
                GateDecision(
                    phase=phase,
                    policy=str(event["policy"]["version"]),
                    live=event["event"] == WENT_LIVE,
                    reasons=tuple(map(str, event.get("reasons", ()))),
                    time=str(event["time"]),
                    verdicts=tuple(_verdict(row) for row in rows),
                )
            )
    return gate_decisions


def _verdict(row: Mapping[str, Any]) -> Verdict:
    return Verdict(
        before=str(row.get("before")),
        after=str(row.get("after")),
        verdict=str(row.get("verdict")),
        reward=Measured.load(row.get("reward")),
        alignment=Measured.load(row.get("alignment")),
    )
