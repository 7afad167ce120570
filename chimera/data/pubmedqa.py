"""Reading PubMedQA: the authors' JSON file, the hub's Parquet file, the hub itself, and the official test ids.

Every record is checked when it is read. An error names the file, the record, and the field by its name in that file.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from chimera.config.sections.data import ColumnsConfig
from chimera.core.errors import DataError, boundary
from chimera.core.files import check_utf8
from chimera.core.types import LABELS, Label, ResearchTask, Section
from chimera.data.tables import check_file, parquet_columns, parquet_rows, readable

HUB_NAME, HUB_CONFIG, HUB_SPLIT = "qiaojin/PubMedQA", "pqa_labeled", "train"


@dataclass(frozen=True, slots=True)
class Layout:
    """The names of a record's fields in one kind of file; a dot leads into a nested record."""

    question: str
    contexts: str
    labels: str
    decision: str
    long_answer: str


AUTHORS = Layout("QUESTION", "CONTEXTS", "LABELS", "final_decision", "LONG_ANSWER")
HUB = Layout("question", "context.contexts", "context.labels", "final_decision", "long_answer")
HUB_ID = "pubid"


def is_pubmedqa(path: Path, columns: ColumnsConfig) -> bool:
    """True for the authors' JSON file, and for a Parquet file in the hub's layout unless `columns` names its columns.

    Raises:
        DataError: There is no such file, or it is no Parquet.
    """
    if path.suffix != ".parquet" or columns != ColumnsConfig():
        return path.suffix == ".json"
    check_file(path, "give a PubMedQA file, or data.path=hub or data.path=generated")
    return {HUB_ID, HUB.question, HUB.decision, HUB.long_answer} <= {*parquet_columns(path)}


def load_file(path: Path) -> list[ResearchTask]:
    """Read the authors' JSON file (an object from PMID to record) or the hub's Parquet file, by suffix.

    Raises:
        DataError: the file is missing, truncated, or a record is broken.
    """
    check_file(path, "give a PubMedQA file, or data.path=hub or data.path=generated")
    if path.suffix == ".parquet":
        return tasks_from_rows((row.values for row in parquet_rows(path, parquet_columns(path))), str(path))
    return tasks_from_authors(read_json(path), str(path))


def load_hub() -> list[ResearchTask]:
    """Download the labelled set from the hub, or take it from the local cache.

    Raises:
        DataError: the hub cannot be reached and nothing is cached, or a record is broken.
    """
    stage = f"loading {HUB_NAME} from the hub (without network set data.path to a file or to 'generated')"
    with boundary(DataError, stage):
        import datasets

        rows = datasets.load_dataset(HUB_NAME, HUB_CONFIG, split=HUB_SPLIT)
    return tasks_from_rows(cast(Iterable[Mapping[str, Any]], rows), f"hub {HUB_NAME} {HUB_CONFIG}")


def tasks_from_authors(records: Any, place: str) -> list[ResearchTask]:
    """Tasks from the authors' object of PMID to record; `place` names the file in errors.

    Raises:
        DataError: the object or one of its records is not as the authors' file has it.
    """
    if not isinstance(records, dict) or not records:
        raise DataError(
            f"{place}: expected a JSON object from PMID to record as in the authors' ori_pqal.json, "
            f"found {describe(records)}; give your own records as .jsonl, one object a line"
        )
    return [to_task(record, key, AUTHORS, place) for key, record in records.items()]


def tasks_from_rows(rows: Iterable[Mapping[str, Any]], place: str) -> list[ResearchTask]:
    """Tasks from rows in the hub's layout; `place` names the data set in errors.

    Raises:
        DataError: there are no rows, a row is broken, or an id occurs twice.
    """
    tasks: list[ResearchTask] = []
    seen: dict[str, int] = {}
    for number, row in enumerate(rows):
        task_id = field(row, HUB_ID, f"row {number}", place)
        if isinstance(task_id, bool) or not isinstance(task_id, int | str) or not str(task_id).strip():
            raise broken(place, f"row {number}", HUB_ID, f"must be a PMID, is {describe(task_id)}")
        if (first := seen.setdefault(str(task_id), number)) != number:
            raise broken(place, str(task_id), HUB_ID, f"occurs twice, in rows {first} and {number}; ids must be unique")
        tasks.append(to_task(row, str(task_id), HUB, place))
    if not tasks:
        raise DataError(f"{place}: no records; expected one row for each question")
    return tasks


def to_task(record: Any, task_id: str, layout: Layout, place: str) -> ResearchTask:
    """Check one record and convert it.

    Raises:
        DataError: names place, record and field.
    """
    contexts = texts(record, layout.contexts, task_id, place)
    labels = texts(record, layout.labels, task_id, place)
    if len(contexts) != len(labels):
        raise broken(
            place, task_id, layout.labels, f"has {len(labels)} entries for {len(contexts)} in {layout.contexts}"
        )
    decision = field(record, layout.decision, task_id, place)
    if decision not in LABELS:
        raise broken(
            place,
            task_id,
            layout.decision,
            f"is {decision!r}, which is no label; it must be one of {', '.join(LABELS)}",
        )
    task = ResearchTask(
        id=task_id,
        goal=text(field(record, layout.question, task_id, place), layout.question, task_id, place),
        context=tuple(Section(label, content) for label, content in zip(labels, contexts, strict=True)),
        label=cast(Label, decision),
        source="pubmedqa",
        long_answer=text(field(record, layout.long_answer, task_id, place), layout.long_answer, task_id, place),
    )
    check_utf8([task.id, task.content()], f"{place}: record {task_id}", DataError)
    return task


def field(record: Any, name: str, task_id: str, place: str) -> Any:
    """The value of a (dotted) field; raises DataError if the field, or the record around it, is missing."""
    value = record
    for part in name.split("."):
        if not isinstance(value, Mapping):
            raise DataError(
                f"{place}: record {task_id}: expected an object with field {name!r}, found {describe(value)}"
            )
        if part not in value:
            raise broken(
                place, task_id, name, f"is missing; the record has {', '.join(map(str, value)) or 'no fields'}"
            )
        value = value[part]
    return value


def texts(record: Any, name: str, task_id: str, place: str) -> list[str]:
    """A field that must be a list of at least one non-empty text."""
    values = field(record, name, task_id, place)
    if not isinstance(values, list):
        raise broken(place, task_id, name, f"must be a list of texts, is {describe(values)}")
    if not values:
        raise broken(place, task_id, name, "is empty; every task needs at least one section")
    return [text(value, f"{name}[{number}]", task_id, place) for number, value in enumerate(values)]


def text(value: Any, name: str, task_id: str, place: str) -> str:
    """A value that must be a non-empty text."""
    if not isinstance(value, str):
        raise broken(place, task_id, name, f"must be a text, is {describe(value)}")
    if not value.strip():
        raise broken(place, task_id, name, "is empty")
    return value.strip()


def load_test_ids(path: Path, labels: Sequence[Label] = LABELS) -> dict[str, Label | None]:
    """Read the official test ids in the file's order, with their labels where the file gives them.

    The authors' `test_ground_truth.json` is an object from PMID to label. A JSON list of PMIDs, or a text file with
    PMIDs between white space or commas, works too.

    Raises:
        DataError: the file is missing or broken, has no ids, repeats one, or gives an unknown label.
    """
    check_file(path, "data.test_ids takes the authors' test_ground_truth.json or a list of PMIDs")
    if path.suffix == ".json":
        content = read_json(path)
    else:
        with readable(path):
            content = path.read_text(encoding="utf-8-sig").replace(",", " ").split()
    if not isinstance(content, dict | list) or not content:
        raise DataError(
            f"{path}: expected test ids, as an object from PMID to label or a list, found {describe(content)}"
        )
    if isinstance(content, dict):
        for key, label in content.items():
            if label not in labels:
                raise DataError(f"{path}: record {key}: label is {label!r}; it must be one of {', '.join(labels)}")
        return content
    ids: dict[str, Label | None] = {}
    for number, entry in enumerate(content):
        if isinstance(entry, bool) or not isinstance(entry, int | str) or not str(entry).strip():
            raise DataError(f"{path}: entry {number} must be a PMID, is {describe(entry)}")
        if str(entry) in ids:
            raise DataError(f"{path}: test id {entry} occurs twice; ids must be unique")
        ids[str(entry)] = None
    return ids


def read_json(path: Path) -> Any:
    """Parse a JSON file in which no key may occur twice.

    Raises:
        DataError: the file is truncated or otherwise no JSON, or an id or field occurs twice.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        record: dict[str, Any] = {}
        for key, value in pairs:
            if key in record and (isinstance(value, dict) or key.isdigit()):
                raise DataError(f"{path}: record {key}: the id occurs twice; ids must be unique")
            if key in record:
                start = f"{next(iter(record.items()))!r:.80}"
                raise DataError(f"{path}: field {key!r} occurs twice in the record that starts with {start}")
            record[key] = value
        return record

    with readable(path):
        content = path.read_text(encoding="utf-8-sig")
    try:
        return json.loads(content, object_pairs_hook=unique)
    except RecursionError as error:
        raise DataError(f"{path}: its values are nested too deeply; is it the right file?") from error
    except json.JSONDecodeError as error:
        cut = error.pos >= len(content.rstrip()) or error.msg.startswith("Unterminated string")
        raise DataError(
            f"{path}: not valid JSON at line {error.lineno}, column {error.colno}: {error.msg}"
            f"{'; the file is truncated: download it again' if cut else '; is it the right file?'}"
        ) from error
    except ValueError as error:
        raise DataError(f"{path}: a whole number has too many digits to be read; is it the right file?") from error


def broken(place: str, task_id: str, name: str, problem: str) -> DataError:
    """The error for one field of one record."""
    return DataError(f"{place}: record {task_id}: field {name!r} {problem}")


def describe(value: Any) -> str:
    """A short description of a wrong value for an error message."""
    if isinstance(value, dict):
        return f"an object with {len(value)} fields"
    if isinstance(value, list):
        return f"a list of {len(value)} entries"
    return f"{type(value).__name__} {repr(value)[:60]}"
