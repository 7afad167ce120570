"""ClinicalTrials.gov through its API, version 2."""

from collections.abc import Sequence
from typing import Any

from pydantic import AliasPath, BaseModel, Field

from agents.tools.live.http import SPARE, LiveHttp
from agents.tools.text.fulltext import content_words
from agents.tools.text.markup import text_of
from agents.tools.text.passages import Passage, Query

SERVICE = "ClinicalTrials.gov"


class _Intervention(BaseModel):
    name: str = ""
    kind: str = Field(default="", alias="type")


class _Outcome(BaseModel):
    measure: str = ""


class _Reference(BaseModel):
    pmid: str = ""
    citation: str = ""


def _field(module: str, *path: str, **default: Any) -> Any:
    """A field of one module of a study's protocol."""
    return Field(validation_alias=AliasPath("protocolSection", f"{module}Module", *path), **default)


class _Study(BaseModel):
    nct_id: str = _field("identification", "nctId")
    brief_title: str = _field("identification", "briefTitle", default="")
    official_title: str = _field("identification", "officialTitle", default="")
    status: str = _field("status", "overallStatus", default="")
    why_stopped: str = _field("status", "whyStopped", default="")
    summary: str = _field("description", "briefSummary", default="")
    conditions: list[str] = _field("conditions", "conditions", default=[])
    kind: str = _field("design", "studyType", default="")
    phases: list[str] = _field("design", "phases", default=[])
    allocation: str = _field("design", "designInfo", "allocation", default="")
    participants: int | None = _field("design", "enrollmentInfo", "count", default=None)
    interventions: list[_Intervention] = _field("armsInterventions", "interventions", default=[])
    outcomes: list[_Outcome] = _field("outcomes", "primaryOutcomes", default=[])
    references: list[_Reference] = _field("references", "references", default=[])

    @property
    def caution(self) -> str:
        """Why the trial is no evidence: it never began, or was stopped for a reason; empty if it is."""
        if self.status != "WITHDRAWN" and not (self.why_stopped and self.status in ("TERMINATED", "SUSPENDED")):
            return ""
        return text_of(": ".join(filter(None, (f"{self.status.lower()} trial", self.why_stopped))))


class _TrialsAnswer(BaseModel):
    studies: list[_Study]


class ClinicalTrials:
    """Registered studies. The publications that a study lists are used only by the leak block."""

    def __init__(self, http: LiveHttp, results: int, base_url: str = "https://clinicaltrials.gov/api/v2") -> None:
        self._http = http
        self._wanted = results + SPARE
        self._base_url = base_url

    async def clinical_trials(self, query: Query) -> Sequence[Passage]:
        """Search ClinicalTrials.gov for registered trials by treatment, condition or key words."""
        words = content_words(query)
        if not words:
            return []
        studies = await self._studies(" AND ".join(words))
        # Where too few have all words, some with any of them follow.
        if len(studies) < self._wanted and len(words) > 1:
            studies += await self._studies(" OR ".join(words))
        return list({study.id: study for study in studies}.values())[: self._wanted]

    async def _studies(self, term: str) -> list[Passage]:
        params = {"query.term": term, "pageSize": self._wanted, "format": "json"}
        answer = await self._http.json(SERVICE, "GET", f"{self._base_url}/studies", _TrialsAnswer, params=params)
        return [_passage(study) for study in answer.studies]


def _passage(study: _Study) -> Passage:
    arms = [f"{arm.kind} {arm.name}".strip() for arm in study.interventions]
    fields = {
        "TITLE": study.official_title or study.brief_title,
        "STATUS": study.status,
        "DESIGN": ", ".join(filter(None, (study.kind, *study.phases, study.allocation))),
        "PARTICIPANTS": str(study.participants or ""),
        "CONDITIONS": ", ".join(study.conditions),
        "INTERVENTIONS": ", ".join(filter(None, arms)),
        "PRIMARY OUTCOMES": "; ".join(outcome.measure for outcome in study.outcomes if outcome.measure),
        "SUMMARY": study.summary,
    }
    plain = {label: text_of(value).rstrip(".") for label, value in fields.items()}
    linked = [study.brief_title, study.official_title]
    linked += [part for reference in study.references for part in (reference.pmid, reference.citation)]
    return Passage(
        study.nct_id,
        text_of(study.brief_title),
        " ".join(f"{label}: {value}." for label, value in plain.items() if value),
        f"https://clinicaltrials.gov/study/{study.nct_id}",
        tuple(filter(None, linked)),
        study.caution,
    )
