"""UniProt's REST API."""

import re
from collections.abc import Sequence

from pydantic import AliasPath, BaseModel, Field

from agents.tools.live.http import SPARE, LiveHttp
from agents.tools.ontology.files import strip_evidence
from agents.tools.text.fulltext import content_words
from agents.tools.text.passages import Passage, Query

SERVICE = "UniProt"
_ACCESSION = re.compile(r"[OPQ][0-9][A-Z0-9]{3}[0-9]|[A-NR-Z][0-9](?:[A-Z][A-Z0-9]{2}[0-9]){1,2}", re.IGNORECASE)


class _Text(BaseModel):
    value: str = ""


class _Submission(BaseModel):
    name: str = Field(default="", validation_alias=AliasPath("fullName", "value"))


class _Gene(BaseModel):
    name: str = Field(default="", validation_alias=AliasPath("geneName", "value"))


class _Comment(BaseModel):
    kind: str = Field(default="", alias="commentType")
    texts: list[_Text] = Field(default_factory=list)


class _Entry(BaseModel):
    accession: str = Field(alias="primaryAccession")
    recommended: str = Field(
        default="", validation_alias=AliasPath("proteinDescription", "recommendedName", "fullName", "value")
    )
    submitted: list[_Submission] = Field(
        default=[], validation_alias=AliasPath("proteinDescription", "submissionNames")
    )
    genes: list[_Gene] = Field(default_factory=list)
    organism: str = Field(default="", validation_alias=AliasPath("organism", "scientificName"))
    comments: list[_Comment] = Field(default_factory=list)


class _ProteinAnswer(BaseModel):
    results: list[_Entry]


class UniProt:
    """Reviewed proteins: human ones of that name, else of any species, else human ones that match the words."""

    def __init__(self, http: LiveHttp, results: int, base_url: str = "https://rest.uniprot.org") -> None:
        self._http = http
        self._wanted = results + SPARE
        self._base_url = base_url

    async def protein_lookup(self, name: Query) -> Sequence[Passage]:
        """Look up a protein in UniProt by name, gene symbol or accession."""
        words = content_words(name)
        if not words:
            return []
        # A gene's name may have the form of an accession, as C9orf3 has.
        if _ACCESSION.fullmatch(name) and (entries := await self._entries(f"accession:{name.upper()}")):
            return entries
        phrase = " ".join(name.replace('"', " ").replace("\\", " ").split())
        named = f'(gene_exact:"{phrase}" OR protein_name:"{phrase}") AND reviewed:true'
        about = f"({' AND '.join(words)}) AND reviewed:true"
        return (
            await self._entries(f"{named} AND organism_id:9606")
            or await self._entries(named)
            or await self._entries(f"{about} AND organism_id:9606")
        )

    async def _entries(self, query: str) -> list[Passage]:
        answer = await self._http.json(
            SERVICE,
            "GET",
            f"{self._base_url}/uniprotkb/search",
            _ProteinAnswer,
            params={
                "query": query,
                "format": "json",
                "size": self._wanted,
                "fields": "accession,protein_name,gene_names,organism_name,cc_function",
            },
        )
        return [_passage(entry) for entry in answer.results]


def _passage(entry: _Entry) -> Passage:
    submitted = (submission.name for submission in entry.submitted)
    name = next(filter(None, (entry.recommended, *submitted, entry.accession)))
    gene = next((f"gene {gene.name}; " for gene in entry.genes if gene.name), "")
    organism = f"{entry.organism}; " if entry.organism else ""
    function = " ".join(
        strip_evidence(text.value) for comment in entry.comments if comment.kind == "FUNCTION" for text in comment.texts
    )
    text = f"{name} ({gene}{organism}UniProt {entry.accession})." + (f" Function: {function}" if function else "")
    return Passage(entry.accession, name, text, f"https://www.uniprot.org/uniprotkb/{entry.accession}")
