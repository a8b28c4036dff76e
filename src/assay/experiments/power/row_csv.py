"""Rows as a spreadsheet has them: a column for each field, lists and maps as JSON or in columns of their own.

``params.n`` is the parameter n; lists may be written ``[1, 2, 3]`` or ``1;2;3``. An empty cell was not measured.
"""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING

from assay.core.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from assay.experiments.power.rows import GpuRow, SweepRow

MAPS = frozenset({"params", "config", "held_back"})
LISTS = frozenset({"quartiles_us", "restart_medians_us", "neighbours"})
PLAIN = frozenset({"setting"})
"""Fields whose cells may be a number or a word."""


def as_csv(rows: Sequence[GpuRow | SweepRow]) -> str:
    """Return rows as a table: parameters and throttle reasons in columns of their own; null is empty.

    Only the setting of a device as it was found is written "null", as an empty cell would be one that is missing.
    """
    flat = [_flat(row) for row in rows]
    columns = list(dict.fromkeys(name for row in flat for name in row))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return buffer.getvalue()


def _flat(row: GpuRow | SweepRow) -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in row.as_json().items():
        if isinstance(value, dict):
            flat |= {f"{name}.{key}": "" if part is None else part for key, part in value.items()}
        elif isinstance(value, list):
            flat[name] = json.dumps(value)
        else:
            flat[name] = ("null" if name == "setting" else "") if value is None else value
    return flat


def records_of(data: bytes, file: Path, kind: type[GpuRow | SweepRow]) -> Iterator[tuple[int, dict[str, object]]]:
    """Give the number of each line and its cells by field.

    Raises:
        BadInput: It is no text, or columns that every row needs are missing.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadInput(f"{file} is not UTF-8 text.") from None
    reader = csv.DictReader(io.StringIO(text, newline=""))
    there = {name.partition(".")[0] for name in reader.fieldnames or ()}
    needed = [name for name, field in kind.model_fields.items() if field.is_required() and name not in there]
    if needed:
        raise BadInput(f"{file} has no column {', '.join(needed)}.")
    for cells in reader:
        yield reader.line_num, _record(cells)


def _record(cells: dict[str, str | list[str]]) -> dict[str, object]:
    record: dict[str, object] = {}
    for name, cell in cells.items():
        if not isinstance(cell, str) or not cell.strip():
            continue
        field, dot, part = name.partition(".")
        if dot and field in MAPS:
            inner = record.setdefault(field, {})
            if isinstance(inner, dict):
                inner[part] = _plain(cell)
        else:
            record[name] = _cell(name, cell)
    return record


def _cell(name: str, cell: str) -> object:
    if name in LISTS and not cell.lstrip().startswith("["):
        return [part.strip() for part in cell.split(";")]
    return _plain(cell) if name in MAPS | LISTS | PLAIN else cell


def _plain(cell: str) -> object:
    try:
        return json.loads(cell)
    except ValueError:
        return cell
