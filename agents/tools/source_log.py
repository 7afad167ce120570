"""A toolbox that keeps the passages it found, so that a person can see where a quote comes from."""

from collections.abc import Mapping, Sequence
from typing import Any

from agents.tools.result import ToolResult, Tools
from agents.tools.text.passages import Passage
from chimera.core.types import Brief


class SourceLog:
    """A toolbox that keeps every passage it returned, with the title and address that prompts leave out.

    Attributes:
        found: Each passage with the tool that found it, in the order of the calls.
    """

    def __init__(self, toolbox: Tools) -> None:
        self._toolbox = toolbox
        self.calls = 0
        self.found: list[tuple[str, Passage]] = []

    def specs(self, names: Sequence[str]) -> list[dict[str, Any]]:
        return self._toolbox.specs(names)

    async def call(self, name: str, arguments: Mapping[str, Any], *, brief: Brief) -> ToolResult:
        """Run one tool and keep what it found."""
        self.calls += 1
        result = await self._toolbox.call(name, arguments, brief=brief)
        self.found += [(name, passage) for passage in result.passages]
        return result
