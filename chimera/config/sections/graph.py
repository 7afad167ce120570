"""The society as data: who works in it, and in which order."""

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from chimera.config.loader import ConfigSection, When
from chimera.config.roles import DESIGNER, GRADING, JUNIORS, REFINER, SAFETY, SUPERVISOR
from chimera.core.errors import ConfigError
from chimera.core.types import Label, decides


class GraphConfig(ConfigSection):
    """Who works in the society. The principal investigator always decides, and every return has a limit
    (`society.max_major_revisions`, `society.max_critical_revisions`, `debate`)."""

    juniors: tuple[str, ...] = Field(default=JUNIORS, min_length=1, description="who proposes hypotheses")
    debate: int = Field(
        default=0,
        ge=0,
        le=10,
        description="rounds in which each junior reads what the others propose and answers again",
    )
    choose: Literal["select", "vote", "combine"] = Field(
        default="select",
        description="select: the supervisor chooses a hypothesis; vote: the juniors' majority does; combine: juniors "
        "hand over a finding of each study, and the refiner weighs them all",
    )
    searches: Annotated[int, When.equal("choose", "combine")] = Field(
        default=2,
        ge=1,
        le=10,
        description="most rounds of searches: after the first juniors search for another name that one has read of",
    )
    refine: bool = Field(default=True, description="the hypothesis refiner works on the chosen hypothesis")
    design: bool = Field(default=True, description="the protocol designer plans an experiment, which is what is scored")
    reviews: Annotated[bool, When.set("design")] = Field(
        default=True, description="peer reviewer and safety officer review the protocol"
    )
    waives: tuple[str, ...] = Field(
        default=(), description=f"[{SAFETY}]: no safety review stands before the decision, and that is meant"
    )

    @model_validator(mode="after")
    def _is_a_society(self) -> Self:
        if unknown := [name for name in self.juniors if name not in JUNIORS]:
            raise ValueError(f"juniors names {unknown[0]!r}, which is none of {', '.join(JUNIORS)}")
        if len(set(self.juniors)) < len(self.juniors):
            raise ValueError(f"juniors names a role twice: {', '.join(self.juniors)}")
        if set(self.waives) - {SAFETY}:
            raise ValueError(f"waives names {self.waives[0]!r}: only [{SAFETY}] can be waived")
        if self.debate and len(self.juniors) == 1:
            raise ValueError(f"debate={self.debate} has nobody to read: name two juniors, or set it to 0")
        if self.debate and self.choose == "combine":
            raise ValueError(
                f"debate={self.debate} needs hypotheses, and with choose=combine there are findings: set it to 0"
            )
        if not self.reviewed and SAFETY not in self.waives:
            raise ValueError(
                f"the {SAFETY} does not stand before the decision: let protocols be reviewed, or say with "
                f"waives=[{SAFETY}] that this is meant"
            )
        return self

    def check_answers(self, labels: Sequence[Label]) -> None:
        """Raise ConfigError if tasks that offer these answers cannot be answered from findings."""
        if self.choose == "combine" and not decides(labels):
            raise ConfigError(
                f"society.graph.choose=combine cannot answer tasks that offer {', '.join(labels)}: findings say yes, "
                "no or maybe; set it to select"
            )

    def plays(self, role: str) -> bool:
        """True if a model plays `role`, and not nobody or a rule in its place."""
        by_role = {SUPERVISOR: self.choose == "select", REFINER: self.refine, DESIGNER: self.design}
        by_role |= dict.fromkeys(GRADING[:2], self.reviewed)
        return by_role.get(role, role in self.juniors or role not in JUNIORS)

    @property
    def reviewed(self) -> bool:
        """True if protocols are designed and reviewed."""
        return self.design and self.reviews
