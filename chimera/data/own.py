"""Tasks from a user's own table: which columns hold what, which answers there are, and what is wrong with a row.

Each error names the file, the row and what to do.
"""

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from string import ascii_uppercase
from typing import Any

from chimera.config.sections.data import FAILED, Columns, ColumnsConfig, DataConfig
from chimera.core.errors import DataError, nearest
from chimera.core.files import check_utf8, parse_json
from chimera.core.types import LABELS, Label, Option, ResearchTask, Section
from chimera.data.tables import Table, TableRow, open_table

USUAL: Mapping[str, tuple[str, ...]] = {
    "goal": ("goal", "question"),
    "label": ("label",),
    "context": ("context",),
    "id": ("id",),
    "options": ("options",),
    "long_answer": ("long_answer",),
    "level": (),
}
"""The columns that are taken for a part of a task unless `data.columns` names others; the first that exists counts."""
REQUIRED = ("goal", "label")
_SHOWN = 12
LARGEST = 10**18 - 1
"""The largest level: every file and index can hold it."""
ID_DIGITS = 12
"""Hexadecimal digits of a row's hash in its id."""


@dataclass(frozen=True, slots=True)
class Mapped:
    """The columns of a table by the part of a task that they hold; None for a part that the table does not have."""

    goal: str
    label: str
    context: Columns
    id: str | None
    options: Columns
    long_answer: str | None
    level: str | None

    @classmethod
    def of(cls, config: ColumnsConfig, table: Table) -> "Mapped":
        """The columns that `data.columns` names, or else the usual ones.

        Raises:
            DataError: The table lacks a column.
        """
        if not table.columns:
            raise DataError(f"{table.place}: no records; expected one row for each question")
        columns = {field.name: _column(field.name, getattr(config, field.name), table) for field in fields(cls)}
        return cls(**columns)

    def needed(self, table: Table) -> list[str]:
        """The columns of the table that have to be read: a name of ours may lead into a column of records."""
        names = [getattr(self, field.name) for field in fields(self)]
        single = [name for part in names if part is not None for name in ((part,) if isinstance(part, str) else part)]
        return list(dict.fromkeys(name if name in table.columns else name.partition(".")[0] for name in single))


def _column(part: str, columns: Columns, table: Table) -> Any:
    """The column, or columns, of one part; raises DataError if it does not exist."""
    if columns is None:
        names = [name for word in USUAL[part] for name in (word, *table.columns) if name.lower() == word]
        usual = [name for name in names if name in table.columns]
        if usual or part not in REQUIRED:
            like = [name for name in table.columns if part == "context" and _part_like(name) == part]
            if like and not usual:
                print(f"note: {table.place}: no abstract read: is it data.columns.context={like[0]}?", file=sys.stderr)
            return usual[0] if usual else None
        names = " or ".join(map(repr, USUAL[part]))
        raise _no_column(part, f"there is no column {names} for the {WORDS[part]}", USUAL[part][-1], table)
    for name in (columns,) if isinstance(columns, str) else columns:
        if name not in table.columns and name.partition(".")[0] not in table.columns:
            raise _no_column(part, f"there is no column {name!r}", name, table)
    return columns


WORDS = {"goal": "question", "label": "right answer"}
ELSEWHERE: Mapping[str, tuple[str, ...]] = {
    "goal": ("query", "prompt", "problem", "input", "claim"),
    "label": ("answer", "decision", "verdict", "target", "gold", "class", "output"),
    "context": ("abstract", "passage", "document", "text"),
    "options": ("choices",),
    "long_answer": ("explanation",),
}
"""What other data sets call the columns of a part of a task. Only hints use these names."""


def _part_like(column: str) -> str | None:
    """The part of a task that a column holds by its name; None if no part's names are like it."""
    parts = {name: part for part in USUAL for name in (*USUAL[part], *ELSEWHERE.get(part, ()))}
    name = nearest(column, parts)
    return None if name is None else parts[name]


def _no_column(part: str, fault: str, column: str, table: Table) -> DataError:
    listed = ", ".join(table.columns[:_SHOWN]) + (", ..." if len(table.columns) > _SHOWN else "")
    others = [name for name in table.columns if _part_like(name) in (part, None)]
    near = nearest(column, others) or next((name for name in others if _part_like(name) == part), None)
    holds = f"the column that holds the {WORDS.get(part, part.replace('_', ' '))}"
    hint = f"did you mean data.columns.{part}={near}?" if near else f"set data.columns.{part} to {holds}"
    return DataError(f"{table.place}: {fault}; it has {listed}: {hint}")


def load_own(config: DataConfig) -> list[ResearchTask]:
    """The tasks of the user's own data.

    Raises:
        DataError: The data cannot be read, a column is missing, a row is faulty, an id occurs twice, or there is no
            row.
    """
    table = open_table(config.path, config.subset, config.split)
    reader = _Reader(table.place, Mapped.of(config.columns, table), config.labels)
    tasks: list[ResearchTask] = []
    rows: dict[str, str] = {}
    same: Counter[str] = Counter()
    for row in table.rows(reader.columns.needed(table)):
        task = reader.task(row)
        if not task.id:
            task = replace(task, id=_content_id(task, same))
        if (first := rows.setdefault(task.id, row.where)) != row.where:
            raise DataError(
                f"{table.place}: {row.where}: id {task.id!r} occurs in {first} too; ids must be unique: correct them, "
                "or name another column with data.columns.id"
            )
        tasks.append(task)
    if not tasks:
        raise DataError(f"{table.place}: no records; expected one row for each question")
    return tasks


def _content_id(task: ResearchTask, same: Counter[str]) -> str:
    """The id of a row that has none: a hash of its content, so that it does not depend on the row's place.

    The label is part of the content: with another label, it is another task. Rows with the same content are numbered;
    `same` counts them.
    """
    content = json.dumps(task.content(), ensure_ascii=False)
    digest = f"row-{hashlib.sha256(content.encode()).hexdigest()[:ID_DIGITS]}"
    same[digest] += 1
    return digest if same[digest] == 1 else f"{digest}-{same[digest]}"


@dataclass(frozen=True, slots=True)
class _Reader:
    """Makes tasks of the rows of one table."""

    place: str
    columns: Mapped
    labels: tuple[Label, ...] | None

    def task(self, row: TableRow) -> ResearchTask:
        """The task of one row; raises DataError if a part of it is missing or wrong."""
        offered = self._offered(row)
        options = self._options(row, offered)
        task = ResearchTask(
            id=self._id(row),
            goal=self._text(row, self.columns.goal, "question"),
            context=tuple(self._sections(row)),
            label=self._label(row, tuple(option.name for option in options) or LABELS, isinstance(offered, list)),
            source="own",
            long_answer=self._optional(row, self.columns.long_answer),
            level=self._level(row),
            options=options,
        )
        check_utf8([task.id, task.content()], f"{self.place}: {row.where}", DataError)
        return task

    def _id(self, row: TableRow) -> str:
        """The row's id; empty if the table has none."""
        if self.columns.id is None:
            return ""
        value = self._value(row, self.columns.id)
        if isinstance(value, bool) or not isinstance(value, int | str) or not str(value).strip():
            raise self._fault(row, f"the id in column {self.columns.id!r} is {value!r}; give each row an id")
        return str(value).strip()

    def _label(self, row: TableRow, names: Sequence[Label], is_list: bool) -> Label:
        """The right answer, by its name; of a list of options also by its place there, counted from 0."""
        column = self.columns.label
        value = self._value(row, column)
        if isinstance(value, float) and value.is_integer():  # A whole number beside missing ones, in Parquet.
            value = int(value)
        text = str(value).strip() if isinstance(value, int | str) and not isinstance(value, bool) else ""
        if value is None or (isinstance(value, str) and not text):
            raise self._fault(row, f"the label in column {column!r} is empty; fill it in, or remove the row")
        same = [name for name in names if name == text] or [name for name in names if name.lower() == text.lower()]
        by_place = is_list and not any(map(str.isdecimal, names))
        if by_place and not same and text.isdecimal() and len(text) <= len(str(len(self._places))):
            same = [name for name in self._places[int(text) :][:1] if name in names]
        if len(same) != 1:
            shown = f"{value!r:.60}"
            place = ", or the option's place, counted from 0 (if yours count from 1: data.labels=[1, 2, ...])"
            raise self._fault(
                row,
                f"the label in column {column!r} is {shown}, but must be one of {', '.join(names)}{place * by_place}; "
                "correct it, name another column with data.columns.label, or list the labels of your data in "
                "data.labels",
            )
        return same[0]

    @property
    def _places(self) -> Sequence[Label]:
        """The names of options that are given as a list."""
        return self.labels or tuple(ascii_uppercase)

    def _options(self, row: TableRow, offered: Any) -> tuple[Option, ...]:
        """The answers to choose from; empty for yes, no and maybe."""
        if self.columns.options is None:
            return () if self.labels in (None, LABELS) else tuple(map(Option, self.labels or ()))
        pairs = self._pairs(row, offered)
        names = [name for name, _ in pairs]
        if len(names) < 2 or len(set(names)) < len(names) or FAILED in names:
            raise self._fault(
                row,
                f"the options are {', '.join(names) or 'empty'}; there must be at least two, with different names, and "
                f"none named {FAILED!r}",
            )
        if self.labels and (other := [name for name in names if name not in self.labels]):
            raise self._fault(
                row, f"option {other[0]!r} is not in data.labels ({', '.join(self.labels)}); add it there"
            )
        return tuple(Option(name, text) for name, text in pairs)

    def _offered(self, row: TableRow) -> Any:
        """The options as the row has them: pairs of name and text, or a list of texts."""
        column = self.columns.options
        if not isinstance(column, str):
            return None if column is None else [self._value(row, part) for part in column]
        value = self._value(row, column)
        if isinstance(value, str):
            try:
                value = parse_json(value)
            except ValueError:
                value = None
        if isinstance(value, Mapping) and set(value) == {"label", "text"}:
            return self._paired(row, "options", value["label"], value["text"])
        for name, text in (("key", "value"), ("label", "text")):
            if isinstance(value, list) and value and all(isinstance(part, Mapping) and name in part for part in value):
                return self._paired(row, "options", [part[name] for part in value], [part.get(text) for part in value])
        return tuple(value.items()) if isinstance(value, Mapping) else value

    def _paired(self, row: TableRow, what: str, names: Any, texts: Any) -> tuple[tuple[Any, Any], ...]:
        """Names and texts that a row has as two lists."""
        if not (isinstance(names, list) and isinstance(texts, list) and len(names) == len(texts)):
            raise self._fault(row, f"the {what} have names {names!r:.40} for texts {texts!r:.40}; give a name for each")
        return tuple(zip(names, texts, strict=True))

    def _pairs(self, row: TableRow, offered: Any) -> list[tuple[str, str]]:
        """Name and text of each option; an option that is null, or an empty text in a list, is left out."""
        if isinstance(offered, tuple):
            if unnamed := [name for name, _ in offered if not isinstance(name, str | int | float)]:
                raise self._fault(row, f"an option's name is {unnamed[0]!r:.40}; give each a text or a number")
            return [(str(name).strip(), str(text).strip()) for name, text in offered if text is not None]
        if not isinstance(offered, list):
            raise self._fault(
                row,
                f"the options in column {self.columns.options!r} must be texts by name or a list of texts, as JSON if "
                "the cell is a text; correct the row",
            )
        if len(offered) > len(self._places):
            count = f"{len(self._places)} labels" if self.labels else "only the letters of the alphabet as names"
            raise self._fault(row, f"{len(offered)} options but {count}; name them with data.labels=[A, B, ...]")
        pairs = zip(self._places, offered, strict=False)
        return [(name, str(text).strip()) for name, text in pairs if text is not None and str(text).strip()]

    def _sections(self, row: TableRow) -> Iterator[Section]:
        column = self.columns.context
        if column is None:
            return
        if not isinstance(column, str):
            parts: Any = {name: self._value(row, name) for name in column}
        else:
            parts = self._value(row, column)
        if isinstance(parts, Mapping) and {"contexts", "labels"} <= set(parts):
            pairs = self._paired(row, "sections of the context", parts["labels"], parts["contexts"])
        elif isinstance(parts, Mapping):
            pairs = [(str(heading), text) for heading, text in parts.items()]
        else:
            pairs = [("", text) for text in (parts if isinstance(parts, list) else [parts])]
        for heading, text in pairs:
            if text is not None and not isinstance(text, str):
                raise self._fault(
                    row, f"the context in column {column!r} holds {text!r:.40} instead of a text; correct it"
                )
            if text and text.strip():
                yield Section(heading, text.strip())

    def _level(self, row: TableRow) -> int | None:
        column = self.columns.level
        value = None if column is None else self._value(row, column)
        if value is None or value == "":
            return None
        try:
            level = int(value)
        except (TypeError, ValueError, OverflowError):
            level = None
        if level is None or abs(level) > LARGEST or (isinstance(value, float) and level != value):
            raise self._fault(
                row,
                f"column {column!r} holds {value!r:.40}, but data.columns.level must name whole numbers of at most 18 "
                "digits; correct the row",
            )
        return level

    def _optional(self, row: TableRow, column: str | None) -> str:
        value = "" if column is None else self._value(row, column)
        if isinstance(value, list):
            value = " ".join(map(str, value))
        if value is not None and not isinstance(value, str):
            raise self._fault(row, f"column {column!r} holds {value!r:.40} instead of a text; correct it")
        return (value or "").strip()

    def _text(self, row: TableRow, column: str, what: str) -> str:
        value = self._value(row, column)
        if not isinstance(value, str) or not value.strip():
            shown = "empty" if value is None or value == "" else f"{value!r:.40}"
            raise self._fault(row, f"the {what} in column {column!r} is {shown}; give a text, or remove the row")
        return value.strip()

    def _value(self, row: TableRow, column: str) -> Any:
        """The value of a (dotted) column; None if the row does not have it."""
        if column in row.values:
            return row.values[column]
        value: Any = row.values
        for name in column.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    def _fault(self, row: TableRow, problem: str) -> DataError:
        return DataError(f"{self.place}: {row.where}: {problem}")
