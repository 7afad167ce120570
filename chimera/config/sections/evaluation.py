"""Settings of `python -m chimera.eval`."""

import re
from collections.abc import Collection
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from chimera.config.loader import ConfigSection, When
from chimera.config.sections.models import HttpAddress, VariableName
from chimera.core.errors import suggestion

PRIMARY = ("reward", "alignment", "macro_f1")
"""The metrics that a report's conclusions rest on."""
FAMILIES = {"main": [f"main/{name}" for name in PRIMARY], "elsewhere": [f"*/{name}" for name in PRIMARY]}
"""Families of tests: primary metrics of the main comparison, those of the others; all other tests are a third one."""
Contributions = Literal["none", "roles", "around", "shapley"]
"""Which stages beyond the run's sequence are evaluated (see `evaluation.records.plan`)."""
OF_ENDPOINT = When.equal("kind", "endpoint")


class AuditorConfig(ConfigSection):
    """The second judge, which training never uses."""

    kind: Literal["checklist", "endpoint", "none"] = Field(
        default="checklist", description="deterministic checklist, any OpenAI-compatible server, or no second judge"
    )
    base_url: Annotated[HttpAddress | None, OF_ENDPOINT] = Field(
        default=None, description="endpoint: address of the server, ending in /v1"
    )
    model: Annotated[str | None, OF_ENDPOINT] = Field(
        default=None, min_length=1, description="endpoint: the model's name there"
    )
    api_key_env: Annotated[VariableName | None, OF_ENDPOINT] = Field(
        default=None, description="endpoint: name of the environment variable with the key, never the key itself"
    )
    structured: Annotated[Literal["always", "final", "never"], OF_ENDPOINT] = Field(
        default="always",
        description="whether to send a JSON schema: always and final do, because a judge has no tools; never does not",
    )
    temperature: Annotated[float, OF_ENDPOINT] = Field(
        default=0.0, ge=0, le=2, description="sampling temperature; 0 is greedy"
    )
    max_tokens: Annotated[int, OF_ENDPOINT] = Field(
        default=768, ge=1, le=1_000_000, description="longest answer, in tokens"
    )
    timeout_s: Annotated[float, OF_ENDPOINT] = Field(
        default=60.0, gt=0, le=604_800, description="seconds that one call may take"
    )

    @model_validator(mode="after")
    def _endpoint_is_complete(self) -> Self:
        if self.kind == "endpoint" and (self.base_url is None or self.model is None):
            raise ValueError("kind 'endpoint' needs both base_url and model")
        return self

    @property
    def name(self) -> str | None:
        """The second judge: "checklist", the endpoint's model, or None."""
        return {"checklist": "checklist", "endpoint": self.model, "none": None}[self.kind]


class EvaluationConfig(ConfigSection):
    """How stages are evaluated and compared."""

    temperature: float | None = Field(
        default=0.3,
        ge=0,
        le=2,
        description="at which the society answers, and single calls beside it: in the gate, in reports and studies, "
        "and when it is asked; 0 is greedy. A slot whose own temperature is lower keeps that; null: each keeps its "
        "own, at which training explores",
    )
    confidence: float = Field(default=0.95, gt=0.5, lt=1, description="of all intervals; 1 - it is the tests' level")
    resamples: int = Field(
        default=2000,
        ge=20,
        le=1_000_000,
        description="bootstrap samples of an interval; a paired test makes ten times as many random exchanges",
    )
    self_consistency: bool = Field(
        default=True,
        description="also ask the junior model alone as often as the society's tokens allow, for a majority of its own",
    )
    agent_tool_calls: int = Field(
        default=0,
        ge=0,
        le=100,
        description="also let one agent with every role's tools answer alone, with at most so many tool calls; by "
        "self_consistency as often as the society's tokens allow, for a majority of its own; 0: no such agent",
    )
    labels: bool = Field(
        default=False,
        description="also fine-tune the juniors' first weights on the labels of the training tasks alone, with the "
        "settings of the first phase that fine-tunes, and let that model answer in one call",
    )
    contributions: Contributions = Field(
        default="none",
        description="which role and phase gave what: roles also evaluates the end with each trained slot, and the "
        "choice among hypotheses, back at base; around moreover each phase alone on the base and left out of the end; "
        "shapley all combinations of the phases that were kept (at most five). Each is one more stage of rollouts "
        "(three phases: 2 more for roles, 4 for around and shapley), so none is the default",
    )
    faults: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="one more stage: the end with so large a share of its tool calls failing (time-outs, rate limits, "
        "empty and unrelated results), to see whether the society recovers; 0: no such stage",
    )
    blame: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="how many wrong answers of the last stage are examined by replay: the first wrong step is made "
        "right and the rest of the society works on, so each costs at most one more rollout; 0 examines none",
    )
    prices: dict[str, Any] = Field(
        default={}, description="by logical model: [USD per million prompt tokens, USD per million completion tokens]"
    )
    families: dict[str, Any] = Field(
        default=FAMILIES,
        description="tests that Holm's correction takes together: by name a list of patterns comparison/metric, such "
        "as main/reward or base:sft/*; the first that matches counts, the rest is one more family",
    )
    conversations: Literal["ends", "all", "none"] = Field(
        default="ends",
        description="rollouts that get a page beside the report, 50 kB or more: ends takes those of the first and last "
        "stage, and of the stages between those whose answer a phase made right or wrong",
    )
    auditor: AuditorConfig = AuditorConfig()

    @model_validator(mode="after")
    def _families_are_lists_of_patterns(self) -> Self:
        for name, patterns in self.families.items():
            if not isinstance(patterns, list) or not patterns:
                raise ValueError(f"families.{name} must be a list of patterns such as [main/reward], not {patterns!r}")
            for pattern in patterns:
                if not isinstance(pattern, str) or not re.fullmatch(r"[^/\s]+/[^/\s]+", pattern):
                    raise ValueError(
                        f"families.{name} must name comparison/metric, as main/reward does, not {pattern!r}"
                    )
        return self

    @model_validator(mode="after")
    def _prices_are_pairs(self) -> Self:
        for model, price in self.prices.items():
            pair = isinstance(price, list) and len(price) == 2
            if not pair or not all(isinstance(amount, int | float) and amount >= 0 for amount in price):
                raise ValueError(f"prices.{model} must be two numbers such as [0.15, 0.6], not {price!r}")
        return self

    def unknown_prices(self, slots: Collection[str]) -> str | None:
        """The error message for the first price that is not about one of `slots`; None if there is none."""
        for name in self.prices:
            if name not in slots:
                hint = suggestion(name, slots, f"those are {', '.join(sorted(slots))}")
                return f"evaluation.prices.{name} is about no slot whose tokens are counted: {hint}"
        return None
