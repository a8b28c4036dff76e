"""A table in a CSV file that rows are added to for years: columns come and go, and every row stays aligned.

    model,gpu_0_w     model,gpu_0_w,gpu_1_w     model,gpu_0_w,gpu_1_w
    A,210          +  B,190,205              →  A,210,
                                                B,190,205

What is not such a table is refused with its place, and nothing of it is touched.
"""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from assay.core.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from assay.core.values import Scalar

OTHER_DELIMITERS = {";": "semicolons", "\t": "tabs", "|": "bars"}
NOT_ADDED = "nothing is added to it; name another file"
"""What a table that cannot be used means where rows are added."""
GPU_COLUMNS = "gpu_stats_gpu_"
"""How columns of one GPU begin, here and in the older tool; with one of them a table is of this kind."""


@dataclass(frozen=True)
class Table:
    """A file's columns and rows, as text, and how it is written; ``torn`` is a last line that was cut short."""

    columns: tuple[str, ...] = ()
    rows: tuple[dict[str, str], ...] = ()
    newline: str = "\n"
    mark: bool = False
    torn: str | None = None


def parse(data: bytes, where: str, known: Collection[str], *, otherwise: str = NOT_ADDED) -> Table:
    """Return the table that a file holds; ``known`` are columns by which it is recognised. An empty file is empty.

    ``otherwise``: what it means where it is none, in words.

    Raises:
        BadInput: It is not a table of this kind, or its rows do not fit its columns.
    """
    text = _text(data, where, otherwise)
    mark, text = text.startswith("\ufeff"), text.removeprefix("\ufeff")
    if not text.strip():
        return Table(mark=mark)
    newline = "\r\n" if "\r\n" in text else "\n"
    _check_delimiter(text.splitlines()[0], where, known, otherwise)
    records, torn = _records(text, where, otherwise)
    if len(records) == 1 and not text.endswith(("\n", "\r")):
        return Table(newline=newline, mark=mark, torn=text)
    columns = tuple(records[0][1])
    _check_columns(columns, where, known, otherwise)
    cut = not text.endswith(("\n", "\r")) and 0 < len(records[-1][1]) < len(columns)
    if cut:
        records, torn = records[:-1], text[text.rfind("\n") + 1 :]
    return Table(columns, tuple(_row(columns, *record, where) for record in records[1:]), newline, mark, torn)


def _row(columns: Sequence[str], line: int, cells: Sequence[str], where: str) -> dict[str, str]:
    if len(cells) != len(columns):
        raise BadInput(
            f"{where}, line {line}: {len(cells)} cells under {len(columns)} columns, so that nobody can say which "
            "belongs where; another tool may have added it. Mend or remove that line, or name another file."
        )
    return dict(zip(columns, cells, strict=True))


def _text(data: bytes, where: str, otherwise: str) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadInput(f"{where}, line {line}: not UTF-8 text, so {otherwise}.") from None
    if "\0" in text:
        raise BadInput(f"{where} holds null bytes and is no CSV file, so {otherwise}.")
    return text


def _records(text: str, where: str, otherwise: str) -> tuple[list[tuple[int, list[str]]], str | None]:
    """Return the records with their line numbers, empty lines left out, and a last line that was cut in its quotes."""
    try:
        return _read(text), None
    except csv.Error as error:
        whole = text[: text.rfind("\n") + 1]
        if whole and not text.endswith("\n"):
            try:
                return _read(whole), text[len(whole) :]
            except csv.Error:
                pass
        raise BadInput(f"{where} is garbled ({error}), so {otherwise}.") from None


def _read(text: str) -> list[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    return [(reader.line_num, cells) for cells in reader if cells]


def _recognised(names: Iterable[str], known: Collection[str]) -> bool:
    return any(name in known or name.startswith(GPU_COLUMNS) for name in names)


def _check_delimiter(header: str, where: str, known: Collection[str], otherwise: str) -> None:
    for sign, name in OTHER_DELIMITERS.items():
        parts = [part.strip('" ') for part in header.split(sign)]
        if len(parts) > 1 and _recognised(parts, known):
            raise BadInput(
                f"{where} has its columns parted by {name}, not by commas, so {otherwise}; or save it with commas."
            )


def _check_columns(columns: Sequence[str], where: str, known: Collection[str], otherwise: str) -> None:
    if not _recognised(columns, known):
        shown = ", ".join(columns)
        raise BadInput(
            f"{where} holds another table: none of its columns ({shown if len(shown) < 100 else shown[:100] + '…'}) is "
            f"one of `assay energy`, so {otherwise}."
        )
    twice = [name for index, name in enumerate(columns) if name in columns[:index]]
    if twice or "" in columns:
        what = f"two columns {twice[0]!r}" if twice and twice[0] else "a column without a name"
        raise BadInput(f"{where} has {what}, so that rows cannot be told apart; mend it, or name another file.")


def added(table: Table, rows: Sequence[Mapping[str, Scalar]], key: Sequence[str] = ()) -> Table:
    """Return the table with rows added; one that has the same cells under ``key`` as a new one is replaced by it.

    Columns that nobody here knows are kept, with what stands in them, also in a row that is replaced.
    """
    columns = table.columns
    result_rows = list(table.rows)
    for row in rows:
        columns = united(columns, tuple(row))
        cells = {name: written(value) for name, value in row.items()}
        same = _place_of(cells, result_rows, key)
        if same is None:
            result_rows.append(cells)
        else:
            result_rows[same] = {**result_rows[same], **cells}
    return replace(table, columns=columns, rows=tuple(result_rows))


def _place_of(cells: Mapping[str, str], rows: Sequence[Mapping[str, str]], key: Sequence[str]) -> int | None:
    """Return which row is an older state of this one; a row whose first key is empty is nobody's."""
    if not key or not cells.get(key[0]):
        return None
    key_cells = [cells.get(name, "") for name in key]
    return next((index for index, row in enumerate(rows) if [row.get(name, "") for name in key] == key_cells), None)


def united(there: Sequence[str], new: Sequence[str]) -> tuple[str, ...]:
    """Return all columns: those there in their order, a new one behind the column that it follows in its own row."""
    columns = list(there)
    for index, name in enumerate(new):
        if name not in columns:
            columns.insert(columns.index(new[index - 1]) + 1 if index else len(columns), name)
    return tuple(columns)


def written(value: Scalar) -> str:
    """Return a cell's text: nothing for null or what is no number, and never more than one line."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if not isinstance(value, str):
        return str(value)
    return " ".join(value.replace("\0", "").encode(errors="replace").decode().splitlines())


def to_csv(table: Table) -> str:
    """Return the file's text."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, table.columns, restval="", lineterminator=table.newline)
    writer.writeheader()
    writer.writerows(table.rows)
    return ("\ufeff" if table.mark else "") + buffer.getvalue()
