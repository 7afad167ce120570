"""Lists the recorded rollouts of a run, finds one by what a user types, and reads everything known about it."""

from collections.abc import Sequence

from chimera.core.errors import RunError, suggestion
from chimera.run.directory import Run
from evaluation.records.rollouts import RolloutRecord
from evaluation.records.study import GATE
from evaluation.traces.branches import branches_of
from evaluation.traces.spans import read
from evaluation.traces.token_records import tokens_of
from evaluation.traces.tree import Tree, tree

LISTED = 8
"""Number of candidates that an error names."""
FIRST = 3
"""Number of rollouts that an error names when none is meant by what was typed."""
SAME_ID = 0.8
"""How alike an id must be to be meant: random ids are alike by chance."""


def recorded_rollouts(run: Run, phase: str | None = None) -> list[RolloutRecord]:
    """The rollouts of a run: phases in the order of their names, rollouts of a phase in the order of their ends.

    Args:
        phase: Only this phase.

    Raises:
        RunError: There is no rollout, or none of that phase.
    """
    phases = sorted(file.stem for file in (run.path / "rollouts").glob("*.jsonl"))
    if phase is not None and phase not in phases:
        hint = suggestion(phase, phases, f"phases with rollouts: {', '.join(phases) or 'none'}")
        raise RunError(f"run {run.name!r} has no rollouts of phase {phase!r}: {hint}")
    names = phases if phase is None else [phase]
    records = [RolloutRecord.load(data) for name in names for data in run.rollouts(name)]
    if not records:
        raise RunError(f"run {run.name!r} has no rollouts yet: python -m chimera.train --resume --name {run.name}")
    return records


def find(records: Sequence[RolloutRecord], name: str) -> list[RolloutRecord]:
    """The rollout with this id or id prefix, or all rollouts of the task with this id.

    Raises:
        RunError: There is none, or several ids have this prefix.
    """
    exact = [record for record in records if record.rollout_id == name]
    if exact:
        return exact[-1:]
    if of_task := [record for record in records if record.task_id == name]:
        return of_task
    begun = {record.rollout_id: record for record in records if record.rollout_id.startswith((name, f"ro-{name}"))}
    if len(begun) == 1:
        return list(begun.values())
    if begun:
        named = ", ".join([*list(begun)[:LISTED], *(["..."] if len(begun) > LISTED else [])])
        raise RunError(f"{len(begun)} rollouts begin with {name!r} ({named}): give more of the id")
    names = {name: None for record in records for name in (record.rollout_id, record.task_id)}
    first = ", ".join(dict.fromkeys(record.rollout_id for record in records[:FIRST]))
    listed = f"the first rollouts are {first}; without an id, chimera.trace lists all"
    raise RunError(f"there is no rollout and no task {name!r} here: {suggestion(name, names, listed, SAME_ID)}")


def read_tree(run: Run, record: RolloutRecord) -> Tree:
    """Read everything about one rollout in the run directory: record, trace, token records of PPO, and branches."""
    spans = read(run.path / record.trace) if record.trace else []
    if record.phase.startswith((f"{GATE}-", "eval-")):
        return tree(record, spans)  # Nothing learns from these tasks, and what training recorded is long to read.
    name = record.rollout_id
    return tree(record, spans, tokens_of(run.path, name), branches_of(run.path, name))
