"""ClinicalTrials.gov through its API, version 2."""

from collections.abc import Sequence

from pydantic import BaseModel, Field

from agents.tools.fulltext import content_words
from agents.tools.live.http import SPARE, LiveHttp, SearchCache
from agents.tools.text.markup import text_of
from agents.tools.text.passages import Passage, Query

SERVICE = "ClinicalTrials.gov"


class _Identification(BaseModel):
    nct_id: str = Field(alias="nctId")
    brief_title: str = Field(default="", alias="briefTitle")
    official_title: str = Field(default="", alias="officialTitle")


class _Status(BaseModel):
    overall: str = Field(default="", alias="overallStatus")
    why: str = Field(default="", alias="whyStopped")

    @property
    def caution(self) -> str:
        """Why the trial is no evidence: it never began, or was stopped for a reason; empty if it is."""
        stopped = self.overall == "WITHDRAWN" or (self.why and self.overall in ("TERMINATED", "SUSPENDED"))
        return f"{self.overall.lower()}{f': {self.why}' if self.why else ''}" if stopped else ""


class _TrialDescription(BaseModel):
    summary: str = Field(default="", alias="briefSummary")


class _Conditions(BaseModel):
    conditions: list[str] = Field(default_factory=list)


class _Enrollment(BaseModel):
    count: int | None = None


class _DesignInfo(BaseModel):
    allocation: str = ""


class _Design(BaseModel):
    kind: str = Field(default="", alias="studyType")
    phases: list[str] = Field(default_factory=list)
    info: _DesignInfo = Field(default_factory=_DesignInfo, alias="designInfo")
    enrollment: _Enrollment = Field(default_factory=_Enrollment, alias="enrollmentInfo")


class _Intervention(BaseModel):
    name: str = ""
    kind: str = Field(default="", alias="type")


class _Arms(BaseModel):
    interventions: list[_Intervention] = Field(default_factory=list)


class _Outcome(BaseModel):
    measure: str = ""


class _Outcomes(BaseModel):
    primary: list[_Outcome] = Field(default_factory=list, alias="primaryOutcomes")


class _Reference(BaseModel):
    pmid: str = ""
    citation: str = ""


class _References(BaseModel):
    references: list[_Reference] = Field(default_factory=list)


class _Protocol(BaseModel):
    identification: _Identification = Field(alias="identificationModule")
    status: _Status = Field(default_factory=_Status, alias="statusModule")
    description: _TrialDescription = Field(default_factory=_TrialDescription, alias="descriptionModule")
    conditions: _Conditions = Field(default_factory=_Conditions, alias="conditionsModule")
    design: _Design = Field(default_factory=_Design, alias="designModule")
    arms: _Arms = Field(default_factory=_Arms, alias="armsInterventionsModule")
    outcomes: _Outcomes = Field(default_factory=_Outcomes, alias="outcomesModule")
    references: _References = Field(default_factory=_References, alias="referencesModule")


class _Study(BaseModel):
    protocol: _Protocol = Field(alias="protocolSection")


class _TrialsAnswer(BaseModel):
    studies: list[_Study]


class ClinicalTrials:
    """Registered studies. The publications that a study lists are used only by the leak block."""

    def __init__(self, http: LiveHttp, results: int, base_url: str = "https://clinicaltrials.gov/api/v2") -> None:
        self._http = http
        self._wanted = results + SPARE
        self._base_url = base_url
        self._cache = SearchCache()

    async def clinical_trials(self, query: Query) -> Sequence[Passage]:
        """Search ClinicalTrials.gov for registered trials by treatment, condition or key words."""
        return await self._cache.get(query, lambda: self._search(query))

    async def _search(self, query: str) -> Sequence[Passage]:
        """Studies with all words of the query; if they are too few, then studies with any of the words."""
        words = content_words(query)
        if not words:
            return []
        studies = await self._studies(" AND ".join(words))
        if len(studies) < self._wanted and len(words) > 1:
            studies += await self._studies(" OR ".join(words))
        return list({study.id: study for study in reversed(studies)}.values())[::-1][: self._wanted]

    async def _studies(self, term: str) -> list[Passage]:
        answer = await self._http.json(
            SERVICE,
            "GET",
            f"{self._base_url}/studies",
            _TrialsAnswer,
            params={"query.term": term, "pageSize": self._wanted, "format": "json"},
        )
        return [_passage(study.protocol) for study in answer.studies]


def _passage(study: _Protocol) -> Passage:
    names = study.identification
    kind = [study.design.kind, *study.design.phases, study.design.info.allocation]
    arms = [f"{arm.kind} {arm.name}".strip() for arm in study.arms.interventions]
    fields = {
        "TITLE": names.official_title or names.brief_title,
        "STATUS": study.status.overall,
        "DESIGN": ", ".join(filter(None, kind)),
        "PARTICIPANTS": str(study.design.enrollment.count or ""),
        "CONDITIONS": ", ".join(study.conditions.conditions),
        "INTERVENTIONS": ", ".join(filter(None, arms)),
        "PRIMARY OUTCOMES": "; ".join(outcome.measure for outcome in study.outcomes.primary if outcome.measure),
        "SUMMARY": study.description.summary,
    }
    plain = {label: text_of(value).rstrip(".") for label, value in fields.items()}
    linked = [names.brief_title, names.official_title]
    linked += [part for reference in study.references.references for part in (reference.pmid, reference.citation)]
    return Passage(
        names.nct_id,
        text_of(names.brief_title),
        " ".join(f"{label}: {value}." for label, value in plain.items() if value),
        f"https://clinicaltrials.gov/study/{names.nct_id}",
        tuple(filter(None, linked)),
        text_of(study.status.caution),
    )
