"""Which rollouts a list shows, and in which order: what stands in the page's address."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self
from urllib.parse import urlencode

from chimera.core.errors import ConfigError
from evaluation.records.rollouts import kind_of
from evaluation.view.reading.rows import RolloutRow, role_of

PAGE = 100
"""Rollouts of one page."""
ANY, VETOED, UNSCORED = "any", "vetoed", "no reward"
"""Failures that are not one kind of error."""
NO_DECISION = "none"

Key = Callable[[RolloutRow], Any]
SORTS: Mapping[str, Key] = {
    "reward": lambda row: row.reward,
    "seconds": lambda row: row.seconds,
    "calls": lambda row: row.calls,
    "task": lambda row: row.task_id,
    "decision": lambda row: row.decision,
    "answer": lambda row: row.answer,
    "phase": lambda row: row.phase,
    "right": lambda row: row.right,
    "lost": lambda row: row.lost,
}
"""What rollouts can be sorted by, besides "part:NAME" and, of the chosen role, "role:visits", "role:calls",
"role:tokens" and "role:tools"."""
OF_ROLE = ("visits", "calls", "tokens")


@dataclass(frozen=True, slots=True)
class RolloutChoice:
    """A choice of rollouts; what is empty or None chooses all.

    Attributes:
        phase: Their phase or stage, the name of their file.
        failure: `ANY`, `VETOED`, `UNSCORED` or a kind of error.
        decision: Their decision, or `NO_DECISION`.
        right: "yes" or "no": whether the answer is the label; no answer is not right.
        lost: The step that lost the answer (`evaluation.causes.lost`).
        task: Part of a task's or a rollout's id.
        low: Least reward.
        high: Largest reward.
        first: Least number in the phase, from 1.
        last: Largest number in the phase.
        update: Learned from by an update: phase and step, such as "ppo/3".
        sort: One of `SORTS`, or the part of a reward, or a figure of the role; "-" before it reverses it. Empty: in
            the order of their ends.
        page: Which page, from 1.
    """

    phase: str = ""
    role: str = ""
    failure: str = ""
    decision: str = ""
    right: str = ""
    lost: str = ""
    task: str = ""
    low: float | None = None
    high: float | None = None
    first: int | None = None
    last: int | None = None
    update: str = ""
    sort: str = ""
    page: int = 1

    @classmethod
    def read(cls, query: Mapping[str, str]) -> Self:
        """The choice in an address; raises ConfigError if a value is not of its kind."""
        values: dict[str, Any] = {}
        for field in fields(cls):
            if not (text := query.get(field.name, "").strip()):
                continue
            kind = {"low": float, "high": float, "first": int, "last": int, "page": int}.get(field.name, str)
            try:
                values[field.name] = kind(text)
            except ValueError as error:
                raise ConfigError(f"{field.name}={text[:40]!r} is not a number: change it, or leave it out") from error
        choice = cls(**values)
        return replace(choice, page=max(1, choice.page))

    def address(self, **changes: Any) -> str:
        """The query of an address with this choice and `changes`; the page is the first unless it is among them."""
        values = asdict(replace(self, **{"page": 1, **changes}))
        return urlencode(
            {name: value for name, value in values.items() if value not in ("", None) and (name, value) != ("page", 1)}
        )

    @property
    def narrowed(self) -> bool:
        """True if any rollout may be left out."""
        return replace(self, sort="", page=1) != RolloutChoice()

    def pick(self, rows: Iterable[RolloutRow], learned: Collection[str] | None = None) -> list[RolloutRow]:
        """The chosen rollouts in their order.

        Args:
            rows: All, in the order of their ends.
            learned: The rollouts that `update` learned from, if there is an `update`.

        Raises:
            ConfigError: They cannot be sorted so.
        """
        fitting = [row for row in rows if self._fits(row) and (learned is None or row.rollout_id in learned)]
        if not self.sort:
            return fitting
        key = sort_key(self.sort.removeprefix("-"), self.role)
        ranked = sorted((row for row in fitting if key(row) is not None), key=key, reverse=self.sort.startswith("-"))
        return ranked + [row for row in fitting if key(row) is None]

    def _fits(self, row: RolloutRow) -> bool:
        return (
            self.phase in ("", row.phase)
            and (not self.role or any(role_of(visit) == self.role for visit in row.visits))
            and (not self.failure or _failed_so(row, self.failure))
            and self.decision in ("", row.decision or NO_DECISION)
            and self.right in ("", "yes" if row.right else "no")
            and self.lost in ("", row.lost)
            and (not self.task or self.task in row.task_id or self.task in row.rollout_id)
            and (self.low is None or (row.reward is not None and row.reward >= self.low))
            and (self.high is None or (row.reward is not None and row.reward <= self.high))
            and (self.first is None or row.number >= self.first)
            and (self.last is None or row.number <= self.last)
        )


def sort_key(name: str, role: str) -> Key:
    """What rollouts are sorted by; None goes last; raises ConfigError if there is no such figure."""
    kind, _, rest = name.partition(":")
    if name in SORTS:
        return SORTS[name]
    if kind == "part" and rest:
        return lambda row: row.parts.get(rest)
    if kind == "role" and role and rest in OF_ROLE:
        place = OF_ROLE.index(rest)
        return lambda row: row.roles[role][place] if role in row.roles else None
    if kind == "role" and role and rest == "tools":
        return lambda row: row.tools.get(role)
    raise ConfigError(
        f"rollouts cannot be sorted by {name[:40]!r}: there are {', '.join(SORTS)} and part:NAME, and with a role "
        f"role:{', role:'.join((*OF_ROLE, 'tools'))}"
    )


def pages(rows: Sequence[RolloutRow]) -> int:
    """The number of pages, at least one."""
    return max(1, -(-len(rows) // PAGE))


def of_page(rows: Sequence[RolloutRow], page: int) -> Sequence[RolloutRow]:
    return rows[(page - 1) * PAGE : page * PAGE]


def _failed_so(row: RolloutRow, failure: str) -> bool:
    if failure == ANY:
        return row.failed
    if failure == VETOED:
        return row.veto is not None
    if failure == UNSCORED:
        return not row.failed and row.reward is None
    return row.failure == kind_of(failure)
