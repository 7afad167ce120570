"""One rollout as data: the input in the store's queue, and the durable record of the result.

A bad rollout is data, not a crash: it has status "failed" and says why.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

from chimera.core.errors import RunError
from chimera.core.types import LABELS, Decision, Label, Option, ResearchTask, Section, Source

Status = Literal["succeeded", "failed"]


@dataclass(frozen=True, slots=True)
class RolloutInput:
    """Input of a rollout: the task without its conclusion, and the seed of this rollout.

    The label is for the reward. The society gets only the task's `brief()`.
    """

    task: ResearchTask
    phase: str
    repeat: int
    seed: int

    @classmethod
    def of(cls, task: ResearchTask, phase: str, repeat: int, seed: int) -> "RolloutInput":
        """Repeat number `repeat` (from 0) of `task`. Its seed depends on `seed`, phase, task and repeat."""
        digest = hashlib.sha256(f"{seed}/{phase}/{task.id}/{repeat}".encode()).digest()
        return cls(task, phase, repeat, int.from_bytes(digest[:4], "big") >> 1)

    def dump(self) -> dict[str, Any]:
        """Plain data for the store, without the task's long answer."""
        return {
            "id": self.task.id,
            "goal": self.task.goal,
            "context": [{"label": section.label, "text": section.text} for section in self.task.context],
            "label": self.task.label,
            "source": self.task.source,
            "level": self.task.level,
            "options": [[option.name, option.text] for option in self.task.options],
            "phase": self.phase,
            "repeat": self.repeat,
            "seed": self.seed,
        }

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> "RolloutInput":
        context = tuple(Section(section["label"], section["text"]) for section in data["context"])
        task = ResearchTask(
            data["id"],
            data["goal"],
            context,
            data["label"],
            source=data["source"],
            level=data.get("level"),
            options=tuple(Option(*option) for option in data.get("options", ())),
        )
        return cls(task, data["phase"], data["repeat"], data["seed"])


@dataclass(frozen=True, slots=True)
class Outcome:
    """A worker's report on a rollout: one object span in the rollout's trace.

    Attributes:
        error: Why the attempt failed; None if it succeeded.
        outputs: Final fields of the society's state, without chat messages (the trace's model calls have them).
        reward: The scalar r; None if a part is missing or the attempt failed.
        parts: The reward's named parts, which sum to r; a missing part is None.
        weights_versions: Versions that the servers reported, by logical model; several if weights were swapped.
        counts: Model calls, tool calls, tokens and so on (see `agents.visit.record.count`).
        tokens: Tokens by logical model (see `agents.visit.record.tokens`), without the judge's.
        visits: Model calls and tokens by role and visit (see `agents.visit.record.by_visit`).
        tool_calls: Tool calls of each role that has tools (see `agents.visit.record.tool_calls`).
        calls: Every model call and tool call as `agents.visit.record` describes them.
        seconds: Wall time of the attempt.
    """

    error: str | None
    outputs: dict[str, Any]
    reward: float | None
    parts: dict[str, float | None]
    weights_versions: dict[str, list[str]]
    counts: dict[str, int]
    tokens: dict[str, dict[str, int]]
    visits: dict[str, dict[str, int]]
    tool_calls: dict[str, int]
    calls: list[dict[str, Any]]
    seconds: float

    def dump(self) -> dict[str, Any]:
        """Plain data, which shares its containers with the outcome."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, slots=True)
class RolloutRecord:
    """The durable record of one rollout: one JSON line in the run's `rollouts/<phase>.jsonl`.

    Attributes:
        goal: The question; empty in records of earlier versions.
        options: Names of the answers to choose from; empty if they are yes, no and maybe.
        answer: The society's answer to the question; None if the rollout failed.
        decision: Whether the protocol may run; None if the rollout failed.
        veto: The unresolved CRITICAL reviews, with the first issue of each; None if there is none.
        policy_versions: Policy version that the rollout had to use, by logical model.
        weights_versions: Versions that the servers reported.
        missing: The reward's parts that have no value. If there are any, `reward` is None.
        trace: The trace file, relative to the run; None if there is none.
        tool_calls: Tool calls of each role that has tools; empty in records of earlier versions.
    """

    rollout_id: str
    task_id: str
    source: Source
    level: int | None
    phase: str
    repeat: int
    seed: int
    status: Status
    error: str | None
    label: Label
    answer: Label | None
    decision: Decision | None
    reward: float | None
    goal: str = ""
    options: list[Label] = field(default_factory=list)
    veto: str | None = None
    parts: dict[str, float | None] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    policy_versions: dict[str, str] = field(default_factory=dict)
    weights_versions: dict[str, list[str]] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, dict[str, int]] = field(default_factory=dict)
    visits: dict[str, dict[str, int]] = field(default_factory=dict)
    tool_calls: dict[str, int] = field(default_factory=dict)
    seconds: float | None = None
    trace: str | None = None

    @property
    def place(self) -> tuple[str, str, int]:
        """Its place among the rollouts of a run, in whatever order they ended."""
        return self.phase, self.task_id, self.repeat

    @property
    def has_protocol(self) -> bool:
        """True if it succeeded and designed a protocol, which judges score (`society.graph.design`)."""
        return self.status == "succeeded" and set(self.outputs.get("final_protocol", ())) > {"amendments"}

    def dump(self) -> dict[str, Any]:
        """Plain data for the JSON line."""
        return asdict(self)

    @classmethod
    def of(
        cls, rollout_input: RolloutInput, outcome: Outcome, rollout_id: str, versions: Mapping[str, str]
    ) -> "RolloutRecord":
        """The record of a rollout; `versions` are the policies that it had to use."""
        outputs = outcome.outputs
        return cls(
            rollout_id=rollout_id,
            task_id=rollout_input.task.id,
            source=rollout_input.task.source,
            level=rollout_input.task.level,
            phase=rollout_input.phase,
            repeat=rollout_input.repeat,
            seed=rollout_input.seed,
            status="succeeded" if outcome.error is None else "failed",
            error=outcome.error,
            label=rollout_input.task.label,
            goal=rollout_input.task.goal,
            options=[option.name for option in rollout_input.task.options],
            answer=outputs.get("final_answer"),
            decision=outputs.get("final_decision"),
            veto=outputs.get("final_veto"),
            reward=outcome.reward,
            parts=outcome.parts,
            missing=[name for name, value in outcome.parts.items() if value is None],
            policy_versions=dict(versions),
            weights_versions=outcome.weights_versions,
            outputs=outputs,
            counts=outcome.counts,
            tokens=outcome.tokens,
            visits=outcome.visits,
            tool_calls=outcome.tool_calls,
            seconds=outcome.seconds,
            trace=f"traces/{rollout_input.phase}/{rollout_id}.jsonl.gz",
        )

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> "RolloutRecord":
        """The inverse of `dump`.

        Raises:
            RunError: It is not a rollout.
        """
        try:
            record = _RECORD.validate_python(data)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise _no_rollout(data, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
        labels = record.options or LABELS
        for name, value in (("label", record.label), ("answer", record.answer)):
            if value not in labels and (name, value) != ("answer", None):
                raise _no_rollout(data, f"{name}: {value!r} is not one of {', '.join(labels)}")
        return record


_RECORD = TypeAdapter(RolloutRecord)


def _no_rollout(data: Mapping[str, Any], fault: str) -> RunError:
    return RunError(
        f"a line of rollouts/{str(data.get('phase'))[:40]}.jsonl is no rollout: {fault}; restore the file from a copy "
        "of the run"
    )


def failures(records: Iterable[RolloutRecord]) -> Counter[str]:
    """Number of failures of each kind."""
    return Counter(kind_of(record.error or "no reason recorded") for record in records if record.status == "failed")


def cause(record: RolloutRecord) -> str | None:
    """Why a rollout failed, whichever role met it and whatever numbers it names; None for one that succeeded."""
    if record.status != "failed":
        return None
    role, _, reason = (record.error or "").partition(": ")
    return kind_of(reason if role.isidentifier() and reason else record.error or "")


def vetoes(records: Iterable[RolloutRecord]) -> Counter[str]:
    """Number of vetoes of each kind, counted like `failures`."""
    return Counter(kind_of(record.veto) for record in records if record.veto is not None)


def kind_of(reason: str) -> str:
    """Reasons that differ only in numbers or after 90 characters are of one kind."""
    return re.sub(r"\d+", "#", reason)[:90]
