"""The arguments of an evaluation. The ledger records them with the report's hashes, and they determine the plan.

    {"event": "evaluated", "asked": {...}, "evaluation": {...}, "report": {"folder": ..., "files": {name: SHA-256}}}

A plan is never read from a report. Its tasks and stages follow from the run's configuration, its data and its ledger
at that time.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from agents.roles import REFINER, form_of
from chimera.config.sections.data import DataConfig
from chimera.config.sections.evaluation import EvaluationConfig
from chimera.data.tasks import Dataset, load
from chimera.run.chain import Entry, read_events
from chimera.run.directory import LEDGER, Run
from chimera.run.hashes import hash_artifact
from chimera.run.jsonl import read_lines
from chimera.run.seals import history
from evaluation.baselines.single_agent import ROLE
from evaluation.records.plan import check_unseen, choose_stages, choose_tasks, learned_in
from evaluation.records.study import Plan, PlannedTask, Split
from evaluation.report.conversations import FOLDER as CONVERSATIONS
from evaluation.report.files import FILES, PLOTS

EVALUATED = "evaluated"
ELSEWHERE = "elsewhere"


@dataclass(frozen=True, slots=True)
class AskedEvaluation:
    """The arguments of an evaluation that determine its tasks and stages.

    Attributes:
        limit: How many; None for the usual number.
        stages: Their names, separated by commas; None for those of the sequence. `evaluation.contributions` may add to
            them.
    """

    split: Split
    limit: int | None
    repeats: int
    stages: str | None
    data: Mapping[str, Any]

    @classmethod
    def of(cls, split: Split, limit: int | None, repeats: int, stages: str | None, data: DataConfig) -> Self:
        return cls(split, limit, repeats, stages, data.model_dump(mode="json"))

    def plan(self, run: Run, settings: EvaluationConfig) -> tuple[Plan, Dataset]:
        """What is evaluated, and the data that its tasks are from.

        Raises:
            ChimeraError: There are no such tasks or stages, or the run has learned from the tasks.
        """
        stages = choose_stages(run, self.stages, settings.contributions, settings.temperature, settings.faults)
        trained = run.config
        config = trained.model_copy(update={"data": DataConfig.model_validate(dict(self.data))})
        trained_dataset = load(trained.data)
        dataset = trained_dataset if config.data == trained.data else load(config.data)
        config.society.graph.check_answers(dataset.labels)
        tasks = choose_tasks(dataset, self.split, config, self.limit)
        check_unseen(tasks, trained_dataset, self.split)
        planned = tuple(map(PlannedTask.of, tasks))
        official = self.split == "test" and dataset.official and len(tasks) == len(dataset.test)
        described = dataset.describe()
        alone = run.config.slot(ROLE.name)
        combining = run.config.slot(REFINER) if form_of(run.config.society.graph, REFINER) else ""
        learned = learned_in(run)
        plan = Plan(
            self.split,
            dataset.source,
            described,
            planned,
            self.repeats,
            stages,
            official,
            alone,
            learned,
            dataset.labels,
            combining,
        )
        return plan, dataset


@dataclass(frozen=True, slots=True)
class Evaluated:
    """An entry of the ledger about an evaluation.

    Attributes:
        written: When the report was written and by which code, as it says itself.
        name: The run's name then.
        folder: Where the report was written, relative to the run, or "elsewhere".
        files: SHA-256 of each of its files, by the path relative to its folder.
    """

    asked: AskedEvaluation
    settings: EvaluationConfig
    written: Mapping[str, Any]
    name: str
    folder: str
    files: Mapping[str, str]

    def record(self, run: Run) -> None:
        """Write it into the ledger of `run`."""
        run.ledger(
            EVALUATED,
            run=self.name,
            asked=asdict(self.asked),
            evaluation=self.settings.model_dump(mode="json"),
            written=dict(self.written),
            report={"folder": self.folder, "files": dict(self.files)},
        )

    @classmethod
    def load(cls, event: Mapping[str, Any]) -> Self:
        """The inverse of `record`.

        Raises:
            KeyError, TypeError, ValueError: It is no such event.
        """
        report = event["report"]
        settings = EvaluationConfig.model_validate(event["evaluation"])
        return cls(
            AskedEvaluation(**event["asked"]),
            settings,
            event["written"],
            event["run"],
            report["folder"],
            report["files"],
        )


def folder_in(run: Run, folder: Path) -> str:
    """How the ledger names a report's folder: relative to the run, or "elsewhere" outside of it."""
    inside = folder.resolve().is_relative_to(run.path.resolve())
    return folder.resolve().relative_to(run.path.resolve()).as_posix() if inside else ELSEWHERE


def hashes_of(folder: Path) -> dict[str, str]:
    """SHA-256 of each file of a report, by its path relative to the report's folder."""
    drawn = sorted(file for file in (folder / PLOTS).rglob("*") if file.is_file()) if (folder / PLOTS).is_dir() else []
    written = [folder / name for name in FILES if (folder / name).is_file()]
    conversations = sorted((folder / CONVERSATIONS).glob("*"))
    return {file.relative_to(folder).as_posix(): hash_artifact(file) for file in (*written, *drawn, *conversations)}


@dataclass(frozen=True)
class RunThen(Run):
    """A run as it was at an entry of its ledger. Later writes are not read."""

    called: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def at(cls, run: Run, entries: list[Entry], called: str) -> Self:
        """As it was at the last of `entries`.

        Args:
            entries: The beginning of its ledger.
            called: Its name then.
        """
        seals = history(entry.record for entry in entries)
        sizes = {name: of_file[-1][1] for name, of_file in seals.items() if of_file[-1] is not None}
        return cls(run.path, called=called, sizes={**sizes, LEDGER: entries[-1].end})

    @property
    def name(self) -> str:
        """The run's name then: its folder may have been renamed."""
        return self.called

    def events(self) -> Iterator[dict[str, Any]]:
        return read_events(self.path / LEDGER, end=self.sizes[LEDGER])

    def lines(self, file: str) -> Iterator[dict[str, Any]]:
        return read_lines(self.path / file, end=self.sizes.get(file, 0))
