"""Where a reviewed protocol goes next, as pure functions.

    worst of both reviews    revisions left         next
    CRITICAL                 critical               HypothesisRefiner
    MAJOR                    major                  ProtocolDesigner
    anything else, or no revision left              PrincipalInvestigator

The severity of a review decides, not its verdict: APPROVE with MAJOR or CRITICAL does not approve. REVISE with NONE or
MINOR counts as MAJOR, because it asks for a revision. In both cases the stricter reading counts.
"""

from collections.abc import Mapping
from typing import Any, Literal

from agents.roles import DESIGNER, PRINCIPAL_INVESTIGATOR, REFINER
from chimera.config.sections.society import SocietyConfig
from chimera.core.types import Severity

Route = Literal["CRITICAL", "MAJOR", "DECIDE"]

DESTINATIONS: dict[Route, str] = {"CRITICAL": REFINER, "MAJOR": DESIGNER, "DECIDE": PRINCIPAL_INVESTIGATOR}

RETURNED_TO = (REFINER, DESIGNER)
"""The roles that reviews may send a protocol back to."""

_RANK: dict[Severity, int] = {"NONE": 0, "MINOR": 1, "MAJOR": 2, "CRITICAL": 3}


def effective_severity(review: Mapping[str, Any]) -> Severity:
    """The severity that a review ({"severity", "verdict", ...}) counts as."""
    if review["verdict"] == "REVISE" and review["severity"] in ("NONE", "MINOR"):
        return "MAJOR"
    return review["severity"]


def worst_severity(*reviews: Mapping[str, Any]) -> Severity:
    """The worst effective severity among `reviews`."""
    return max((effective_severity(review) for review in reviews), key=lambda severity: _RANK[severity])


def route(worst: Severity, *, critical_used: int, major_used: int, config: SocietyConfig) -> Route:
    """The next step for a protocol whose worst severity is `worst`, given the revisions made so far."""
    if worst == "CRITICAL" and critical_used < config.max_critical_revisions:
        return "CRITICAL"
    if worst == "MAJOR" and major_used < config.max_major_revisions:
        return "MAJOR"
    return "DECIDE"


def revisions_allowed(config: SocietyConfig) -> int:
    """The most revisions that one run can make."""
    return config.max_critical_revisions + config.max_major_revisions
