"""The tasks of a run: loading, splitting, and `python -m chimera.data`, which shows them.

Splits (`chimera.data.splits`) are stratified by label (and level, where there are few) and seeded. With the official
test ids, their tasks are the test split, and the other half is split into train and validation. No question and no
abstract is ever in two splits.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chimera.core.errors import ConfigError, DataError
from chimera.core.files import texts
from chimera.core.quotes import Fingerprint, fingerprint
from chimera.core.types import SOURCE_NAMES, Label, ResearchTask, Source, abstract_text, labels_of
from chimera.core.unspaced import is_other_script
from chimera.data.splits import check_disjoint, hold_out, official_split, three_way_split

if TYPE_CHECKING:
    from rich.table import Table

    from chimera.config.sections.data import DataConfig
    from chimera.config.sections.society import SocietyConfig


@dataclass(frozen=True, slots=True)
class Document:
    """The abstract of a task in the literature index, without its conclusion.

    `title` is the question (PubMedQA's questions are the articles' titles): it must not be indexed or shown to agents.
    """

    id: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Dataset:
    """Tasks in disjoint splits: training learns from train, the gate decides by validation, reports use test.

    Attributes:
        origin: Which tasks these are, as a phrase.
        official: True if `test` holds PubMedQA's official test items.
    """

    train: tuple[ResearchTask, ...]
    validation: tuple[ResearchTask, ...]
    test: tuple[ResearchTask, ...]
    source: Source
    origin: str
    official: bool = False

    @property
    def splits(self) -> dict[str, tuple[ResearchTask, ...]]:
        """The splits that have tasks, by name."""
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: tasks for name, tasks in splits.items() if tasks}

    @property
    def tasks(self) -> tuple[ResearchTask, ...]:
        """All tasks: train, then validation, then test."""
        return self.train + self.validation + self.test

    @property
    def labels(self) -> tuple[Label, ...]:
        return labels_of(self.tasks)

    def documents(self) -> tuple[Document, ...]:
        """The abstracts of every task that has any, for the literature index."""
        return tuple(
            Document(id_, task.goal, abstract_text(sections))
            for task in self.tasks
            for id_, sections in task.studies or ((task.id, task.context),)
            if sections
        )

    def conclusions(self) -> dict[str, Fingerprint]:
        """Fingerprints of the tasks' conclusions, by task id. Live search must not show texts that match."""
        return {task.id: fingerprint(task.long_answer, task.id) for task in self.tasks}

    def search_note(self) -> str | None:
        """What local searches do not find where most abstracts are not in Latin letters; None if most are."""
        documents = self.documents()
        others = sum(is_other_script(document.text) for document in documents)
        if 2 * others <= len(documents):
            return None
        return (
            f"{others} of {len(documents)} abstracts are not in Latin letters: local searches find their words only in "
            "the form and characters in which they are written (traditional characters do not find simplified ones), "
            "clinical_trials only Chinese and Japanese trials, and protein_lookup and gene_ontology know English names"
        )

    def describe(self) -> str:
        """One line such as "generated tasks, levels 1-4, seed 0: 600 train / 200 validation / 200 test"."""
        test = f"{len(self.test)} {'official ' if self.official else ''}test"
        sizes = f"{len(self.train)} train / {len(self.validation)} validation / {test}"
        return f"{SOURCE_NAMES[self.source]}, {self.origin}: {sizes}"


def load(config: "DataConfig") -> Dataset:
    """Load and split the tasks that a configuration asks for.

    Raises:
        DataError: a file is missing or broken, or a split would be empty or not disjoint.
    """
    tasks, source, origin = read_tasks(config)
    if config.test_ids is None:
        train, validation, test = three_way_split(tasks, config.validation_share, config.test_share, config.seed)
    else:
        from chimera.data.pubmedqa import load_test_ids

        test_ids = load_test_ids(config.test_ids, labels_of(tasks))
        rest, test = official_split(tasks, test_ids, config.test_ids)
        train, validation = hold_out(rest, config.validation_share, config.seed)
        if not train or not validation:
            raise DataError(
                f"{len(rest)} tasks that are no test items split into {len(train)} train / {len(validation)} "
                f"validation; both need tasks: change data.validation_share={config.validation_share}"
            )
    official = config.test_ids is not None and source == "pubmedqa"
    dataset = Dataset(train, validation, test, source, origin, official)
    check_disjoint(dataset.splits)
    return dataset


def check_guidance(society: "SocietyConfig", dataset: Dataset) -> None:
    """Raise ConfigError if what roles are told holds the question of a validation or test task, and so its answer."""
    texts_of = {name: list(texts(entry.model_dump())) for name, entry in society.guidance.items()}
    splits = {"validation": dataset.validation, "test": dataset.test} if texts_of else {}
    for split, task in ((split, task) for split, tasks in splits.items() for task in tasks):
        for name, guidance_texts in texts_of.items():
            if any(task.goal in text for text in guidance_texts):
                raise ConfigError(
                    f"society.guidance.{name} holds the question of the {split} task {task.id}, so its figures would "
                    "say nothing: take another task's"
                )


def read_tasks(config: "DataConfig") -> tuple[list[ResearchTask], Source, str]:
    """All tasks of the configured source, the source, and a phrase that says which tasks they are."""
    if config.path == "generated":
        tasks, origin = generated(config), f"{levels_phrase(config.levels)}, seed {config.seed}"
        return tasks, "generated", origin if config.family == "abstract" else f"{config.family}, {origin}"

    from chimera.data import pubmedqa

    if config.path == "hub":
        return pubmedqa.load_hub(), "pubmedqa", f"hub, seed {config.seed}"
    path = Path(config.path).expanduser()
    if pubmedqa.is_pubmedqa(path, config.columns):
        return pubmedqa.load_file(path), "pubmedqa", f"{path.name}, seed {config.seed}"
    from chimera.data.own import load_own

    return load_own(config), "own", f"{path.name}, seed {config.seed}"


def generated(config: "DataConfig") -> list[ResearchTask]:
    if config.family == "review":
        from chimera.data.generated.review import generate
    else:
        from chimera.data.generated.tasks import generate
    return [task.task for task in generate(config.size, seed=config.seed, levels=config.levels)]


def levels_phrase(levels: Sequence[int]) -> str:
    """Levels as a phrase: "level 2", "levels 1-4", "levels 1, 3"."""
    ordered = sorted(set(levels))
    if len(ordered) == 1:
        return f"level {ordered[0]}"
    if ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"levels {ordered[0]}-{ordered[-1]}"
    return f"levels {', '.join(map(str, ordered))}"


def sample_table(dataset: Dataset, rows: int) -> "Table":
    """A rich table of about `rows` tasks, evenly from every split, with their labels and the start of their results."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(dataset.describe()), show_lines=True)
    for column in ("split", "id", "level", "question", "abstract", "label"):
        table.add_column(column, overflow="fold", no_wrap=column == "split")
    for name, tasks in dataset.splits.items():
        number = min(len(tasks), max(1, round(rows / len(dataset.splits))))
        for task in tasks[:: len(tasks) // number][:number]:
            abstract = abstract_text(task.context) or "-"
            goal = "\n".join((task.goal, *(f"{option.name} {option.text}".rstrip() for option in task.options)))
            cells = (name, task.id, str(task.level or "-"), goal, abstract, task.label)
            table.add_row(*map(escape, cells))
    return table


def label_line(dataset: Dataset) -> str:
    """The label mix of each split as one line."""
    parts: list[str] = []
    for name, tasks in dataset.splits.items():
        counts = Counter(task.label for task in tasks)
        shares = (f"{label} {100 * counts[label] / len(tasks):.1f}%" for label in dataset.labels)
        parts.append(" ".join((name, *shares)))
    return "labels: " + "; ".join(parts)


def main(argv: list[str]) -> int | None:
    """Show the tasks: a sample of each split, the mix of labels, and the sizes."""
    from chimera.config.arguments import add_config_arguments, config_from
    from chimera.core.cli import count, parse_arguments

    parser = argparse.ArgumentParser(prog="python -m chimera data", description=main.__doc__)
    parser.add_argument("--rows", type=count, default=6, help="how many tasks to show (default 6)")
    add_config_arguments(parser)
    arguments = parse_arguments(parser, argv)
    dataset = load(config_from(arguments, reads=("data",)).data)

    from rich.console import Console

    console = Console()
    console.print(sample_table(dataset, arguments.rows))
    console.print(label_line(dataset), markup=False, highlight=False)
    for line in filter(None, (dataset.describe(), dataset.search_note())):
        console.print(line, markup=False, highlight=False)
    return None
