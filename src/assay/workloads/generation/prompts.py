"""Prompts of a file, as text: one a line, or one column of JSON, CSV, Parquet or a data set saved in a folder."""

from __future__ import annotations

import csv
import json
import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.core.errors import BadInput, MachineCannot, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

RANDOM = "random"
"""Not a file: seeded token ids."""

LONGEST_SHOWN = 60


def read(name: str, column: str = "text", most: int = 0) -> tuple[str, ...]:
    """Return the prompts of a file or folder, at most so many where that is not 0; lines without text are left out.

    Raises:
        BadInput: It is not there, has no prompts, no such column, or cannot be read as what its name says.
        MachineCannot: What reads such files is not installed.
    """
    path = Path(name).expanduser()
    if not path.exists():
        raise BadInput(f"There is no prompt file {name}; prompts are 'random', or a file or folder that is here.")
    if not path.is_file() and not path.is_dir():
        raise BadInput(f"The prompt file {name} is no plain file.")
    reader = _folder if path.is_dir() else READERS.get(path.suffix.lower())
    if reader is None:
        raise BadInput(f"{name} is no prompt file that can be read; there are {', '.join(READERS)}, and data sets.")
    try:
        texts = (text for text in reader(path, column) if text.strip())
        prompts = tuple(islice(texts, most or None))
    except UnicodeDecodeError as error:
        raise BadInput(f"The prompt file {name} is not text in UTF-8: byte {error.start} cannot be read.") from error
    except OSError as error:
        raise BadInput(f"The prompt file {name} cannot be read: {error.strerror or error}.") from error
    if not prompts:
        raise BadInput(f"The prompt file {name} has no prompts.")
    return prompts


def _lines(path: Path, _: str) -> Iterator[str]:
    with path.open(encoding="utf-8-sig") as lines:
        for line in lines:
            yield line.rstrip("\r\n")


def _json_lines(path: Path, column: str) -> Iterator[str]:
    for number, line in enumerate(_lines(path, column), 1):
        if line.strip():
            yield _text(_parsed(line, f"line {number} of {path}"), column, f"line {number} of {path}")


def _json(path: Path, column: str) -> Iterator[str]:
    rows = _parsed(path.read_text(encoding="utf-8-sig"), str(path))
    if isinstance(rows, dict) and isinstance(rows.get(column), list):
        rows = rows[column]
    if not isinstance(rows, list):
        raise BadInput(f"{path} is not a list of prompts, nor an object with a list {column!r}.")
    for number, row in enumerate(rows, 1):
        yield _text(row, column, f"entry {number} of {path}")


def _table(delimiter: str) -> Callable[[Path, str], Iterator[str]]:
    def rows(path: Path, column: str) -> Iterator[str]:
        usual = csv.field_size_limit(sys.maxsize)
        try:
            with path.open(encoding="utf-8-sig", newline="") as lines:
                table = csv.DictReader(lines, delimiter=delimiter)
                _make_sure(column, table.fieldnames or (), str(path))
                for row in table:
                    yield row[column] or ""
        finally:
            csv.field_size_limit(usual)

    return rows


def _parquet(path: Path, column: str) -> Iterator[str]:
    parquet = _pyarrow(path, "parquet")
    return _column(lambda: parquet.read_table(str(path)), path, column)


def _arrow(path: Path, column: str) -> Iterator[str]:
    ipc = _pyarrow(path, "ipc")

    def table() -> Any:
        try:
            return ipc.open_stream(str(path)).read_all()
        except (ValueError, OSError):
            return ipc.open_file(str(path)).read_all()

    return _column(table, path, column)


def _folder(path: Path, column: str) -> Iterator[str]:
    """Read a data set as ``datasets`` saves it; of several parts the one named train, or the first."""
    parts = sorted(part.parent for part in path.glob("*/state.json"))
    if parts and not (path / "state.json").exists():
        path = next((part for part in parts if part.name == "train"), parts[0])
    files = sorted(entry for entry in path.iterdir() if entry.suffix in {".arrow", ".parquet"})
    if not files:
        raise BadInput(f"The folder {path} is no data set: it has no .arrow or .parquet files.")
    for file in files:
        yield from READERS[file.suffix](file, column)


READERS: dict[str, Callable[[Path, str], Iterator[str]]] = {
    ".txt": _lines,
    ".jsonl": _json_lines,
    ".json": _json,
    ".csv": _table(","),
    ".tsv": _table("\t"),
    ".parquet": _parquet,
    ".arrow": _arrow,
}


def _pyarrow(path: Path, part: str) -> Any:
    from importlib import import_module

    try:
        return import_module(f"pyarrow.{part}")
    except ImportError as error:
        raise MachineCannot(
            f"{path} needs pyarrow, which is not installed; prompts can be a .txt, .jsonl or .csv file too."
        ) from error


def _column(table: Callable[[], Any], path: Path, column: str) -> Iterator[str]:
    try:
        loaded = table()
    except (ValueError, OSError) as error:
        raise BadInput(f"The prompt file {path} cannot be read: {_short(str(error))}.") from error
    _make_sure(column, loaded.column_names, str(path))
    yield from (str(text) for text in loaded.column(column).to_pylist() if text is not None)


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise BadInput(f"{where} is not valid JSON: {error}.") from error


def _text(row: Any, column: str, where: str) -> str:
    if isinstance(row, dict):
        _make_sure(column, row, where)
        row = row[column]
    if not isinstance(row, str):
        raise BadInput(f"{where} is no text, but {_short(repr(row))}.")
    return row


def _make_sure(column: str, columns: Iterable[str] | Sequence[str], where: str) -> None:
    columns = tuple(columns)
    if column not in columns:
        has = ", ".join(columns) or "none"
        raise BadInput(f"{where} has no column {column!r}; it has {has}.{nearest(column, columns)}")


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 1]}…"
