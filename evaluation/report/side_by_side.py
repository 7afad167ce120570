"""Compares the rollouts of one task in two stages field by field, with marked differences."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby
from operator import itemgetter
from typing import Any, Literal

from chimera.show.ask import choice_reason, chooser
from chimera.show.blocks import Cell, Inline, Piece, TableLine, Text, Tone
from evaluation.records.rollouts import RolloutRecord
from evaluation.records.study import Study
from evaluation.report.formats import sentence
from evaluation.scores.rewards import part_title

TOKEN = re.compile(r"\s+|\w+(?:-\w+|[.,]\d+)*%?|[^\w\s]")
"""Splits a text completely into words with hyphens, numbers with decimals, single marks and white space."""
SEGMENTS: Mapping[str, Tone] = {"removed": "removed", "added": "added"}
"""Tones of the kinds of `segments`."""
Why = Literal["largest gain", "median", "largest loss"]
Kind = Literal["same", "removed", "added"]


@dataclass(frozen=True, slots=True)
class RolloutPair:
    """Two rollouts of one task with the same seed in two stages.

    Attributes:
        repeat: Which repeat of it, from 0.
        difference: Reward after minus reward before.
    """

    why: Why
    task_id: str
    repeat: int
    difference: float
    before: RolloutRecord
    after: RolloutRecord


Scored = tuple[float, RolloutRecord, RolloutRecord]
"""Difference in reward, the rollout before, the rollout after."""


def pick(study: Study, before: str, after: str) -> list[RolloutPair]:
    """The pairs of rollouts with the largest gain, the median change and the largest loss in reward.

    Only rollouts with a reward in both stages count. Gain or loss is left out if no pair gained or lost. Of equal
    differences the first in the plan's order is taken, and of two median pairs the lower one.

    Raises:
        KeyError: The study has no stage of that name.
    """
    rows = zip(study.answers[before].records, study.answers[after].records, strict=True)
    scored: list[Scored] = [
        (new.reward - old.reward, old, new) for old, new in rows if old.reward is not None and new.reward is not None
    ]
    ordered = sorted(scored, key=lambda row: row[0])
    if not ordered:
        return []
    chosen: list[tuple[Why, Scored]] = []
    if (most := max(scored, key=lambda row: row[0]))[0] > 0:
        chosen.append(("largest gain", most))
    if ordered[0][0] < 0:
        chosen.append(("largest loss", ordered[0]))
    chosen.append(("median", ordered[(len(ordered) - 1) // 2]))
    pairs: dict[str, RolloutPair] = {}
    for why, (difference, old, new) in chosen:
        pairs.setdefault(new.rollout_id, RolloutPair(why, new.task_id, new.repeat, difference, old, new))
    return list(pairs.values())


def view(before: RolloutRecord, after: RolloutRecord) -> list[dict[str, Any]]:
    """Every field of two rollouts side by side, as JSON-ready rows in reading order.

    A row is {"section", "field", "changed", "before", "after"}. `before` and `after` are lists of segments
    {"text", "kind"} whose joined texts are the field's text. kind: "same" for text of both, "removed" for text of
    `before` only, "added" for text of `after` only. If a rollout lacks the field, its list is None.
    """
    old, new = (dict(_fields(record)) for record in (before, after))
    return [row(name, old.get(name), new.get(name)) for name in _merged(list(old), list(new))]


def lines(rows: Sequence[Mapping[str, Any]]) -> list[TableLine]:
    """Rows of `view` under their sections; what is the same on both sides is once."""
    drawn: list[TableLine] = []
    for section, fields in groupby(rows, itemgetter("section")):
        drawn.append(TableLine([sentence(section)], group=True))
        for field in fields:
            cells: list[Inline | Cell] = [part_title(field["field"])]
            same = [Cell(_texts(field["before"]), span=2)]
            drawn.append(
                TableLine([*cells, *([_texts(field["before"]), _texts(field["after"])] if field["changed"] else same)])
            )
    return drawn


def _texts(side: Sequence[Mapping[str, str]] | None) -> list[Piece]:
    """A text in segments that say what only one side has."""
    if side is None:
        return [Text("not there", "quiet")]
    return [Text(segment["text"], SEGMENTS.get(segment["kind"], "")) for segment in side]


def segments(before: str, after: str) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Both texts, split into segments where they differ, by whole words. Joining the segments restores the text."""
    old, new = (TOKEN.findall(text) for text in (before, after))
    left: list[dict[str, str]] = []
    right: list[dict[str, str]] = []
    blocks = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    for number, (kind, i1, i2, j1, j2) in enumerate(blocks):
        # A single space between two changes counts as changed: whole phrases are easier to read than single words.
        same = kind == "equal" and (number in (0, len(blocks) - 1) or not "".join(old[i1:i2]).isspace())
        _extend(left, "".join(old[i1:i2]), "same" if same else "removed")
        _extend(right, "".join(new[j1:j2]), "same" if same else "added")
    return left, right


def _extend(segments: list[dict[str, str]], text: str, kind: Kind) -> None:
    if segments and segments[-1]["kind"] == kind:
        segments[-1]["text"] += text
    elif text:
        segments.append({"text": text, "kind": kind})


Name = tuple[str, str]
"""Section and field."""


def row(name: Name, before: str | None, after: str | None) -> dict[str, Any]:
    """One field side by side, as a row of `view`."""
    left, right = segments(before or "", after or "")
    return {
        "section": name[0],
        "field": name[1],
        "changed": before != after,
        "before": None if before is None else left,
        "after": None if after is None else right,
    }


def _merged(old: Sequence[Name], new: Sequence[Name]) -> list[Name]:
    """All names in order. A name that only one list has keeps its place among its neighbours."""
    names: list[Name] = []
    for kind, i1, i2, j1, j2 in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        names += old[i1:i2] if kind == "equal" else [*old[i1:i2], *new[j1:j2]]
    return list(dict.fromkeys(names))


OUTPUTS: Mapping[str, tuple[str, str]] = {
    "selected_hypothesis": ("selected hypothesis", ""),
    "supervisor_justification": ("selection", "justification"),
    "refined_hypothesis": ("refined hypothesis", ""),
    "final_protocol": ("protocol", ""),
    "peer_review": ("peer review", ""),
    "safety_review": ("safety review", ""),
    "final_answer": ("decision", "answer"),
    "final_decision": ("decision", "decision"),
    "final_veto": ("decision", "veto"),
    "final_rationale": ("decision", "rationale"),
}
"""Section and field of the outputs that are compared, in reading order. An output without a field has fields itself."""


def _fields(record: RolloutRecord) -> Iterator[tuple[Name, str]]:
    """Section, field and text of each field to compare."""
    outputs = record.outputs
    if record.error is not None:
        yield ("outcome", "error"), record.error
    for hypothesis in outputs.get("initial_hypotheses", ()):
        yield from _answer(f"{hypothesis['author']}'s hypothesis", hypothesis)
    for name, (section, field) in OUTPUTS.items():
        if name not in outputs:
            continue
        if name == "supervisor_justification" and (selection := outputs.get("selection")):
            yield (section, "chosen by"), chooser(selection)
            yield (section, "reason"), choice_reason(selection, outputs[name])
        elif field:
            yield (section, field), _text(outputs[name])
        else:
            yield from _answer(section, outputs[name])
    for name, value in record.parts.items():
        if value is not None:
            yield ("reward", name), f"{value:z.3f}"
    if record.reward is not None:
        yield ("reward", "total"), f"{record.reward:z.3f}"


def _answer(section: str, answer: Mapping[str, Any]) -> Iterator[tuple[Name, str]]:
    for field, value in answer.items():
        if field != "author" or section == "selected hypothesis":
            yield (section, field), _text(value)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "\n".join(map(str, value)) if value else "none"
    return str(value)
