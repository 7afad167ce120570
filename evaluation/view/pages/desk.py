"""What all pages share: the runs, the seat, the templates, and the words in them."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse

from chimera.run.owner import owner
from chimera.show import html
from chimera.show.blocks import Block, Figure, Heading, Inline, Note, Text
from evaluation.causes.lost import TITLES
from evaluation.report.formats import change, shown
from evaluation.scores.rewards import part_title
from evaluation.traces.text import field_lines, gist
from evaluation.view.reading.folder import RunsFolder
from evaluation.view.reading.rows import RolloutRow
from evaluation.view.reading.watched import stamps
from evaluation.view.seat import PersonSeat

ASSETS = Path(__file__).parents[2] / "assets" / "view"
SEAT = "/asked"
"""Stands where a run's name stands for the questions of the seat; no run can have this name."""


@dataclass(frozen=True, slots=True)
class ViewDesk:
    """The viewer's parts."""

    folder: RunsFolder
    seat: PersonSeat
    templates: Environment

    @classmethod
    def over(cls, runs_dir: Path) -> "ViewDesk":
        return cls(RunsFolder(runs_dir), PersonSeat(runs_dir), _environment())

    def page(self, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
        text = self.templates.get_template(template).render(**values)
        return HTMLResponse(text.encode(errors="backslashreplace"), status_code=status)

    def blocks(self, title: str, path: Inline, blocks: Sequence[Block], *, status: int = 200) -> HTMLResponse:
        """A page of blocks, which does not change; `path` says in its head where it is."""
        body, at = Markup(html.render(blocks)), Markup(html.inline(path))
        return self.page("blocks.html.j2", status=status, title=title, path=at, body=body)

    def failed(self, sentence: str, *, status: int) -> HTMLResponse:
        """The page in place of one that cannot be shown."""
        why = Note(Text(sentence, "bad"), "note")
        blocks = [Heading("That did not work", 1), why, Note(Text("All runs", href="/"))]
        return self.blocks("Not here", "", blocks, status=status)

    def stamp(self, run: str) -> str:
        """A text that changes when the files behind a page change.

        Args:
            run: A run's name; empty for all runs; `SEAT` for the questions of the seat.
        """
        parts: list[Any] = []
        if run == SEAT:
            parts += self.seat.stamp()
        else:
            watched = [self.folder.open(run)] if run else self.folder.runs()[0]
            for watched_run in watched:
                parts.append(
                    (sorted(stamps(watched_run.run.path, rollouts=bool(run)).items()), owner(watched_run.run.path))
                )
        return hashlib.sha256(repr(sorted(parts, key=repr)).encode()).hexdigest()[:16]


def run_address(run: str) -> str:
    return f"/runs/{quote(run, safe='')}"


def rollouts_address(run: str, query: str = "") -> str:
    """The address of a list of a run's rollouts, with the query of a `RolloutChoice`."""
    return f"{run_address(run)}/rollouts{'?' if query else ''}{query}"


def rollout_address(run: str, rollout_id: str) -> str:
    return f"{run_address(run)}/rollouts/{quote(rollout_id, safe='')}"


def seat_address(name: str) -> str:
    return f"/seat/{quote(name, safe='')}"


def pair_address(left_run: str, left: str, right_run: str, right: str) -> str:
    """The address of two rollouts side by side."""
    return f"/pair?{urlencode({'left': f'{left_run}/{left}', 'right': f'{right_run}/{right}'})}"


def tasks_address(left: str, right: str, change: str = "") -> str:
    """The address of the same tasks in two stages, each written as run/stage."""
    query = {"left": left, "right": right}
    return f"/tasks?{urlencode({**query, 'change': change} if change else query)}"


def time_words(seconds: float | None) -> str:
    """A time in words, such as "3 min 20 s"."""
    if seconds is None:
        return "–"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def moment(text: str | None) -> str:
    """A time stamp as day and minute of this machine's clock; the text itself if it is none."""
    try:
        return datetime.fromisoformat(text or "").astimezone().strftime("%d %b %Y, %H:%M")
    except ValueError:
        return text or "–"


def points(value: float | None) -> str:
    """A reward with three digits."""
    return shown(value, "points")


def count(number: int) -> str:
    """A number with separators of thousands."""
    return f"{number:,}"


def share(value: float | None) -> str:
    return f"{shown(value, 'share')} %" if value is not None else "–"


def answer(row: RolloutRow) -> list[Text]:
    """A rollout's answer, and below it the key if it is another."""
    text = Text(row.answer or "none", "good" if row.right else "bad")
    return [text] if row.right else [text, Text(f" key {row.label}", "quiet")]


def drawn(figure: Figure) -> Markup:
    return Markup(html.render([figure]))


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("evaluation", "assets/view"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    named: Mapping[str, Any] = {
        "run_address": run_address,
        "rollouts_address": rollouts_address,
        "rollout_address": rollout_address,
        "seat_address": seat_address,
        "tasks_address": tasks_address,
        "time_words": time_words,
        "moment": moment,
        "points": points,
        "share": share,
        "count": count,
        "change": change,
        "field_lines": field_lines,
        "gist": gist,
        "chart": drawn,
        "part_title": part_title,
        "lost_titles": TITLES,
    }
    environment.globals.update(named)
    return environment
