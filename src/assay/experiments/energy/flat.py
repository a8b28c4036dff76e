"""A cell as one row of a table: who it was, what was asked, every figure with its interval, every GPU.

The columns that grow with the number of GPUs come last.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from assay.experiments.energy.older_columns import config_columns, gpu_columns, total_columns, with_ends
from assay.experiments.energy.rows import FIGURES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.core.values import Scalar
    from assay.experiments.energy.rows import EnergyResult, EnergyRow

CELL = ("mode", "batch_size", "concurrency", "input_tokens", "output_tokens")
"""The columns that name a cell."""

KEY = ("run", *CELL)
"""The columns that name a row for good: a run's cell has one row in a file, its newest."""

KNOWN = frozenset(FIGURES) | {"config_device_ids", "config_model", "any_gpu_active"}
"""Columns by which a table of ours, or of the older tool, is recognised."""

LEADING = ("name", "run", "started_at", "model", "backend", "gpu", "origin", "partial", *CELL)


def flat_rows(result: EnergyResult) -> list[dict[str, Scalar]]:
    """Return a row for each cell of a run."""
    return [flat(result, row) for row in result.rows]


def flat(result: EnergyResult, row: EnergyRow) -> dict[str, Scalar]:
    """Return one cell's columns by name, in the order of a table; null was not measured."""
    cell = row.cell
    leading: tuple[Scalar, ...] = (
        result.name, result.run, result.started_at, result.model, result.backend, result.gpu, row.origin, row.partial,
        cell.mode, cell.batch, cell.concurrency, cell.input_tokens, cell.output_tokens,
    )  # fmt: skip
    columns: dict[str, Scalar] = dict(zip(LEADING, leading, strict=True))
    columns |= config_columns(result)
    for name in FIGURES:
        columns |= with_ends(name, row.figures.get(name))
    columns["measured_s"] = row.measured_s
    columns |= {f"measured_{name}": row.tokens.get(name) for name in ("requests", "input_tokens", "output_tokens")}
    columns |= total_columns(row)
    columns["placement"] = placed(row.placement)
    columns["notes"] = "; ".join(row.notes) or None
    columns["why_not"] = reasons(row.why_not)
    return columns | gpu_columns(row.gpus)


def placed(placement: Mapping[str, str] | None) -> str | None:
    """Say how many parts of a model lie on each device: ``cuda:0: 17 parts, cuda:1: 18 parts``."""
    if not placement:
        return None
    counts = Counter(placement.values())
    return ", ".join(f"{device}: {n} part{'' if n == 1 else 's'}" for device, n in counts.items())


def reasons(why_not: Mapping[str, str]) -> str | None:
    """Say why figures are missing, each reason once: ``no GPU is metered (decode_j_per_token, idle_w)``."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in why_not.items():
        by_reason.setdefault(reason.rstrip("."), []).append(name)
    return "; ".join(f"{reason} ({', '.join(names)})" for reason, names in by_reason.items()) or None
