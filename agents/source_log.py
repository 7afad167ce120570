"""A toolbox that remembers what it found, so that a person can be shown where a quote comes from."""

from collections.abc import Mapping, Sequence
from typing import Any

from agents.context import Tools
from agents.tools import Passage, ToolResult
from chimera.types import Brief


class SourceLog:
    """A toolbox that remembers every passage it gave, with the title and address that prompts leave out."""

    def __init__(self, toolbox: Tools) -> None:
        self._toolbox = toolbox
        self.passages: list[Passage] = []

    def specs(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """The OpenAI tool schemas of `names`."""
        return self._toolbox.specs(names)

    async def call(self, name: str, arguments: Mapping[str, Any], *, brief: Brief) -> ToolResult:
        """Run one tool and keep what it found."""
        result = await self._toolbox.call(name, arguments, brief=brief)
        self.passages += result.passages
        return result

    def listing(self) -> list[dict[str, str | None]]:
        """Id, title and address of each source, once."""
        found: dict[str, Passage] = {}
        for passage in self.passages:
            found.setdefault(passage.id, passage)
        return [{"id": one.id, "title": one.title, "url": one.url} for one in found.values()]
