"""Softmax of each row on a CPU: online over blocks of columns, some rows at a time so that they stay in cache."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

import numpy as np

from assay.workloads import data, reference
from assay.workloads.base import Prepared
from assay.workloads.data import CHOICES
from assay.workloads.parameters import block_sizes, complete, one_of, size
from assay.workloads.problems import Softmax
from assay.workloads.sharing import shared

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.results import Check
    from assay.core.values import Params
    from assay.workloads.base import Workload
    from assay.workloads.data import Floats

BLOCK_ROWS = (32, 8, 128, 512)
BLOCK_COLS = (128, 512)
LAYOUTS = ("row", "column")


@dataclass(frozen=True)
class Tiling:
    """Rows and columns taken at a time, and whether input and output lie in memory by rows or by columns."""

    block_rows: int
    block_cols: int
    layout: str

    @classmethod
    def of(cls, config: Params) -> Self:
        """Read the tiling from a complete configuration."""
        block_rows, block_cols = (size(config, name) for name in ("block_rows", "block_cols"))
        return cls(block_rows, block_cols, one_of("layout", config["layout"], LAYOUTS))

    @property
    def order(self) -> Literal["C", "F"]:
        """The layout as numpy names it."""
        return "C" if self.layout == "row" else "F"


@dataclass(frozen=True)
class Scratch:
    """What is remembered of the rows at hand: a column of numbers each.

    Attributes:
        peaks: The maximum so far, after each block of columns: blocks × rows × 1.
        total: The sum so far, of powers relative to the latest maximum: rows × 1.
        factor: What older sums or outputs are multiplied by: rows × 1.
    """

    peaks: Floats
    total: Floats
    factor: Floats

    @classmethod
    def of(cls, problem: Softmax, tiling: Tiling) -> Self:
        """Set memory aside for one block of rows."""
        blocks = -(-problem.cols // tiling.block_cols)
        rows = min(tiling.block_rows, problem.rows)
        return cls(*(np.zeros(shape, problem.dtype) for shape in ((blocks, rows, 1), (rows, 1), (rows, 1))))

    def first(self, rows: int) -> Scratch:
        """Return the part that the first rows need."""
        return Scratch(self.peaks[:, :rows], self.total[:rows], self.factor[:rows])


def softmax(x: Floats, out: Floats, scratch: Scratch, tiling: Tiling) -> None:
    """Write the softmax of each row of x into ``out``."""
    columns = [slice(start, start + tiling.block_cols) for start in range(0, x.shape[1], tiling.block_cols)]
    for start in range(0, x.shape[0], tiling.block_rows):
        rows = slice(start, start + tiling.block_rows)
        part = scratch.first(len(x[rows]))
        _exponentiate(x[rows], out[rows], part, columns)
        _normalise(out[rows], part, columns)


def _exponentiate(x: Floats, out: Floats, scratch: Scratch, columns: list[slice]) -> None:
    """Write each block's powers relative to the maximum known by then, and keep those maxima and the sum."""
    total, factor = scratch.total, scratch.factor
    total.fill(0)
    for block, span in enumerate(columns):
        peak, tile = scratch.peaks[block], out[:, span]
        np.maximum.reduce(x[:, span], axis=1, keepdims=True, out=peak)
        if block:
            before = scratch.peaks[block - 1]
            np.maximum(peak, before, out=peak)
            np.subtract(before, peak, out=factor)
            np.exp(factor, out=factor)
            np.multiply(total, factor, out=total)
        np.subtract(x[:, span], peak, out=tile)
        np.exp(tile, out=tile)
        np.add.reduce(tile, axis=1, keepdims=True, out=factor)
        np.add(total, factor, out=total)


def _normalise(out: Floats, scratch: Scratch, columns: list[slice]) -> None:
    """Bring each block's powers to the last maximum and divide them by the sum, in one scaling."""
    factor = scratch.factor
    for peak, span in zip(scratch.peaks, columns, strict=True):
        np.subtract(peak, scratch.peaks[-1], out=factor)
        np.exp(factor, out=factor)
        np.divide(factor, scratch.total, out=factor)
        np.multiply(out[:, span], factor, out=out[:, span])


class SoftmaxNumpy:
    """``softmax@numpy``. Layout "row" stores input and output by rows, "column" by columns."""

    name = "softmax"
    impl = "numpy"
    choices = CHOICES
    device_kinds = frozenset({"cpu"})
    summary = "Softmax of each row of a matrix, online over tiles, on a CPU"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the sizes in elements, the dtype and the distribution of the input."""
        return {"rows": 512, "cols": 1024, "dtype": "float32", "distribution": "normal"}

    def configs(self, params: Params) -> Sequence[Params]:
        """Return every mix of block sizes and layouts, at most 24; whole rows are among them."""
        problem = Softmax.of(params, data.DTYPES)
        block_rows = block_sizes(BLOCK_ROWS, problem.rows)
        block_cols = block_sizes((problem.cols, *BLOCK_COLS), problem.cols)
        return [
            {"block_rows": rows, "block_cols": cols, "layout": layout}
            for rows, cols, layout in itertools.product(block_rows, block_cols, LAYOUTS)
        ]

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> Prepared:
        """Draw and lay out the input, and set memory aside; the process's cores are the device."""
        problem = Softmax.of(params, data.DTYPES)
        tiling = Tiling.of(complete(config, self.configs(params)[0]))
        x = data.draw(params["distribution"], (problem.rows, problem.cols), problem.dtype, seed)
        x = shared(("x", tiling.order), lambda: np.asarray(x, order=tiling.order))
        out = shared(("out", tiling.order), lambda: np.zeros_like(x))
        scratch = Scratch.of(problem, tiling)

        def call() -> None:
            softmax(x, out, scratch, tiling)

        def check() -> Check:
            out.fill(np.nan)
            call()
            return reference.check(out, reference.softmax(x), problem.dtype)

        return Prepared(call=call, check=check, flop=problem.flop, bytes_moved=problem.bytes_moved)


WORKLOAD: Workload = SoftmaxNumpy()
