"""What a probe found."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad a finding is. With a FAULT the configured run cannot work."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Probed:
    """One result.

    Attributes:
        area: What was tried, such as `models.junior`.
        text: The result in one sentence; for warnings and faults with the remedy.
    """

    area: str
    what: str
    level: Level
    text: str
