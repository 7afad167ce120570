"""Web search through Tavily's own client, for literature or restricted to trial registries."""

from collections.abc import Sequence
from typing import Any

import httpx
from pydantic import BaseModel

from agents.tools.live.http import SPARE, LiveHttp, LiveTransport
from agents.tools.text.markup import text_of
from agents.tools.text.passages import Passage, Query

SERVICE = "Tavily"
TAVILY_KEY = "TAVILY_API_KEY"
REGISTRIES = ("clinicaltrials.gov", "clinicaltrialsregister.eu", "isrctn.com", "trialsearch.who.int", "anzctr.org.au")
_MOST = 20
"""Most results that Tavily allows."""


class _Hit(BaseModel):
    url: str
    title: str = ""
    content: str = ""


class _TavilyAnswer(BaseModel):
    results: list[_Hit]


class Tavily:
    """Web pages found by Tavily.

    Tavily's generated "answer" is never requested: it could be made from the article that the leak block removes.
    """

    def __init__(self, http: LiveHttp, results: int, key: str, base_url: str = "https://api.tavily.com") -> None:
        self._transport = LiveTransport(http, SERVICE, _TavilyAnswer, TAVILY_KEY)
        self._wanted = min(_MOST, results + SPARE)
        self._key = key
        self._base_url = base_url

    async def literature_search(self, query: Query) -> Sequence[Passage]:
        """Search the web for medical studies by research question or key words."""
        return await self._search(query, ())

    async def clinical_trials(self, query: Query) -> Sequence[Passage]:
        """Search the web pages of clinical trial registries by treatment, condition or key words."""
        return await self._search(query, REGISTRIES)

    async def _search(self, query: str, domains: Sequence[str]) -> list[Passage]:
        from tavily import AsyncTavilyClient

        restricted: dict[str, Any] = {"include_domains": domains} if domains else {}
        async with httpx.AsyncClient(transport=self._transport) as connection:
            client = AsyncTavilyClient(self._key, api_base_url=self._base_url, client=connection)
            response = await client.search(
                query,
                search_depth="basic",
                max_results=self._wanted,
                include_answer=False,
                include_raw_content=False,
                **restricted,
            )
        answer = _TavilyAnswer.model_validate(response)
        return [
            Passage(hit.url, text_of(hit.title), _shown(text_of(hit.title), text_of(hit.content)), hit.url)
            for hit in answer.results
            if hit.url and hit.content.strip()
        ]


def _shown(title: str, text: str) -> str:
    if not title:
        return text
    return f"TITLE: {title} {text}" if title.endswith((".", "?", "!")) else f"TITLE: {title}. {text}"
