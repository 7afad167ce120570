"""All plots of a report, as PNG and SVG files; where there is nothing to draw, a sentence that says why."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Plot:
    """One plot of a report.

    Attributes:
        name: Its file name without ending.
        title: What it shows, as a heading.
        files: File names by format ("png", "svg"), relative to the folder that was drawn into; empty without a plot.
        caption: How to read it, and what to keep in mind.
        missing: Why there is no plot; None when there is one.
    """

    name: str
    title: str
    files: Mapping[str, str] = field(default_factory=dict)
    caption: str = ""
    missing: str | None = None

    def dump(self) -> dict[str, Any]:
        """Plain data for the report."""
        return {
            "name": self.name,
            "title": self.title,
            "files": dict(self.files),
            "caption": self.caption,
            "missing": self.missing,
        }
