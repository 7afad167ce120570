"""The second judge, and the first judge asked again: they turn finished work into a `Judged`.

The second judge is a checklist or a model behind an endpoint. Training never uses it, so it shows whether a reward that
grew under the first judge also grew under another.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from chimera.config.tree import Config
from chimera.serving.client import HttpModel, Model
from evaluation.records.rollouts import RolloutRecord
from evaluation.records.study import Judged
from evaluation.scores.checklist import checklist
from evaluation.scores.judge import Judge, finished_work, missing

CHECKLIST, AUDITOR = "checklist", "auditor"
Scorer = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Maps finished work (`evaluation.scores.judge.finished_work`) to {"scores": ..., "error": ...}."""


@dataclass(frozen=True, slots=True)
class Auditor:
    """A judge that scores recorded work. `client` is what reaches its model, if it has one of its own."""

    judge: Literal["judge", "auditor"]
    model: str
    scorer: Scorer
    client: HttpModel | None = None

    @classmethod
    def configured(cls, config: Config, secrets: Mapping[str, str]) -> Self | None:
        """The second judge of `evaluation.auditor`; None if there is none. Close it.

        Raises:
            ConfigError: Its key is missing.
        """
        settings = config.evaluation.auditor
        if settings.kind != "endpoint":
            return cls.of_checklist() if settings.kind == "checklist" else None
        from chimera.config.sections.models import ModelConfig
        from chimera.serving.process import user_endpoint

        endpoint = user_endpoint("evaluation.auditor", ModelConfig(**settings.model_dump()), secrets)
        rollouts = config.rollouts
        client = HttpModel({AUDITOR: endpoint}, max_retries=rollouts.retries, pause_s=rollouts.pause_s)
        return replace(cls.of_model(client, str(settings.name)), client=client)

    async def aclose(self) -> None:
        if self.client is not None:
            await self.client.aclose()

    @classmethod
    def of_checklist(cls) -> Self:
        """The deterministic second judge."""
        return cls("auditor", CHECKLIST, _by_checklist)

    @classmethod
    def of_model(cls, model: Model, name: str) -> Self:
        """A second judge that uses the logical model "auditor" of `model`. `name` is the model's name."""
        return cls("auditor", name, Judge(model, AUDITOR).score)

    @classmethod
    def of_training(cls, model: Model, slot: str, name: str) -> Self:
        """Training's judge, for canaries: slot `slot` of `model`. `name` is the name of the model behind it."""
        return cls("judge", name, Judge(model, slot).score)

    async def score(self, subject: str, work: Mapping[str, Any]) -> Judged:
        """Score any finished work under the name `subject`."""
        answer = await self.scorer(work)
        return Judged(subject, self.judge, self.model, dict(answer["scores"]), answer["error"])

    async def audit(self, record: RolloutRecord) -> Judged:
        """Score a rollout. A failed rollout has no work to score."""
        if record.status != "succeeded":
            unscored = missing(f"the rollout failed: {record.error}")
            return Judged(record.rollout_id, self.judge, self.model, unscored["scores"], unscored["error"])
        return await self.score(record.rollout_id, work_of(record))


def work_of(record: RolloutRecord) -> dict[str, Any]:
    """The work of a succeeded rollout as its judge saw it, from the record.

    The sources are those that the juniors found. Passages that only a senior found are only in the trace, so a quote
    from one of them looks unsupported.
    """
    outputs = record.outputs
    return finished_work(outputs, outputs["selection"]["sources"], outputs["research_goal"])


async def _by_checklist(work: Mapping[str, Any]) -> dict[str, Any]:
    return {"scores": checklist(work), "error": None}
