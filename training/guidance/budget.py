"""What a search may spend, and what it has spent: rollouts, tokens, money and time."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pydantic import Field

from chimera.config.loader import ConfigSection
from evaluation.records.rollouts import RolloutRecord
from training.watch.summary import dollars, tokens_used

FIRST, NEXT = 2.0, 1.5
"""What is set aside for a rollout, as a multiple of the most that one took: before the search, and in it."""
Prices = Mapping[str, Sequence[float]]


class Budget(ConfigSection):
    """The most that a search may spend; it ends with the best that it has found by then."""

    rollouts: int | None = Field(default=None, ge=1, le=1_000_000, description="rollouts on training tasks")
    tokens: int | None = Field(default=None, ge=1, le=10**12, description="tokens that all models read and wrote")
    usd: float | None = Field(default=None, gt=0, le=1e9, description="US dollars, by evaluation.prices")
    seconds: float | None = Field(
        default=None, gt=0, le=1e9, description="wall time; a run that was interrupted starts its clock again"
    )

    def words(self) -> str:
        """The limits in words; empty without one."""
        limits = [
            f"{self.rollouts:,} rollouts" if self.rollouts else "",
            f"{self.tokens:,} tokens" if self.tokens else "",
            f"{self.usd:g} US dollars" if self.usd else "",
            f"{self.seconds:g} s" if self.seconds else "",
        ]
        return ", ".join(filter(None, limits))


class BudgetSpentError(Exception):
    """The search has no money for what it would try next."""


class Purse:
    """What one search has spent. A rollout or question that a run has recorded is paid once, also when it is resumed.

    Args:
        prices: US dollars for a million prompt and completion tokens, by slot (`evaluation.prices`).
        judge: Gives the slot of the judge of a task, by its id.
        earlier: Rollouts of the run so far, which tell what one costs.

    Attributes:
        empty: Whether something could not be paid for, which ends the search.
    """

    def __init__(
        self, budget: Budget, prices: Prices, judge: Callable[[str], str], earlier: Iterable[RolloutRecord] = ()
    ) -> None:
        self.empty = False
        self._budget = budget
        self._prices = prices
        self._judge = judge
        self._paid: dict[str, tuple[int, float]] = {}
        self._questions: tuple[float, float] = (0, 0.0)
        self._started = time.monotonic()
        costs = [self._cost(record) for record in earlier]
        self._largest = FIRST / NEXT * max((tokens for tokens, _ in costs), default=0)
        self._dearest = FIRST / NEXT * max((usd for _, usd in costs), default=0.0)

    def pay(self, record: RolloutRecord) -> None:
        """Count a rollout, unless it is counted."""
        self._paid[record.rollout_id] = cost = self._cost(record)
        self._largest, self._dearest = max(self._largest, cost[0]), max(self._dearest, cost[1])

    def questions(self, spent: Mapping[str, float]) -> None:
        """Count the questions beside rollouts.

        Args:
            spent: All of the phase, as of `training.learning.base.Bench.spent`.
        """
        tokens = spent.get("ask_prompt_tokens", 0) + spent.get("ask_completion_tokens", 0)
        self._questions = tokens, spent.get("ask_usd", 0.0)

    def check(self, rollouts: int) -> None:
        """Raise BudgetSpentError if the limit of rollouts leaves fewer than `rollouts`."""
        if self._budget.rollouts is not None and len(self._paid) + rollouts > self._budget.rollouts:
            self.empty = True
            raise BudgetSpentError

    def affordable(self, rollouts: int) -> int:
        """How many of `rollouts` further rollouts may begin at once.

        Raises:
            BudgetSpentError: None may.
        """
        limits = [float(rollouts)]
        for name, reserve in (("rollouts", 1.0), ("tokens", NEXT * self._largest), ("usd", NEXT * self._dearest)):
            limit = getattr(self._budget, name)
            if limit is not None:
                left = limit - self.spent[name]
                # Nobody knows what the first rollout costs: it is made alone.
                limits.append(left / reserve if reserve else float(left > 0))
        if self._budget.seconds is not None and time.monotonic() - self._started >= self._budget.seconds:
            limits.append(0.0)
        if (count := int(min(limits))) < 1:
            self.empty = True
            raise BudgetSpentError
        return count

    @property
    def spent(self) -> dict[str, Any]:
        """Rollouts, tokens, US dollars and seconds so far."""
        tokens, usd = self._questions
        return {
            "rollouts": len(self._paid),
            "tokens": int(tokens + sum(cost[0] for cost in self._paid.values())),
            "usd": usd + sum(cost[1] for cost in self._paid.values()),
            "seconds": round(time.monotonic() - self._started, 1),
        }

    def _cost(self, record: RolloutRecord) -> tuple[int, float]:
        """Tokens and US dollars of a rollout, the judge's with them."""
        used = list(tokens_used(record, self._judge(record.task_id)))
        return sum(read + written for _, read, written in used), dollars(used, self._prices)
