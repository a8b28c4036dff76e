"""Rows of the older threshold benchmark as numbers that ``assay compare`` holds against each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.experiments.compare.pairing import CellName, ComparedCell
from assay.experiments.compare.sources import parameter_details, positive_float

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pydantic import JsonValue


def is_threshold_result(content: JsonValue) -> bool:
    """Return whether this is a threshold tool's result, or a bare list of its rows."""
    rows = content.get("results") if isinstance(content, dict) else content
    if (
        isinstance(content, dict)
        and isinstance(rows, list)
        and ("recommendation" in content or "device_info" in content)
    ):
        return True
    return isinstance(rows, list) and bool(rows) and isinstance(rows[0], dict) and "branch" in rows[0]


def row_cells(rows: Iterable[JsonValue], model: str | None) -> list[ComparedCell]:
    """Return the speed-up and the two times of every row of the older form; what else a row holds is left aside."""
    return [number for row in rows if isinstance(row, dict) for number in _row_cells(row, model)]


def _row_cells(row: Mapping[str, JsonValue], model: str | None) -> Iterator[ComparedCell]:
    params = row.get("params")
    own = params if isinstance(params, dict) else {}
    settings = {"S": row.get("sequence_length"), "w": row.get("window_size")}
    if settings["S"] is None:
        settings = own
    elif row.get("branch") == "compressed":
        sizes = {"l": ("block", 32), "d": ("stride", 16)}
        settings |= {name: row.get(name) or own.get(longer) or usual for name, (longer, usual) in sizes.items()}
    for quantity, unit in (("speedup", "×"), ("masked_ms", "ms"), ("fa2_ms", "ms")):
        value = positive_float(row.get(quantity))
        name = CellName(str(row.get("branch")), parameter_details(settings), quantity)
        if value is not None:
            ends = (
                (positive_float(row.get("low")), positive_float(row.get("high")))
                if quantity == "speedup"
                else (None, None)
            )
            yield ComparedCell(name, None, model, value, *(ends if None not in ends else (None, None)), unit=unit)
