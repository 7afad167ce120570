"""Makes every literature search find a person's own abstract, because whoever gives one wants it read.

A search by words would miss it if the model's query shares no word with it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agents.context import Tools
from agents.tools.result import ToolResult
from agents.tools.text.excerpts import excerpt
from agents.tools.text.passages import Passage, clean
from chimera.config.roles import LITERATURE
from chimera.core.types import Brief
from chimera.data.tasks import Document


class OwnAbstract:
    """A toolbox whose literature search returns a person's abstract first, then its other results.

    Args:
        max_chars: Length limit of one passage, in characters.
    """

    def __init__(self, toolbox: Tools, document: Document, max_chars: int) -> None:
        self._toolbox = toolbox
        self._document = document
        self._max_chars = max_chars

    def specs(self, names: Sequence[str]) -> list[dict[str, Any]]:
        return self._toolbox.specs(names)

    async def call(self, name: str, arguments: Mapping[str, Any], *, brief: Brief) -> ToolResult:
        """Run one tool. A literature search also returns the abstract, even if the search itself fails."""
        result = await self._toolbox.call(name, arguments, brief=brief)
        if name != LITERATURE or not result.valid:
            return result
        query = " ".join(map(str, arguments.values()))
        text = excerpt(clean(self._document.text, None), query, self._max_chars)
        abstract = Passage(self._document.id, self._document.title, text)
        others = tuple(passage for passage in result.passages if passage.id != abstract.id)
        return replace(result, ok=True, passages=(abstract, *others), error=None, note=None)
