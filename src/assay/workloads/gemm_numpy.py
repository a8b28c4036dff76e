"""Matrix product on a CPU: numpy's own product over tiles, in a choice of tile sizes and layouts."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from assay.workloads import data, reference
from assay.workloads.base import Prepared
from assay.workloads.data import CHOICES
from assay.workloads.parameters import block_sizes, complete, one_of, size
from assay.workloads.problems import Gemm
from assay.workloads.sharing import shared

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.results import Check
    from assay.core.values import Params
    from assay.workloads.base import Workload
    from assay.workloads.data import Floats

BLOCKS = (128, 32, 256)
LAYOUTS = ("row", "column")


@dataclass(frozen=True)
class Tiling:
    """How the product is cut, in rows and columns of elements, and how B lies in memory."""

    block_m: int
    block_n: int
    block_k: int
    layout: str

    @classmethod
    def of(cls, config: Params) -> Self:
        """Read the tiling from a complete configuration."""
        block_m, block_n, block_k = (size(config, name) for name in ("block_m", "block_n", "block_k"))
        return cls(block_m, block_n, block_k, one_of("layout", config["layout"], LAYOUTS))


def multiply(a: Floats, b: Floats, out: Floats, scratch: Floats, tiling: Tiling) -> None:
    """Write a·b into ``out``, a tile at a time; ``scratch`` holds the product of one pair of tiles."""
    for i in range(0, a.shape[0], tiling.block_m):
        rows = slice(i, i + tiling.block_m)
        for j in range(0, b.shape[1], tiling.block_n):
            columns = slice(j, j + tiling.block_n)
            _fill(a[rows], b[:, columns], out[rows, columns], scratch, tiling.block_k)


def _fill(a: Floats, b: Floats, tile: Floats, scratch: Floats, block_k: int) -> None:
    """Write a·b into one tile of the output, ``block_k`` columns of a at a time."""
    np.matmul(a[:, :block_k], b[:block_k], out=tile)
    partial = scratch[: tile.shape[0], : tile.shape[1]]
    for start in range(block_k, a.shape[1], block_k):
        inner = slice(start, start + block_k)
        np.matmul(a[:, inner], b[inner], out=partial)
        np.add(tile, partial, out=tile)


class GemmNumpy:
    """``gemm@numpy``. Layout "row" stores B by rows, "column" by columns, that is transposed."""

    name = "gemm"
    impl = "numpy"
    choices = CHOICES
    device_kinds = frozenset({"cpu"})
    summary = "Matrix product C = A·B, tiled, on a CPU"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the sizes in elements, the dtype and the distribution of A and B."""
        return {"m": 256, "n": 256, "k": 256, "dtype": "float32", "distribution": "normal"}

    def configs(self, params: Params) -> Sequence[Params]:
        """Return every mix of tile sizes and layouts, at most 54."""
        problem = Gemm.of(params, data.DTYPES)
        in_m, in_n, in_k = (block_sizes(BLOCKS, limit) for limit in (problem.m, problem.n, problem.k))
        return [
            {"block_m": block_m, "block_n": block_n, "block_k": block_k, "layout": layout}
            for block_m, block_n, block_k, layout in itertools.product(in_m, in_n, in_k, LAYOUTS)
        ]

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> Prepared:
        """Draw A and B, lay B out, and set memory aside; the process's cores are the device."""
        problem = Gemm.of(params, data.DTYPES)
        tiling = Tiling.of(complete(config, self.configs(params)[0]))
        a = data.draw(params["distribution"], (problem.m, problem.k), problem.dtype, seed, stream=0)
        b = data.draw(params["distribution"], (problem.k, problem.n), problem.dtype, seed, stream=1)
        b = shared(("b", tiling.layout), lambda: np.asarray(b, order="C" if tiling.layout == "row" else "F"))
        out = shared("out", lambda: np.zeros((problem.m, problem.n), problem.dtype))
        scratch = np.zeros((min(tiling.block_m, problem.m), min(tiling.block_n, problem.n)), problem.dtype)

        def call() -> None:
            multiply(a, b, out, scratch, tiling)

        def check() -> Check:
            out.fill(np.nan)
            call()
            return reference.check(out, reference.matmul(a, b), problem.dtype)

        return Prepared(call=call, check=check, flop=problem.flop, bytes_moved=problem.bytes_moved)


WORKLOAD: Workload = GemmNumpy()
