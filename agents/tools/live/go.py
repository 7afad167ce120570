"""Gene Ontology terms through EBI's QuickGO."""

from collections.abc import Sequence

from pydantic import AliasPath, BaseModel, Field

from agents.tools.live.http import SPARE, LiveHttp
from agents.tools.ontology.database import go_id
from agents.tools.text.fulltext import content_words
from agents.tools.text.passages import Passage, Query

SERVICE = "QuickGO"


class _Synonym(BaseModel):
    name: str = ""


class _Term(BaseModel):
    id: str
    name: str = ""
    aspect: str = ""
    obsolete: bool = Field(default=False, alias="isObsolete")
    definition: str = Field(default="", validation_alias=AliasPath("definition", "text"))
    synonyms: list[_Synonym] = Field(default_factory=list)


class _GoAnswer(BaseModel):
    results: list[_Term]


class QuickGO:
    """Terms that are not obsolete."""

    def __init__(
        self, http: LiveHttp, results: int, base_url: str = "https://www.ebi.ac.uk/QuickGO/services/ontology/go"
    ) -> None:
        self._http = http
        self._wanted = results + SPARE
        self._base_url = base_url

    async def gene_ontology(self, term: Query) -> Sequence[Passage]:
        """Look up a Gene Ontology term in QuickGO by name, key words or GO id."""
        id_, words = go_id(term), content_words(term)
        if not words:
            return []
        url = f"{self._base_url}/terms/{id_}" if id_ else f"{self._base_url}/search"
        params = {} if id_ else {"query": " ".join(words), "limit": self._wanted, "page": 1}
        answer = await self._http.json(
            SERVICE, "GET", url, _GoAnswer, params=params, headers={"Accept": "application/json"}
        )
        return [_passage(go_term) for go_term in answer.results if go_term.name and not go_term.obsolete]


def _passage(term: _Term) -> Passage:
    aspect = f", {term.aspect.replace('_', ' ')}" if term.aspect else ""
    synonyms = "; ".join(synonym.name for synonym in term.synonyms[:6] if synonym.name)
    text = f"{term.name} ({term.id}{aspect})."
    if term.definition:
        text += f" Definition: {term.definition}"
    if synonyms:
        text += f" Synonyms: {synonyms}."
    return Passage(term.id, term.name, text, f"https://www.ebi.ac.uk/QuickGO/term/{term.id}")
