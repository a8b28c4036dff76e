"""The files that a run leaves for other programs: all of it as JSON, a table, a score's table, the older tool's."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from assay.experiments.energy.csv_rows import Table, added, to_csv
from assay.experiments.energy.flat import flat_rows
from assay.experiments.energy.older_columns import older_row
from assay.experiments.energy.score import score_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assay.core.values import Scalar
    from assay.experiments.energy.rows import EnergyResult

JSON_FILE = "energy.json"
CSV_FILE = "energy.csv"
SCORE_FILE = "ai_energy_score.csv"


def report_files(result: EnergyResult) -> dict[str, str]:
    """Return the files by their paths within the run folder; tables only where there is a row."""
    files = {JSON_FILE: to_json(result)}
    if result.rows:
        files[CSV_FILE] = table_of(flat_rows(result))
        files[SCORE_FILE] = table_of(score_rows(result))
        files[older_file(result.name)] = table_of([older_row(result, row) for row in result.rows])
    return files


def to_json(result: EnergyResult) -> str:
    """Return all that a run found."""
    return json.dumps(result.as_json(), indent=2, ensure_ascii=False) + "\n"


def table_of(rows: Sequence[Mapping[str, Scalar]]) -> str:
    """Return rows as a CSV file of their own."""
    return to_csv(added(Table(), rows))


def older_file(name: str) -> str:
    """Return where the older tool's documents have results: ``results/NAME_results.csv``."""
    safe = re.sub(r"[^\w.-]+", "_", name).strip("._") or "energy"
    return f"older/results/{safe}_results.csv"
