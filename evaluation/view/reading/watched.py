"""One run directory, read again only as far as it has changed since the last look."""

import re
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from chimera.config.source import read_yaml
from chimera.core.errors import ChimeraError, RunError
from chimera.core.files import parse_json, read_json_object
from chimera.run.chain import read_events
from chimera.run.directory import LEDGER, SAFE_NAME, Run
from evaluation.records.study import BASE, GATE
from evaluation.view.reading.growing import GrowingFile
from evaluation.view.reading.rows import RolloutRow, role_of, row_of

ROLLOUT = "rollout"
"""The value of "phase" in metrics.jsonl of a line about one rollout."""
ROLLOUT_LINE, OF = b'"phase":"rollout",', re.compile(rb'"of":"([A-Za-z0-9._-]+)"')
"""Such a line, which is not parsed, and the stage of the rollout."""
EVALUATED = re.compile(r"eval-(val|test)-")
"""The beginning of the name of an evaluation's file of rollouts, with the split."""
CALLS = "phases/*/calls.jsonl"
"""The files of calls that phases made outside rollouts."""
FAULTS = 5
"""Most faults of a file that are told."""


@dataclass(frozen=True)
class Snapshot:
    """A run as it was at one moment.

    Attributes:
        run: The run's folder.
        rows: Its rollouts by phase: those of training in the order of their first ends, which is the pipeline's, then
            those of evaluations, of each split in the order of the pipeline too.
        lines: The lines of metrics.jsonl that are not about one rollout.
        gates: What the gate wrote of each phase.
        calls: Calls outside rollouts that each phase made, such as further answers to recorded prompts.
        faults: Sentences about what could not be read.
    """

    run: Path
    rows: Mapping[str, Sequence[RolloutRow]]
    events: Sequence[Mapping[str, Any]]
    lines: Sequence[Mapping[str, Any]]
    gates: Mapping[str, Mapping[str, Any]]
    calls: Mapping[str, int]
    settings: Mapping[str, Any]
    faults: Sequence[str]

    @property
    def name(self) -> str:
        return self.run.name

    @cached_property
    def all_rows(self) -> Sequence[RolloutRow]:
        return [row for rows in self.rows.values() for row in rows]

    @cached_property
    def parts(self) -> Sequence[str]:
        """The names of the reward's parts, in the order of their first appearance."""
        return list(dict.fromkeys(name for row in self.all_rows for name in row.parts))

    @cached_property
    def roles(self) -> Sequence[str]:
        """The roles that took part, in the order of their first appearance."""
        visits = dict.fromkeys(visit for row in self.all_rows for visit in row.visits)
        return list(dict.fromkeys(map(role_of, visits)))

    @cached_property
    def by_id(self) -> Mapping[str, RolloutRow]:
        return {row.rollout_id: row for row in self.all_rows}

    @cached_property
    def by_task(self) -> Mapping[str, Sequence[RolloutRow]]:
        rows_by_task: defaultdict[str, list[RolloutRow]] = defaultdict(list)
        for row in self.all_rows:
            rows_by_task[row.task_id].append(row)
        return rows_by_task


@dataclass
class _Phase:
    file: GrowingFile
    rows: dict[str, RolloutRow] = field(default_factory=dict)
    lines: int = 0
    faults: list[str] = field(default_factory=list)


class WatchedRun:
    """A run directory that may grow. It is thread-safe."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._lock = threading.Lock()
        self._phases: dict[str, _Phase] = {}
        self._metrics = GrowingFile(run.path / "metrics.jsonl")
        self._lines: list[Mapping[str, Any]] = []
        self._order: dict[str, None] = {}
        self._calls: dict[str, tuple[GrowingFile, int]] = {}
        self._seen: dict[str, Any] = {}
        self._snapshot: Snapshot | None = None

    def look(self) -> Snapshot:
        with self._lock:
            now, faults = stamps(self.run.path), []
            if self._snapshot is not None and now == self._seen:
                return self._snapshot
            try:
                self._read_metrics()
                self._read_rollouts()
                self._count_calls()
                events = list(read_events(self.run.path / LEDGER))
            except (OSError, RunError) as error:
                events, faults = [], [f"{error}"]
            faults += [fault for phase in self._phases.values() for fault in phase.faults]
            self._seen = now
            unordered = sorted((name for name in self._phases if name not in self._order), key=_place(events))
            names = [*(name for name in self._order if name in self._phases), *unordered]
            self._snapshot = Snapshot(
                self.run.path,
                {name: list(self._phases[name].rows.values()) for name in names},
                events,
                list(self._lines),
                self._gates(faults),
                {name: calls for name, (_, calls) in self._calls.items()},
                self._told_settings(faults),
                faults,
            )
            return self._snapshot

    def _read_metrics(self) -> None:
        again, lines = self._metrics.news()
        if again:
            self._lines, self._order = [], {}
        for _, line in lines:
            if ROLLOUT_LINE in line and (of := OF.search(line)):
                self._order.setdefault(of[1].decode())
                continue
            try:
                row = parse_json(line)
            except ValueError:
                continue  # Its own readers name the line; here it is one point of a curve.
            if isinstance(row, dict) and row.get("phase") != ROLLOUT:
                self._lines.append(row)

    def _read_rollouts(self) -> None:
        there = {file.stem: file for file in sorted((self.run.path / "rollouts").glob("*.jsonl"))}
        self._phases = {name: phase for name, phase in self._phases.items() if name in there}
        for name, file in there.items():
            if SAFE_NAME.fullmatch(name) and inside(file, self.run.path):
                self._grow(name, self._phases.setdefault(name, _Phase(GrowingFile(file))))

    def _count_calls(self) -> None:
        for file in self.run.path.glob(CALLS):
            growing, before = self._calls.get(file.parent.name, (GrowingFile(file), 0))
            again, lines = growing.news()
            self._calls[file.parent.name] = growing, len(lines) + (0 if again else before)

    def _grow(self, name: str, phase: _Phase) -> None:
        again, lines = phase.file.news()
        if again:
            phase.rows, phase.lines, phase.faults = {}, 0, []
        for offset, line in lines:
            phase.lines += 1
            try:
                row = row_of(line, name, phase.lines, offset)
            except RunError as error:
                if len(phase.faults) < FAULTS:
                    phase.faults.append(f"{error}")
                continue
            phase.rows[row.rollout_id] = row  # Of several records of one rollout the last counts.

    def _gates(self, faults: list[str]) -> dict[str, Mapping[str, Any]]:
        gates: dict[str, Mapping[str, Any]] = {}
        for file in sorted((self.run.path / GATE).glob("*.json")):
            if inside(file, self.run.path):
                try:
                    gates[file.stem] = read_json_object(file)
                except (OSError, ValueError) as error:
                    faults.append(f"{GATE}/{file.name} cannot be read: {error}")
        return gates

    def settings(self) -> Mapping[str, Any]:
        """The configuration by dotted key; empty if it cannot be read."""
        return self._told_settings([])

    def _told_settings(self, faults: list[str]) -> Mapping[str, Any]:
        file = self.run.path / "config.yaml"
        try:
            return _settings(file, file.stat().st_mtime_ns)
        except (ChimeraError, OSError) as error:
            faults.append(f"{error}")
            return {}


def _place(events: Sequence[Mapping[str, Any]]) -> Callable[[str], tuple[bool, str, int, str]]:
    """Sorts names of files of rollouts, such as "eval-test-sft-at-0.3", by what their stage is named after: the base,
    then the phases in the order of the pipeline, then all that has several or none, such as "final-without-sft"."""
    planned = [str(name) for event in events if event["event"] == "planned" for name in event["phases"]]
    order = list(dict.fromkeys((BASE, *planned)))

    def place(name: str) -> tuple[bool, str, int, str]:
        of_evaluation = EVALUATED.match(name)
        stage = name.removeprefix(of_evaluation[0] if of_evaluation else f"{GATE}-")
        phases = [phase for phase in order if stage == phase or stage.startswith(f"{phase}-")]
        at = order.index(max(phases, key=len)) if phases else len(order)
        return of_evaluation is not None, of_evaluation[1] if of_evaluation else "", at, name

    return place


@lru_cache(maxsize=512)
def _settings(file: Path, _changed: int) -> Mapping[str, Any]:
    return {key: setting.value for key, setting in read_yaml(file).items()}


def inside(file: Path, folder: Path) -> bool:
    """True if `file`, with all links followed, is in `folder`."""
    return file.resolve().is_relative_to(folder.resolve())


def stamps(run: Path, *, rollouts: bool = True) -> dict[str, Any]:
    """Size and time of the files that a page is made of; the list of runs leaves those of rollouts out."""
    files = [run / LEDGER, run / "metrics.jsonl", run / "config.yaml", run / "report" / "index.html"]
    by_file: dict[str, Any] = {}
    growing = (*run.glob("rollouts/*.jsonl"), *run.glob(CALLS)) if rollouts else ()
    for file in (*files, *growing, *run.glob(f"{GATE}/*.json")):
        try:
            about = file.stat()
        except OSError:
            continue  # Not there yet, or no longer.
        by_file[str(file)] = about.st_size, about.st_mtime_ns, about.st_ino
    return by_file
