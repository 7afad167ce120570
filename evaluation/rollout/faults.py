"""Faults that an evaluation puts into tools, to see whether the society recovers from them.

A share of the calls (`evaluation.faults`) does not reach its tool. Which ones, and what comes in their place, follows
from the rollout's seed and the call, so the same rollout meets the same faults again, except that of equal calls which
roles make at once either may be the first; a repeated call is drawn anew.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from agents.context import Tools
from agents.tools.result import ToolResult
from agents.tools.text.passages import Passage
from agents.visit.prompting import canonical
from chimera.core.types import Brief

UNRELATED = (
    "The reading room of the town library was open on forty Sundays of the year. Visitors borrowed more atlases than "
    "novels in that time. The roof above the map cabinet was mended in autumn."
)
"""What a tool that answers wrongly gives: text that is evidence for no medical question."""
FAULTS: Mapping[str, str] = {
    "time-out": "it did not answer in time: try again, or answer from what you have read",
    "rate limit": "it answered 429, too many requests: try again, or answer from what you have read",
    "empty": "",
    "unrelated": "",
}
"""The kinds of faults, and the error that a role is told; empty where the call seems to succeed."""


class FaultyTools:
    """`Tools` of which some calls fail. Each worker has its own, because it keeps count within one rollout.

    Args:
        tools: What the other calls reach.
    """

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._seed, self._share = 0, 0.0
        self._times: Counter[tuple[str, str]] = Counter()

    def begin(self, seed: int, share: float) -> None:
        """Start a rollout, in which `share` of the calls fails; 0 lets all through."""
        self._seed, self._share = seed, share
        self._times.clear()

    def specs(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """The tools' own schemas."""
        return self._tools.specs(names)

    async def call(self, name: str, arguments: Mapping[str, Any], *, brief: Brief) -> ToolResult:
        """The tool's own result, or a fault's."""
        if self._share:
            call = name, canonical(arguments)
            self._times[call] += 1
            draw = random.Random(f"{self._seed}/{'/'.join(call)}/{self._times[call]}")
            if draw.random() < self._share:
                return _fault(name, draw.choice(list(FAULTS)))
        return await self._tools.call(name, arguments, brief=brief)


def _fault(tool: str, kind: str) -> ToolResult:
    if error := FAULTS[kind]:
        return ToolResult(tool, ok=False, error=f"{tool} failed: {error}", fault=kind)
    if kind == "empty":
        return ToolResult(tool, ok=True, note="no match", fault=kind)
    return ToolResult(tool, ok=True, passages=(Passage("library", "", UNRELATED),), fault=kind)
