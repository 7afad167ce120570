"""One recorded rollout as a row of a list: few fields, and the place of its whole record in its file."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from chimera.core.errors import RunError
from chimera.core.files import parse_json
from evaluation.causes.lost import Step, holds_steps, wrong_step
from evaluation.records.rollouts import RolloutRecord, kind_of
from evaluation.scores.alignment import aligned

OUTPUTS, COUNTS = b',"outputs":{', b',"counts":{'
"""What comes before and after the society's outputs, most of a line. Inside a text JSON would escape the quotes."""


@dataclass(frozen=True, slots=True)
class RolloutRow:
    """One rollout.

    Attributes:
        number: Its number in its phase, from 1.
        right: True if its answer is the label; None without an answer.
        lost: The step that lost its wrong answer; None if it is right, or if the record does not hold the steps.
        parts: The reward's parts; a missing one is None.
        visits: Model calls and tokens by role and visit, as in the record.
        tools: Tool calls of each role that has tools.
        offset: The number of bytes before its line in the phase's file.
        length: The number of bytes of its line.
    """

    rollout_id: str
    task_id: str
    phase: str
    repeat: int
    number: int
    status: str
    error: str | None
    veto: str | None
    label: str
    answer: str | None
    decision: str | None
    right: bool | None
    lost: Step | None
    reward: float | None
    parts: Mapping[str, float | None]
    visits: Mapping[str, Mapping[str, int]]
    tools: Mapping[str, int]
    seconds: float | None
    offset: int
    length: int

    @property
    def failed(self) -> bool:
        return self.status == "failed"

    @property
    def failure(self) -> str | None:
        """The kind of its failure: reasons that differ only in numbers are one kind. None if it succeeded."""
        return kind_of(self.error or "no reason recorded") if self.failed else None

    @property
    def calls(self) -> int:
        """Its model calls, without the judge's."""
        return sum(visit.get("calls", 0) for visit in self.visits.values())

    @property
    def roles(self) -> dict[str, tuple[int, int, int]]:
        """Visits, model calls and tokens of each role that took part."""
        by_role: dict[str, tuple[int, int, int]] = {}
        for key, visit in self.visits.items():
            role = role_of(key)
            before = by_role.get(role, (0, 0, 0))
            tokens = visit.get("prompt", 0) + visit.get("completion", 0)
            by_role[role] = before[0] + 1, before[1] + visit.get("calls", 0), before[2] + tokens
        return by_role


_ROW = TypeAdapter(RolloutRow)


def role_of(visit: str) -> str:
    """The role of a visit that is written as role and number, such as "Role/1"."""
    return visit.rpartition("/")[0] or visit


def row_of(line: bytes, phase: str, number: int, offset: int) -> RolloutRow:
    """The row of a line of `rollouts/<phase>.jsonl`; raises RunError if the line is no rollout."""
    data = _without_outputs(line)
    place = {"phase": phase, "number": number, "offset": offset, "length": len(line)}
    try:
        answer, label = data["answer"], data["label"]
        right = None if answer is None else aligned(answer, label)
        more = {"right": right, "lost": _lost(line, data), "tools": data.get("tool_calls", {})}
        return _ROW.validate_python({"veto": None, **data, **more, **place})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        first = error.errors(include_url=False)[0] if isinstance(error, ValidationError) else None
        why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}" if first else f"{type(error).__name__}: {error}"
        raise RunError(
            f"line {number} of rollouts/{phase}.jsonl is no rollout of this version of Chimera ({why}): read the run "
            "with the version that made it"
        ) from error


def read_record(run: Path, row: RolloutRow) -> RolloutRecord:
    """The whole record of a row of the run in folder `run`.

    Raises:
        RunError: The file has changed or cannot be read.
    """
    file = run / "rollouts" / f"{row.phase}.jsonl"
    try:
        with file.open("rb") as lines:
            lines.seek(row.offset)
            data = parse_json(lines.read(row.length))
    except (OSError, ValueError) as error:
        raise RunError(f"rollout {row.rollout_id} cannot be read from {file}: {error}") from error
    if not isinstance(data, dict) or data.get("rollout_id") != row.rollout_id:
        raise RunError(f"{file} has changed where rollout {row.rollout_id} was: load the page again")
    return RolloutRecord.load(data)


def _without_outputs(line: bytes) -> dict[str, Any]:
    """The fields of a line but its outputs, which are nine tenths of its bytes and are not parsed if avoidable."""
    start, end = line.find(OUTPUTS), line.rfind(COUNTS)
    try:
        if 0 < start < end:
            head, tail = parse_json(line[:start] + b"}"), parse_json(b"{" + line[end + 1 :])
            if "rollout_id" in head and "seconds" in tail:
                return {**head, **tail}
    except ValueError:
        pass  # The bytes were not what they seemed: a slot or a role has one of these names.
    try:
        data = parse_json(line)
    except ValueError as error:
        raise RunError(f"a line is not JSON ({error}): restore the file from a copy of the run") from error
    if not isinstance(data, dict):
        raise RunError("a line holds no JSON object: restore the file from a copy of the run")
    return data


def _lost(line: bytes, data: Mapping[str, Any]) -> Step | None:
    """The step that lost the answer. Only lines of wrong answers are parsed whole."""
    if data["status"] == "failed":
        return "failed"
    if data["answer"] == data["label"]:
        return None
    outputs = parse_json(line).get("outputs", {})
    return wrong_step(data["label"], data["answer"], outputs, failed=False) if holds_steps(outputs) else None
