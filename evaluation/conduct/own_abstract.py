"""A person's own abstract, which every literature search finds: whoever gives one wants it read.

Search by words would miss it whenever a model searches with other words than it holds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agents.context import Tools
from agents.roles import LITERATURE
from agents.tools.excerpts import excerpt
from agents.tools.passages import DocumentLike, Passage, clean
from agents.tools.toolbox import ToolResult
from chimera.core.types import Brief


class OwnAbstract:
    """A toolbox whose literature search gives a person's abstract first, then what else it found.

    Args:
        toolbox: Does the work.
        document: The abstract.
        max_chars: Length limit of one passage, in characters.
    """

    def __init__(self, toolbox: Tools, document: DocumentLike, max_chars: int) -> None:
        self._toolbox = toolbox
        self._document = document
        self._max_chars = max_chars

    def specs(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """The OpenAI tool schemas of `names`."""
        return self._toolbox.specs(names)

    async def call(self, name: str, arguments: Mapping[str, Any], *, brief: Brief) -> ToolResult:
        """Run one tool; a literature search also gives the abstract, even if it fails otherwise."""
        result = await self._toolbox.call(name, arguments, brief=brief)
        if name != LITERATURE or not result.valid:
            return result
        query = " ".join(map(str, arguments.values()))
        text = excerpt(clean(self._document.text), query, self._max_chars)
        own = Passage(self._document.id, self._document.title, text)
        others = tuple(passage for passage in result.passages if passage.id != own.id)
        return replace(result, ok=True, passages=(own, *others), error=None, note=None)
