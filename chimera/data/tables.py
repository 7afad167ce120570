"""Reading tables row by row: CSV, TSV, JSONL and Parquet files, folders of them, and data sets of the hub.

Rows are read one after the other, and only the columns that are needed, so that a large file is not held in memory
beside the tasks that are made from it.
"""

import csv
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chimera.core.errors import DataError
from chimera.core.files import parse_json, place_of_bad_byte

CSV, TSV, JSONL, PARQUET = ".csv", ".tsv", (".jsonl", ".ndjson"), ".parquet"
SUFFIXES = (CSV, TSV, *JSONL, PARQUET)
DELIMITERS = {CSV: ",", TSV: "\t"}
DELIMITER_NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
_EXCEL_MARK = ["sep=", ""]
"""Excel's first line that names the delimiter, as that delimiter divides it."""
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
BATCH = 1000
"""Rows of a Parquet file in memory at a time."""
_SAVED = ("dataset_dict.json", "state.json")
"""A folder with one of these was written by `datasets`' own `save_to_disk`."""
_REASON = 300


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row: `where` is its place in words, such as "line 7"; `values` are by column."""

    where: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows that can be read.

    Attributes:
        place: The file or data set, for errors.
        columns: Its columns. Of a JSONL file, the keys of all its records.
        rows: Reads the rows. Its argument names the columns that are needed; other columns may be missing.
    """

    place: str
    columns: tuple[str, ...]
    rows: Callable[[Sequence[str]], Iterator[TableRow]]


def check_file(path: Path, remedy: str) -> None:
    """Raise a DataError unless `path` is a file; `remedy` says what to do if it is missing."""
    try:
        exists = path.exists()
    except OSError as error:  # for example, the name is too long
        raise DataError(f"{path}: cannot be read: {error.strerror}; {remedy}") from error
    if not exists:
        raise DataError(f"{path}: no such file; {remedy}")
    if not path.is_file():
        what = "a folder" if path.is_dir() else "a device or a pipe"
        raise DataError(f"{path}: is {what}, not a file; give the path of a file")


def open_table(path: str, subset: str | None, split: str) -> Table:
    """The table at `path`: a file, a folder, or a data set's name on the hub.

    Args:
        subset: Configuration of a hub's or a folder's data set.
        split: Which of its splits.

    Raises:
        DataError: It cannot be read, or is of another type.
    """
    file = Path(path).expanduser()
    on_hub = HUB_NAME.fullmatch(path) and not path.endswith((*SUFFIXES, ".json")) and not file.exists()
    if on_hub or file.is_dir():
        return _of_datasets(str(file), subset, split)
    check_file(file, "give your file, a folder, owner/name of the hub, or data.path=generated")
    suffix = file.suffix.lower()
    if suffix in DELIMITERS:
        delimiter = _delimiter(file)
        return Table(path, _header(file, delimiter), lambda _: _csv_rows(file, delimiter))
    if suffix in JSONL:
        keys = dict.fromkeys(key for row in _json_rows(file) for key in row.values)
        return Table(path, tuple(keys), lambda _: _json_rows(file))
    if suffix == PARQUET:
        return Table(path, parquet_columns(file), lambda columns: parquet_rows(file, columns))
    raise DataError(
        f"{path}: unknown file type {file.suffix!r}; data.path takes {', '.join(SUFFIXES)}, PubMedQA's .json, a "
        "folder, owner/name of the hub, 'hub' or 'generated'"
    )


def _delimiter(file: Path) -> str:
    """What divides the first line into the most columns; the usual one of the type of file if others do as well.

    Spreadsheets of countries with decimal commas write semicolons into CSV files.
    """
    csv.field_size_limit(sys.maxsize)

    def columns(delimiter: str) -> int:
        with file.open(newline="", encoding="utf-8-sig") as opened:
            return len(next(filter(any, csv.reader(opened, delimiter=delimiter)), []))

    with readable(file):
        return max((DELIMITERS[file.suffix.lower()], *DELIMITER_NAMES), key=columns)


def _csv_lines(file: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Each record that is not blank, with the number of its last line."""
    with readable(file), file.open(newline="", encoding="utf-8-sig") as opened:
        reader = csv.reader(opened, strict=True, delimiter=delimiter)
        try:
            for fields in reader:
                if any(fields) and fields != _EXCEL_MARK:
                    yield reader.line_num, fields
        except csv.Error as error:
            raise DataError(
                f"{file}: line {reader.line_num}: {error}; is a quotation mark missing, or is it another type of file?"
            ) from error


def _header(file: Path, delimiter: str) -> tuple[str, ...]:
    """The names of the columns; those without a name, which spreadsheets add, are left out."""
    number, fields = next(_csv_lines(file, delimiter), (0, []))
    names = [name.strip() for name in fields if name.strip()]
    if twice := [name for name in names if names.count(name) > 1]:
        raise DataError(f"{file}: line {number}: column {twice[0]!r} occurs twice; rename one of them")
    return tuple(names)


def _csv_rows(file: Path, delimiter: str) -> Iterator[TableRow]:
    lines = _csv_lines(file, delimiter)
    names = [name.strip() for name in next(lines, (0, []))[1]]
    for number, fields in lines:
        if len(fields) != len(names):
            raise DataError(
                f"{file}: line {number}: {len(fields)} fields, but the first line names {len(names)} columns; put "
                f"texts with {DELIMITER_NAMES[delimiter]} or line breaks into quotation marks"
            )
        yield TableRow(f"line {number}", dict(zip(names, fields, strict=True)))


def _json_rows(file: Path) -> Iterator[TableRow]:
    with readable(file), file.open("rb") as opened:
        for number, line in enumerate(opened, 1):
            if not line.strip():
                continue
            where = f"line {number}"
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            try:
                record = parse_json(text)
            except ValueError as error:
                what = getattr(error, "msg", error)  # Without the line that JSON counts, which is always the first.
                raise DataError(
                    f"{file}: {where}: cannot be read as JSON ({what}); each line must hold one JSON object"
                ) from error
            if not isinstance(record, dict):
                raise DataError(f"{file}: {where}: a {type(record).__name__}; each line must hold one JSON object")
            yield TableRow(where, record)


@contextmanager
def readable(file: Path) -> Iterator[None]:
    """Turn the errors of reading a text file into sentences."""
    try:
        yield
    except UnicodeDecodeError as error:
        where = place_of_bad_byte(file)
        raise DataError(f"{file}: not UTF-8 text ({where}: {error.reason}); save it as UTF-8") from error
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from error


def parquet_columns(file: Path) -> tuple[str, ...]:
    with _parquet(file):
        from pyarrow import parquet

        return tuple(parquet.read_schema(file).names)


def parquet_rows(file: Path, columns: Sequence[str]) -> Iterator[TableRow]:
    number = 0
    with _parquet(file):
        from pyarrow import parquet

        with parquet.ParquetFile(file) as opened:
            for batch in opened.iter_batches(BATCH, columns=list(columns)):
                for values in batch.to_pylist(maps_as_pydicts="strict"):
                    number += 1
                    yield TableRow(f"row {number}", values)


@contextmanager
def _parquet(file: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError) as error:  # pyarrow's errors are among these; a map has a key twice
        raise DataError(
            f"{file}: not a readable Parquet file ({_first_line(error)}); make or download it again"
        ) from error


def _of_datasets(path: str, subset: str | None, split: str) -> Table:
    """A folder, or a data set of the hub, through the library `datasets`. Neither runs code of the data set."""
    try:
        import datasets

        datasets.disable_progress_bars()
        if Path(path).is_dir() and any((Path(path) / name).exists() for name in _SAVED):
            loaded: Any = datasets.load_from_disk(path)
            loaded = loaded[split] if isinstance(loaded, dict) else loaded
        else:
            loaded = datasets.load_dataset(path, subset, split=split)
    except Exception as error:  # the library raises errors of many kinds, also of its own dependencies
        where = "this folder" if Path(path).is_dir() else "the hub (there is no such file or folder here)"
        raise DataError(
            f"data.path={path}: cannot be loaded from {where}, split {split!r}: {type(error).__name__}: "
            f"{_first_line(error)}; check name, data.subset and data.split, or give a file"
        ) from error
    names = {name: feature for name, feature in loaded.features.items() if hasattr(feature, "int2str")}

    def rows(columns: Sequence[str]) -> Iterator[TableRow]:
        for number, values in enumerate(loaded.select_columns(list(columns)), 1):
            codes = {key: values[key] for key in names if values.get(key) is not None}
            named = {key: names[key].int2str(code) if code >= 0 else None for key, code in codes.items()}  # -1: hidden
            yield TableRow(f"row {number}", {**values, **named})

    return Table(path, tuple(loaded.column_names), rows)


def _first_line(error: Exception) -> str:
    """The first line of an error's message, without its last full stop."""
    return (str(error).strip().splitlines() or ["no reason given"])[0][:_REASON].rstrip(".")
