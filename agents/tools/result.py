"""The result of one tool call, and what calls tools."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agents.tools.text.passages import Passage
from chimera.core.types import Brief


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of one tool call.

    `valid` is False if the tool does not exist or its arguments do not fit. `ok` is False if the call failed for any
    reason. A search that finds nothing is ok: `passages` is empty and `note` names the query. `note` also tells of what
    was found and is no evidence, such as a retracted article: roles can quote `passages` alone. `fault` is the kind of
    fault that an evaluation put in the tool's place (`evaluation.faults`).
    """

    tool: str
    ok: bool
    passages: tuple[Passage, ...] = ()
    error: str | None = None
    valid: bool = True
    note: str | None = None
    fault: str | None = None

    def content(self) -> dict[str, Any]:
        """The payload of the tool message: {"results": [{"id", "text"}, ...]}, "note" if there is one, or {"error"}."""
        if self.error is not None:
            return {"error": self.error}
        results = [{"id": passage.id, "text": passage.text} for passage in self.passages]
        return {"results": results, "note": self.note} if self.note else {"results": results}


class Tools(Protocol):
    """The part of `agents.tools.toolbox.Toolbox` that roles use."""

    def specs(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """The OpenAI tool schemas of `names`."""
        ...

    async def call(self, name: str, arguments: Mapping[str, Any], *, brief: Brief) -> ToolResult:
        """Run one tool; failures are results, not exceptions."""
        ...
