"""The configurations of kernels that take whole rows of a matrix: how many at once, and how wide a block of columns."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from assay.core.errors import BadInput
from assay.workloads.parameters import size
from assay.workloads.triton_common import power_of_two

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from assay.core.values import Params
    from assay.workloads.problems import Rows

BLOCK_ROWS = (1, 2, 4, 8)
LOOPED_COLS = (1024, 2048, 4096)
NUM_WARPS = (8, 4, 16, 2, 1)
LOOPED_STAGES = (2, 4)
MOST_PER_THREAD = 64
"""Elements that one thread holds in registers at a time."""


def configs(problem: Rows) -> list[Params]:
    """Return blocks that hold whole rows, then blocks that loop over the columns; at least one of them fits."""
    return list(itertools.chain(_whole(problem), _looped(problem)))


def _whole(problem: Rows) -> Iterator[Params]:
    cols = power_of_two(problem.cols)
    for rows, warps in itertools.product(BLOCK_ROWS, NUM_WARPS):
        per_thread = rows * cols / (32 * warps)
        if rows <= problem.rows and per_thread <= MOST_PER_THREAD and (per_thread >= 2 or warps == 1):
            yield {"block_rows": rows, "block_cols": cols, "num_warps": warps, "num_stages": 1}


def _looped(problem: Rows) -> Iterator[Params]:
    for cols, warps, stages in itertools.product(LOOPED_COLS, (8, 4), LOOPED_STAGES):
        if cols < problem.cols:
            yield {"block_rows": 1, "block_cols": cols, "num_warps": warps, "num_stages": stages}


def grid(problem: Rows, settings: Mapping[str, Any]) -> tuple[int]:
    """Return how many programs take the rows."""
    return (-(-problem.rows // settings["block_rows"]),)


def settings(problem: Rows, config: Params) -> dict[str, int | bool]:
    """Return the settings that a configuration means."""
    rows, cols = (size(config, name) for name in ("block_rows", "block_cols"))
    for name, value in (("block_rows", rows), ("block_cols", cols)):
        if value & (value - 1):
            raise BadInput(f"{name} is a power of two, not {value}.")
    return {"block_rows": rows, "block_cols": cols, "whole": cols >= problem.cols}
