"""Which rack a host stands in, where the rows do not say: a file of hosts and racks."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from assay.core.durable import read_text
from assay.core.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from assay.experiments.power.rows import GpuRow


def read_racks(path: Path) -> dict[str, str]:
    """Return the rack of each host from lines of ``host,rack``; a first line of just these words is a heading.

    Raises:
        BadInput: It cannot be read, or a line is something else.
    """
    try:
        text = read_text(path).removeprefix("\ufeff")
    except BadInput as error:
        raise BadInput(f"--racks {path} cannot be read: {error}") from None
    racks: dict[str, str] = {}
    for number, cells in enumerate(_lines_of_cells(text, path), 1):
        values = [cell.strip() for cell in cells]
        if not any(values) or values == ["host", "rack"]:
            continue
        if len(values) != 2 or not all(values):
            raise BadInput(f"--racks {path}, line {number}: a host and its rack, parted by a comma, are needed.")
        racks[values[0]] = values[1]
    if not racks:
        raise BadInput(f"--racks {path} names no host.")
    return racks


def _lines_of_cells(text: str, path: Path) -> Iterator[list[str]]:
    try:
        yield from csv.reader(io.StringIO(text))
    except csv.Error as error:
        raise BadInput(f"--racks {path} is not a table in CSV: {error}.") from None


def with_racks(rows: Sequence[GpuRow], racks: Mapping[str, str]) -> tuple[tuple[GpuRow, ...], tuple[str, ...]]:
    """Return the rows with the racks of their hosts, and which hosts have none."""
    hosts = dict.fromkeys(row.host for row in rows)
    strange = [host for host in hosts if host not in racks]
    more = f" and {len(strange) - 5} more" if len(strange) > 5 else ""
    notes = (f"--racks does not name {', '.join(strange[:5])}{more}.",) if strange else ()
    return tuple(row.model_copy(update={"rack": racks.get(row.host, row.rack)}) for row in rows), notes
