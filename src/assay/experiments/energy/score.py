"""Rows in the style of the AI Energy Score: a model, a task, a GPU, and the GPU's watt-hours for 1000 requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.experiments.energy.flat import CELL
from assay.experiments.energy.older_columns import with_ends

if TYPE_CHECKING:
    from assay.core.values import Scalar
    from assay.experiments.energy.rows import EnergyResult, EnergyRow

TASK = "text_generation"
NOTE = (
    "Not the official AI Energy Score: prompts, lengths and decoding differ from its data sets. "
    "GPU energy of whole requests, idle power within it; the host is not counted."
)
SCORE = "gpu_wh_per_1000_requests"


def score_rows(result: EnergyResult) -> list[dict[str, Scalar]]:
    """Return a row for each cell; the score is null where its energy is not known, and then the note says why."""
    return [_row(result, row) for row in result.rows]


def _row(result: EnergyResult, row: EnergyRow) -> dict[str, Scalar]:
    cell = row.cell
    sizes = (cell.mode, cell.batch, cell.concurrency, cell.input_tokens, cell.output_tokens)
    missing = row.why_not.get("wh_per_1000_requests")
    return {
        "model": result.model,
        "task": result.config.get("task") or TASK,
        "gpu": result.gpu,
        **with_ends(SCORE, row.figures.get("wh_per_1000_requests")),
        "number_of_gpus": len(row.gpus) or None,
        "dtype": dtype_of(result),
        **dict(zip(CELL, sizes, strict=True)),
        "run": result.run,
        "started_at": result.started_at,
        "origin": row.origin,
        "partial": row.partial,
        "note": f"{NOTE} Not known: {missing.rstrip('.')}." if missing else NOTE,
    }


def dtype_of(result: EnergyResult) -> Scalar:
    """Return the type of the weights where it is known: as loaded, or as asked for."""
    dtype = result.config.get("dtype") or result.config.get("torch_dtype")
    return None if dtype == "auto" else dtype
