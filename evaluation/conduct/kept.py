"""A question that waits for a person, on disk: it can be answered after the process has ended in any way.

<runs_dir>/asked/<name>/question.json     the brief, the configuration and the run that answers
                        state.sqlite      the society's state after each node (LangGraph's checkpointer)
                        sources.json      the passages that were read, with their origins
                        preferences.jsonl what the person changed or rejected, as preference data
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from agents.person import PersonVerdict, refused
from agents.roles import PRINCIPAL_INVESTIGATOR
from agents.saver import saved_state
from agents.tools.text.passages import Passage
from chimera.config.tree import Config
from chimera.core.errors import RunError
from chimera.core.files import read_json_object, replace_file
from chimera.core.secrets import redact_tree
from chimera.core.types import Brief, Option, Section
from chimera.run.directory import new_folder

FOLDER, PREFERENCES = "asked", "preferences.jsonl"
THREAD = "question"
OWN_QUESTION = "question"
"""Id of the brief of a person's own question, and of its abstract in the literature index."""


@dataclass(frozen=True, slots=True)
class Kept:
    """One kept question.

    Attributes:
        run: Name of the run whose weights answer; None for the base models.
    """

    path: Path
    brief: Brief
    config: Config
    run: str | None

    @classmethod
    def create(cls, config: Config, brief: Brief, run: str | None) -> Self:
        """Make the folder of a new question, readable by its owner only.

        Raises:
            RunError: The folder cannot be written.
        """
        parent = config.runs_dir / FOLDER
        try:
            path = new_folder(parent, mode=0o700)
            question = {"brief": asdict(brief), "config": redact_tree(config.model_dump(mode="json")), "run": run}
            (path / "question.json").write_text(json.dumps(question, ensure_ascii=False), encoding="utf-8")
        except OSError as error:
            raise RunError(
                f"the question cannot be kept in {parent} ({error}): set runs_dir to another folder"
            ) from error
        return cls(path, brief, config, run)

    @classmethod
    def open(cls, runs_dir: Path, name: str) -> Self:
        """The question of that name; raises RunError if there is none, or its file is broken."""
        parent = runs_dir / FOLDER
        there = sorted(folder.name for folder in parent.iterdir()) if parent.is_dir() else []
        if name not in there:
            raise RunError(f"no question {name!r} is kept in {parent}; there are {', '.join(there) or 'none'}")
        file = parent / name / "question.json"
        try:
            saved = read_json_object(file)
            fields = saved["brief"]
            context = tuple(Section(**section) for section in fields.pop("context"))
            options = tuple(Option(**option) for option in fields.pop("options", ()))
            config = Config.model_validate(saved["config"])
            brief = Brief(**fields, context=context, options=options)
            return cls(parent / name, brief, config, saved["run"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{file} is broken ({error}): ask again") from error

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def states(self) -> Path:
        """The file of the society's states."""
        return self.path / "state.sqlite"

    def sources(self) -> list[tuple[str, Passage]]:
        """The passages that were read so far, each with the tool that found it.

        Raises:
            RunError: The file is broken.
        """
        file = self.path / "sources.json"
        try:
            rows = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
            return [(tool, Passage(**passage)) for tool, passage in rows]
        except (OSError, ValueError, TypeError) as error:
            raise RunError(f"{file} is broken ({error}): ask again") from error

    def keep_sources(self, sources: Sequence[tuple[str, Passage]]) -> None:
        replace_file(self.path / "sources.json", json.dumps([(tool, asdict(passage)) for tool, passage in sources]))

    async def state(self) -> Mapping[str, Any]:
        """The society's state as it was saved last; empty if nothing was saved."""
        return await saved_state(self.states, THREAD)

    async def waiting(self, verdict: PersonVerdict) -> Mapping[str, Any]:
        """The state whose decision waits for `verdict`.

        Raises:
            RunError: It waits for no verdict yet, it has had one, or this one cannot take effect.
        """
        state = await self.state()
        if "final_decision" not in state:
            raise RunError(f"{self.name} waits for no verdict yet: continue it without --verdict")
        if confirmation := state.get("confirmation"):
            raise RunError(f"{self.name} has had its verdict, {confirmation['action']}: it cannot be given again")
        if "final_evaluation" in state or state["final_decision"] not in self.config.society.confirm:
            raise RunError(f"{self.name} waits for no verdict: {state['final_decision']} has taken effect without one")
        if reason := refused(verdict, state):
            raise RunError(f"{self.name}: {reason}")
        return state

    def prefer(self, state: Mapping[str, Any], verdict: PersonVerdict) -> None:
        """Keep what a person changed or rejected, as preference data.

        Args:
            verdict: What the person said. An approval is no preference.
        """
        if verdict.action == "approve":
            return
        rejected = {
            "amendments": state["final_protocol"]["amendments"],
            "rationale": state["final_rationale"],
            "answer": state["final_answer"],
            "decision": state["final_decision"],
        }
        changed = {"answer": verdict.answer or rejected["answer"], "decision": verdict.decision or rejected["decision"]}
        chosen = {**rejected, **changed, "rationale": verdict.reason} if verdict.action == "edit" else None
        record = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "role": PRINCIPAL_INVESTIGATOR,
            "prompt": state["messages"][PRINCIPAL_INVESTIGATOR][:-1],
            "rejected": rejected,
            "chosen": chosen,
            "reason": verdict.reason,
        }
        with (self.path / PREFERENCES).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
