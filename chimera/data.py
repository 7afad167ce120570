"""The tasks of a run: loading, splitting, and `python -m chimera.data`, which shows them.

Splits are stratified by label (and level, for generated tasks) and seeded. With the official test ids, the test half
stays apart and the other half is split into train and validation. No task is ever in two splits, not under
another id either.
"""

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from chimera.errors import DataError
from chimera.fingerprints import Fingerprint, fingerprint
from chimera.types import LABELS, SOURCE_NAMES, Label, ResearchTask, Source, abstract_text

if TYPE_CHECKING:
    from rich.table import Table

    from chimera.config import DataConfig


@dataclass(frozen=True, slots=True)
class Document:
    """The abstract of a task as the literature index holds it, without its conclusion.

    `title` is the question (PubMedQA's questions are the articles' titles): it must not be indexed or shown to agents.
    """

    id: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Dataset:
    """Tasks in disjoint splits; `test` is empty unless the official test ids were given."""

    train: tuple[ResearchTask, ...]
    validation: tuple[ResearchTask, ...]
    test: tuple[ResearchTask, ...]
    source: Source
    origin: str

    @property
    def tasks(self) -> tuple[ResearchTask, ...]:
        """All tasks: train, then validation, then test."""
        return self.train + self.validation + self.test

    def documents(self) -> tuple[Document, ...]:
        """The abstract of every task, for the literature index."""
        return tuple(Document(task.id, task.goal, abstract_text(task.context)) for task in self.tasks)

    def conclusions(self) -> dict[str, Fingerprint]:
        """The fingerprint of every task's conclusion, by task id: what live search must not show, without its text."""
        return {task.id: fingerprint(task.long_answer, task.id) for task in self.tasks}

    def describe(self) -> str:
        """One line such as "generated tasks, levels 1-4, seed 0: 800 train / 200 validation"."""
        sizes = f"{len(self.train)} train / {len(self.validation)} validation"
        test = f" / {len(self.test)} official test" if self.test else ""
        return f"{SOURCE_NAMES[self.source]}, {self.origin}: {sizes}{test}"


def load(config: "DataConfig") -> Dataset:
    """Load and split the tasks that a configuration asks for.

    Raises:
        DataError: a file is missing or broken, or a split would be empty or not disjoint.
    """
    tasks, source, origin = read_tasks(config)
    test: tuple[ResearchTask, ...] = ()
    if config.test_ids is not None:
        from chimera.pubmedqa import load_test_ids

        tasks, test = official_split(tasks, load_test_ids(config.test_ids), config.test_ids)
    train, validation = stratified_split(tasks, config.validation_share, config.seed)
    check_disjoint({"train": train, "validation": validation, "test": test})
    return Dataset(train, validation, test, source, origin)


def read_tasks(config: "DataConfig") -> tuple[list[ResearchTask], Source, str]:
    """All tasks of the configured source, the source, and a phrase that says which tasks they are."""
    if config.path == "generated":
        from chimera.synthetic import generate

        tasks = [made.task for made in generate(config.size, seed=config.seed, levels=config.levels)]
        return tasks, "generated", f"{levels_phrase(config.levels)}, seed {config.seed}"

    from chimera import pubmedqa

    if config.path == "hub":
        return pubmedqa.load_hub(), "pubmedqa", f"hub, seed {config.seed}"
    path = Path(config.path).expanduser()
    return pubmedqa.load_file(path), "pubmedqa", f"{path.name}, seed {config.seed}"


def levels_phrase(levels: Sequence[int]) -> str:
    """Levels as a phrase: "level 2", "levels 1-4", "levels 1, 3"."""
    ordered = sorted(set(levels))
    if len(ordered) == 1:
        return f"level {ordered[0]}"
    if ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"levels {ordered[0]}-{ordered[-1]}"
    return f"levels {', '.join(map(str, ordered))}"


def stratified_split(
    tasks: Sequence[ResearchTask], validation_share: float, seed: int
) -> tuple[tuple[ResearchTask, ...], tuple[ResearchTask, ...]]:
    """Split into train and validation, both in the order of `tasks`.

    Each stratum (label and level) gives its share to the validation set, rounded by largest remainders so that the
    whole set has round(share * len(tasks)) tasks; which tasks these are depends on the seed only.

    Raises:
        DataError: train or validation would be empty.
    """
    strata: dict[tuple[int, int], list[int]] = {}
    for position, task in enumerate(tasks):
        strata.setdefault((LABELS.index(task.label), task.level or 0), []).append(position)
    exact = {stratum: validation_share * len(members) for stratum, members in strata.items()}
    counts = {stratum: int(quota) for stratum, quota in exact.items()}
    missing = round(validation_share * len(tasks)) - sum(counts.values())
    for stratum in sorted(strata, key=lambda key: (counts[key] - exact[key], key))[: max(0, missing)]:
        counts[stratum] += 1

    rng = Random(seed)
    held_out = {position for stratum in sorted(strata) for position in rng.sample(strata[stratum], counts[stratum])}
    train = tuple(task for position, task in enumerate(tasks) if position not in held_out)
    validation = tuple(task for position, task in enumerate(tasks) if position in held_out)
    if not train or not validation:
        raise DataError(
            f"{len(tasks)} tasks split into {len(train)} train / {len(validation)} validation; both need tasks: "
            f"use more tasks or change data.validation_share={validation_share}"
        )
    return train, validation


def official_split(
    tasks: Sequence[ResearchTask], test_ids: Mapping[str, Label | None], place: Path
) -> tuple[list[ResearchTask], tuple[ResearchTask, ...]]:
    """Set the official test tasks apart, in the order of `tasks`.

    Raises:
        DataError: a test id is not in the data, its label differs, or nothing is left to train on.
    """
    by_id = {task.id: task for task in tasks}
    if absent := [test_id for test_id in test_ids if test_id not in by_id]:
        raise DataError(
            f"{place}: {len(absent)} of {len(test_ids)} test ids are not in the data, the first is {absent[0]}; "
            "data.path must hold all 1,000 labelled questions"
        )
    for test_id, label in test_ids.items():
        if label is not None and label != by_id[test_id].label:
            raise DataError(f"{place}: record {test_id}: label is {label!r}, but the data say {by_id[test_id].label!r}")
    rest = [task for task in tasks if task.id not in test_ids]
    if not rest:
        raise DataError(f"{place}: all {len(tasks)} tasks are test tasks, so nothing is left to train on")
    return rest, tuple(task for task in tasks if task.id in test_ids)


def check_disjoint(splits: Mapping[str, Sequence[ResearchTask]]) -> None:
    """Make sure that no id occurs twice and no question with its abstract is in two splits.

    Raises:
        DataError: names the task and both splits.
    """
    ids: dict[str, str] = {}
    contents: dict[tuple[str, ...], tuple[str, str]] = {}
    for split, tasks in splits.items():
        for task in tasks:
            if (other := ids.setdefault(task.id, split)) != split:
                raise DataError(
                    f"task {task.id} is in the {other} split and in the {split} split; splits must not share tasks"
                )
            key = (task.goal, *(section.text for section in task.context))
            other, other_id = contents.setdefault(key, (split, task.id))
            if other != split:
                raise DataError(
                    f"tasks {other_id} ({other}) and {task.id} ({split}) have the same question and abstract; "
                    "remove one of them, splits must not share tasks"
                )
        if repeated := [task_id for task_id, count in Counter(task.id for task in tasks).items() if count > 1]:
            raise DataError(f"task {repeated[0]} occurs twice in the {split} split; ids must be unique")


def sample_table(dataset: Dataset, rows: int) -> "Table":
    """A rich table of about `rows` tasks, evenly from every split, with their labels and the start of their results."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(dataset.describe()), show_lines=True)
    for column in ("split", "id", "level", "question", "abstract", "label"):
        table.add_column(column, overflow="fold", no_wrap=column == "split")
    splits = {"train": dataset.train, "validation": dataset.validation, "test": dataset.test}
    filled = {name: tasks for name, tasks in splits.items() if tasks}
    for name, tasks in filled.items():
        wanted = min(len(tasks), max(1, round(rows / len(filled))))
        for task in tasks[:: len(tasks) // wanted][:wanted]:
            abstract = abstract_text(task.context)
            cells = (name, task.id, str(task.level or "-"), task.goal, abstract, task.label)
            table.add_row(*map(escape, cells))
    return table


def label_line(dataset: Dataset) -> str:
    """The label mix of each split as one line."""
    parts: list[str] = []
    for name, tasks in (("train", dataset.train), ("validation", dataset.validation), ("test", dataset.test)):
        counts = Counter(task.label for task in tasks)
        if tasks:
            parts.append(f"{name} " + " ".join(f"{label} {100 * counts[label] / len(tasks):.1f}%" for label in LABELS))
    return "labels: " + "; ".join(parts)


def main(argv: list[str]) -> int | None:
    """Show where the tasks come from, how they are split, and a sample."""
    from chimera.cli import add_config_arguments, config_from, parse_arguments

    parser = argparse.ArgumentParser(prog="python -m chimera data", description=main.__doc__)
    parser.add_argument("--rows", type=int, default=6, help="how many tasks to show (default 6)")
    add_config_arguments(parser)
    arguments = parse_arguments(parser, argv)
    if arguments.rows < 1:
        parser.error(f"--rows must be at least 1, not {arguments.rows}")
    dataset = load(config_from(arguments, reads=("data",)).data)

    from rich.console import Console

    console = Console()
    console.print(sample_table(dataset, arguments.rows))
    console.print(label_line(dataset), markup=False, highlight=False)
    console.print(dataset.describe(), markup=False, highlight=False)
    return None


if __name__ == "__main__":
    from chimera.cli import run_command

    run_command(main)
