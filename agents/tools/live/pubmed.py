"""PubMed through NCBI's E-utilities: esearch for PMIDs, efetch for abstracts."""

import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, Field

from agents.tools.live.http import AGENT, SPARE, LiveHttp
from agents.tools.text.fulltext import content_words
from agents.tools.text.markup import element_text, parse_xml
from agents.tools.text.passages import Passage, Query, ToolError
from chimera.core.rate_limits import standing_still

SERVICE = "PubMed"
NCBI_KEY = "NCBI_API_KEY"
PER_SECOND, WITH_KEY = 2.8, 9.0
"""Requests that begin in a second. NCBI refuses more than 3, with a key more than 10, and names no time to wait."""

_TITLES = ("MedlineCitation/Article/ArticleTitle", "BookDocument/ArticleTitle", "BookDocument/Book/BookTitle")
_ABSTRACTS = (
    "MedlineCitation/Article/Abstract",
    "BookDocument/Abstract",
    "MedlineCitation/OtherAbstract[@Language='eng']",
    "MedlineCitation/OtherAbstract",
)
_TIES = "MedlineCitation/CommentsCorrectionsList/CommentsCorrections"
_TAKEN_BACK = {
    "retracted publication": "retracted",
    "retractionin": "retracted",
    "partialretractionin": "retracted in part",
    "retractedandrepublishedin": "retracted and published anew",
    "expressionofconcernin": "under an expression of concern",
}


class _Found(BaseModel):
    idlist: list[str] = Field(default_factory=list)
    error: str | None = Field(default=None, alias="ERROR")


class _SearchAnswer(BaseModel):
    esearchresult: _Found


class PubMed:
    """Abstracts from PubMed; `key` (NCBI_API_KEY) only raises the rate limit from 3 to 10 requests a second."""

    def __init__(
        self,
        http: LiveHttp,
        results: int,
        key: str | None = None,
        base_url: str = "https://eutils.ncbi.nlm.nih.gov/entrez/eutils",
    ) -> None:
        self._http = http
        self._wanted = results + SPARE
        self._identity = {"tool": AGENT, **({"api_key": key} if key else {})}
        self._base_url = base_url
        self._gap, self._next = 1 / (WITH_KEY if key else PER_SECOND), 0.0

    async def literature_search(self, query: Query) -> Sequence[Passage]:
        """Search PubMed abstracts of medical studies by research question or key words."""
        words = content_words(query)
        if not words:
            return []
        ids = await self._ids(" AND ".join(words))
        # Where too few have all words, some with any of them follow.
        if len(ids) < self._wanted and len(words) > 1:
            ids = list(dict.fromkeys((*ids, *await self._ids(" OR ".join(words)))))[: self._wanted]
        return await self._fetch(ids) if ids else []

    async def _turn(self, **data: Any) -> dict[str, Any]:
        """Wait until the next request may begin; returns its options."""
        now = time.monotonic()
        self._next = max(now, self._next) + self._gap
        with standing_still():
            await self._http.sleep(self._next - self._gap - now)
        return {"data": {"db": "pubmed", **data, **self._identity}, "key_name": NCBI_KEY}

    async def _ids(self, term: str) -> list[str]:
        options = await self._turn(term=term, retmax=self._wanted, retmode="json", sort="relevance")
        answer = await self._http.json(SERVICE, "POST", f"{self._base_url}/esearch.fcgi", _SearchAnswer, **options)
        if answer.esearchresult.error:
            raise ToolError(f"{SERVICE} could not run the search: {answer.esearchresult.error[:100]}")
        return answer.esearchresult.idlist

    async def _fetch(self, ids: Sequence[str]) -> list[Passage]:
        options = await self._turn(id=",".join(ids), retmode="xml")
        body = await self._http.request(SERVICE, "POST", f"{self._base_url}/efetch.fcgi", **options)
        try:
            root = parse_xml(body)
        except ValueError as error:
            raise ToolError(f"{SERVICE} answered 200 with malformed XML: {str(error)[:120]}") from error
        if root.tag != "PubmedArticleSet":
            raise ToolError(f"{SERVICE} answered 200 with <{root.tag[:40]}> where <PubmedArticleSet> was expected")
        articles = [article for article in root if article.tag in ("PubmedArticle", "PubmedBookArticle")]
        passages = {passage.id: passage for article in articles if (passage := _passage(article))}
        return [passages[id_] for id_ in ids if id_ in passages]


def _passage(article: ElementTree.Element) -> Passage | None:
    """One article, or one chapter or book, as a passage; None without PMID or abstract."""
    pmid = element_text(article.find("./*/PMID"))
    text = next(filter(None, map(_abstract, (article.find(path) for path in _ABSTRACTS))), "")
    if not pmid or not text:
        return None
    title = next(filter(None, (element_text(article.find(path)) for path in _TITLES)), "")
    linked = map(element_text, [*_about(article), *article.findall("./*/ArticleIdList/ArticleId")])
    shown = f"TITLE: {title} {text}" if title else text
    url = f"https://pubmed.ncbi.nlm.nih.gov/{pmid}/"
    return Passage(pmid, title, shown, url, tuple(filter(None, linked)), _caution(article))


def _abstract(abstract: ElementTree.Element | None) -> str:
    """The text of an abstract, with the labels of its sections."""
    parts = abstract.findall("AbstractText") if abstract is not None else ()
    sections = [(part.get("Label", ""), element_text(part)) for part in parts]
    return " ".join(f"{label}: {body}" if label else body for label, body in sections if body)


def _about(article: ElementTree.Element) -> list[ElementTree.Element]:
    """PMIDs of articles that this one comments on, corrects or repeats; articles that it only cites do not count."""
    return [pmid for tie in article.findall(_TIES) if tie.get("RefType") != "Cites" for pmid in tie.findall("PMID")]


def _caution(article: ElementTree.Element) -> str:
    """Why the article is no evidence, by its kind or a notice about it; empty if it is."""
    kinds = [element_text(kind) for kind in article.iter("PublicationType")]
    notices = [tie.get("RefType", "") for tie in article.findall(_TIES)]
    return next((_TAKEN_BACK[kind.lower()] for kind in (*kinds, *notices) if kind.lower() in _TAKEN_BACK), "")
