"""Matrix product by a Triton kernel of ours, in a choice of tiles, warps and stages."""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from assay.workloads import triton_common
from assay.workloads.gemm_torch import truth
from assay.workloads.parameters import complete, size
from assay.workloads.problems import ITEM_BYTES, Gemm
from assay.workloads.reference import tolerance
from assay.workloads.torch_common import Work, reads_tf32
from assay.workloads.torch_data import draw, kept_output
from assay.workloads.torch_device import open_device, torch_device
from assay.workloads.triton_common import CHOICES, MOST_SHARED_BYTES, Launch, power_of_two, tile_side

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assay.core.values import Params
    from assay.workloads.base import Prepared, Workload

BLOCK_MN = ((128, 256), (128, 128), (256, 128), (64, 256), (64, 128), (128, 64), (64, 64), (256, 64))
BLOCK_K = {"tensor cores": (64, 32, 128), "threads": (32, 16, 64)}
MOST_SUMS_PER_THREAD = {"tensor cores": 128, "threads": 64}
"""Float32 sums that a thread keeps in registers, by what multiplies; it has 255, and threads need some for factors."""

WARPS_STAGES = ((8, 3), (4, 4), (8, 4), (4, 3), (4, 2))
GROUP_M = 8


@dataclass(frozen=True)
class Tiling:
    """Rows, columns and depth of a tile in elements, the warps that work on it, and how many are loaded ahead."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int

    @classmethod
    def of(cls, config: Params) -> Self:
        """Read the tiling from a complete configuration."""
        m, n, k = (tile_side(config, name) for name in ("block_m", "block_n", "block_k"))
        return cls(m, n, k, size(config, "num_warps"), size(config, "num_stages"))

    def fits(self, dtype: str, multiplied_by: str) -> bool:
        """Return whether it is likely to fit a large GPU's shared memory and registers."""
        shared = self.num_stages * self.block_k * (self.block_m + self.block_n) * ITEM_BYTES[dtype]
        sums = self.block_m * self.block_n / (32 * self.num_warps)
        return shared <= MOST_SHARED_BYTES and sums <= MOST_SUMS_PER_THREAD[multiplied_by]


def _settings(problem: Gemm, config: Params) -> dict[str, int | bool]:
    tiling = Tiling.of(config)
    sides = {"block_m": tiling.block_m, "block_n": tiling.block_n, "block_k": tiling.block_k}
    return {**sides, "even_k": problem.k % tiling.block_k == 0}


def _grid(problem: Gemm, settings: Mapping[str, Any]) -> tuple[int]:
    return (-(-problem.m // settings["block_m"]) * -(-problem.n // settings["block_n"]),)


class GemmTriton:
    """``gemm@triton``. All matrices are stored by rows; with ``tf32`` float32 is rounded to TF32 before products."""

    name = "gemm"
    impl = "triton"
    choices = CHOICES
    device_kinds = triton_common.device_kinds()
    summary = "Matrix product C = A·B by a Triton kernel"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the sizes in elements, the dtype and the distribution of A and B: 4096³ fills a GPU."""
        side = 4096 if device_kind == "cuda" else 64
        dtype = "bfloat16" if device_kind == "cuda" else "float32"
        return {"m": side, "n": side, "k": side, "dtype": dtype, "distribution": "normal", "tf32": False}

    def configs(self, params: Params) -> Sequence[Params]:
        """Return tiles with warps and stages to each, no larger than the problem: 88 for a large one of 16 bits."""
        problem = Gemm.of(params, triton_common.DTYPES)
        by = triton_common.multiplied_by(params, problem.dtype)
        most_m, most_n, most_k = (power_of_two(side) for side in (problem.m, problem.n, problem.k))
        tilings = (
            Tiling(min(m, most_m), min(n, most_n), min(k, most_k), warps, stages)
            for (m, n), k, (warps, stages) in itertools.product(BLOCK_MN, BLOCK_K[by], WARPS_STAGES)
        )
        return [asdict(tiling) for tiling in dict.fromkeys(tilings) if tiling.fits(problem.dtype, by)]

    def launch(self, params: Params, *, device: str, seed: int) -> Launch:
        """Draw A and B, and set C aside."""
        problem, where = Gemm.of(params, triton_common.DTYPES), open_device(device)
        a = draw(params["distribution"], (problem.m, problem.k), problem.dtype, seed, where=where, stream=0)
        b = draw(params["distribution"], (problem.k, problem.n), problem.dtype, seed, where=where, stream=1)
        out = kept_output(a, (problem.m, problem.n))
        precision = "tf32" if reads_tf32(params, problem.dtype) else "ieee"
        return Launch(
            kernel="gemm",
            args=(a, b, out, problem.m, problem.n, problem.k),
            out=out,
            fixed={"group_m": GROUP_M, "precision": precision, "widen": triton_common.interpreted()},
            settings=partial(_settings, problem),
            grid=partial(_grid, problem),
        )

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> Prepared:
        """Put the data in place; the kernel is compiled by the first call."""
        problem, launch = Gemm.of(params, triton_common.DTYPES), self.launch(params, device=device, seed=seed)
        tf32 = reads_tf32(params, problem.dtype)
        a, b = launch.args[:2]
        work = Work(
            call=launch.call(complete(config, self.configs(params)[0])),
            truth=truth(a, b, problem),
            tolerance=tolerance("tf32" if tf32 else problem.dtype),
            flop=problem.flop,
            bytes_moved=problem.bytes_moved,
            out=launch.out,
            backend=triton_common.backend_of,
        )
        return triton_common.prepared(work, where=torch_device(device), seed=seed)


WORKLOAD: Workload = GemmTriton()
