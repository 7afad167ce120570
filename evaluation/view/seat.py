"""The principal investigator's seat on a page: questions that wait for a person, and the person's verdicts.

A verdict starts `python -m chimera.ask --continue NAME --verdict ...`, the command that a person would type, so the
question goes on in the same way whether the process that asked it lives or was killed.
"""

import asyncio
import sqlite3
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agents.person import PersonVerdict
from agents.tools.text.passages import Passage
from chimera.core.errors import ChimeraError, RunError
from chimera.core.secrets import ENVIRONMENT
from chimera.core.types import LABELS
from chimera.processes.child_environment import child_environment
from chimera.processes.children import Command, stop
from evaluation.conduct.asked import answer_state, notice
from evaluation.conduct.kept import FOLDER, Kept
from evaluation.view.reading.watched import inside

SeatState = Literal["works", "waits", "takes effect", "done", "broken"]
COMMAND = "chimera.ask"
LOG = "verdict.log"
CODES = (0, 7, 8)
"""Exit codes of the command that are no failure: answered, withheld, waits again."""


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """One kept question.

    Attributes:
        name: Its name, for `--continue`.
        state: "works" until there is a decision, also if its process has ended; "waits" for a person; "takes effect"
            while a verdict is carried out; "done"; "broken" if it cannot be read.
        values: The society's state as it was saved last, as a person may see it (`answer_state`).
        fault: Why it cannot be read, or why the last verdict did not take effect.
        notice: What has to stand beside its answer.
    """

    name: str
    goal: str
    run: str | None
    state: SeatState
    values: Mapping[str, Any]
    sources: tuple[tuple[str, Passage], ...] = ()
    labels: tuple[str, ...] = ()
    fault: str | None = None
    notice: str | None = None


Stamps = tuple[tuple[str, int, int], ...]
"""Name, time and size of files."""


@dataclass(frozen=True, slots=True)
class _Saved:
    """What the files of a question hold."""

    kept: Kept
    values: Mapping[str, Any]
    sources: tuple[tuple[str, Passage], ...]


class PersonSeat:
    """The kept questions of a runs folder. It is thread-safe."""

    def __init__(self, runs_dir: Path) -> None:
        self._runs_dir = runs_dir
        self._lock = threading.Lock()
        self._verdicts: dict[str, Command] = {}
        self._read: dict[str, tuple[Stamps, _Saved]] = {}

    def stamp(self) -> list[tuple[str, Any]]:
        """What changes when a question changes, or when a verdict has taken effect."""
        folder = self._runs_dir / FOLDER
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        return [(name, (_stamps(folder / name), self._takes_effect(name))) for name in names]

    def questions(self) -> list[AskedQuestion]:
        """All kept questions, newest first."""
        folder = self._runs_dir / FOLDER
        names = sorted((path.name for path in folder.iterdir()), reverse=True) if folder.is_dir() else []
        return [self.read(name) for name in names]

    def read(self, name: str) -> AskedQuestion:
        """The question `name`; one that is there and cannot be read is "broken"."""
        try:
            saved = self._saved(name)
        except (ChimeraError, OSError, sqlite3.Error) as error:
            return AskedQuestion(name, "", None, "broken", {}, fault=str(error))
        kept_question, values = saved.kept, saved.values
        labels = tuple(option.name for option in kept_question.brief.options) or LABELS
        state, fault, remark = self._state(kept_question, values), self._fault(name), notice(kept_question)
        return AskedQuestion(
            name, kept_question.brief.goal, kept_question.run, state, values, saved.sources, labels, fault, remark
        )

    def say(self, name: str, verdict: PersonVerdict) -> None:
        """Give a verdict; it takes effect in a process of its own.

        Raises:
            RunError: There is no such question, it waits for no verdict, or this verdict cannot take effect.
        """
        kept_question = self._open(name)
        asyncio.run(kept_question.waiting(verdict))
        with self._lock:
            if (before := self._verdicts.get(name)) is not None and before.alive():
                raise RunError(f"{name} has had its verdict, which takes effect now: it cannot be given again")
            environment = child_environment(*ENVIRONMENT, *kept_question.config.secret_names(), network=True)
            child = Command(
                f"the verdict on {name}", COMMAND, self._arguments(name, verdict), kept_question.path / LOG, environment
            )
            child.tell("")
            self._verdicts[name] = child

    def join(self, name: str) -> None:
        """Wait until the verdict on `name`, if one takes effect, has taken it."""
        if (child := self._verdicts.get(name)) is not None:
            child.join()

    def close(self) -> None:
        """End the processes of verdicts; what they had reached is kept."""
        with self._lock:
            stop(self._verdicts.values())

    def _saved(self, name: str) -> _Saved:
        """What is kept of a question, read again if its files have changed."""
        kept_question = self._open(name)
        now = _stamps(kept_question.path)
        cached = self._read.get(name)
        if cached is not None and cached[0] == now:
            return cached[1]
        # Opening a file of states that is not there would make one.
        values = asyncio.run(kept_question.state()) if kept_question.states.is_file() else {}
        sources = tuple(kept_question.sources())
        saved = _Saved(kept_question, answer_state(kept_question, values, sources), sources)
        self._read[name] = now, saved
        return saved

    def _takes_effect(self, name: str) -> bool:
        child = self._verdicts.get(name)
        return child is not None and child.alive()

    def _open(self, name: str) -> Kept:
        kept_question = Kept.open(self._runs_dir, name)
        if not inside(kept_question.path, self._runs_dir):
            raise RunError(f"question {name!r} is a link out of {self._runs_dir}: it is not opened")
        return kept_question

    def _arguments(self, name: str, verdict: PersonVerdict) -> list[str]:
        fields = {"decision": verdict.decision, "answer": verdict.answer, "reason": verdict.reason or None}
        options = [f"--{key}={value}" for key, value in fields.items() if value is not None]
        return [f"--continue={name}", f"--verdict={verdict.action}", *options, "--json", f"runs_dir={self._runs_dir}"]

    def _state(self, kept_question: Kept, values: Mapping[str, Any]) -> SeatState:
        if self._takes_effect(kept_question.name):
            return "takes effect"
        if "final_decision" not in values:
            return "works"
        waits = values["final_decision"] in kept_question.config.society.confirm and "final_withheld" not in values
        return "waits" if waits and not {"confirmation", "final_evaluation"} & set(values) else "done"

    def _fault(self, name: str) -> str | None:
        child = self._verdicts.get(name)
        if child is None or child.alive() or child.exit_code in CODES:
            return None
        return f"{child.ending()}: {child.last_words(1)}"


def _stamps(folder: Path) -> Stamps:
    """The files of a question, without those that SQLite makes while the states are read."""
    rows: list[tuple[str, int, int]] = []
    for file in sorted(folder.glob("*")):
        try:
            about = file.stat()
        except FileNotFoundError:
            continue
        if not file.name.endswith("-shm") and not (file.name.endswith("-wal") and about.st_size == 0):
            rows.append((file.name, about.st_mtime_ns, about.st_size))
    return tuple(rows)
