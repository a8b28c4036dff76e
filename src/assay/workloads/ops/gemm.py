"""Matrix product, by numpy, PyTorch, Triton and Helion.

The numpy version multiplies tiles in a choice of sizes and layouts; PyTorch's is ``torch.mm`` into a preallocated
output, which is cuBLAS on a GPU; the Triton kernel has a choice of tiles, warps and stages.
"""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from assay.core.errors import BadInput
from assay.workloads import numpy_support as data
from assay.workloads.base import PreparedWorkload, shared_data
from assay.workloads.helion_support import HelionOperator
from assay.workloads.numpy_support import NUMPY_CHOICES, check_output, reference_matmul
from assay.workloads.parameters import ITEM_BYTES, GemmProblem, block_sizes, check_choice, complete_config, read_size
from assay.workloads.torch_device import import_torch
from assay.workloads.torch_support import (
    TensorOperator,
    TensorReference,
    TorchOperator,
    reference_matmul_rows,
    uses_tf32,
)
from assay.workloads.triton_support import (
    MOST_SHARED_BYTES,
    TritonLaunch,
    TritonOperator,
    is_triton_interpreted,
    multiply_unit,
    next_power_of_two,
    tile_side,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from assay.core.results import Check
    from assay.core.values import Params
    from assay.workloads.base import Workload
    from assay.workloads.numpy_support import Floats
    from assay.workloads.torch_device import Tensor


BLOCKS = (128, 32, 256)
LAYOUTS = ("row", "column")


@dataclass(frozen=True)
class NumpyGemmTiling:
    """Tile sizes of the product in elements, and the layout of B in memory."""

    block_m: int
    block_n: int
    block_k: int
    layout: str

    @classmethod
    def of(cls, config: Params) -> Self:
        """Read the tiling from a complete configuration."""
        block_m, block_n, block_k = (read_size(config, name) for name in ("block_m", "block_n", "block_k"))
        return cls(block_m, block_n, block_k, check_choice("layout", config["layout"], LAYOUTS))


def multiply_tiled(a: Floats, b: Floats, out: Floats, scratch: Floats, tiling: NumpyGemmTiling) -> None:
    """Write a·b into ``out``, a tile at a time; ``scratch`` holds the product of one pair of tiles."""
    for i in range(0, a.shape[0], tiling.block_m):
        rows = slice(i, i + tiling.block_m)
        for j in range(0, b.shape[1], tiling.block_n):
            columns = slice(j, j + tiling.block_n)
            _fill_tile(a[rows], b[:, columns], out[rows, columns], scratch, tiling.block_k)


def _fill_tile(a: Floats, b: Floats, tile: Floats, scratch: Floats, block_k: int) -> None:
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
    choices = NUMPY_CHOICES
    device_kinds = frozenset({"cpu"})
    summary = "Matrix product C = A·B, tiled, on a CPU"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the sizes in elements, the dtype and the distribution of A and B."""
        return {"m": 256, "n": 256, "k": 256, "dtype": "float32", "distribution": "normal"}

    def configs(self, params: Params) -> Sequence[Params]:
        """Return every combination of tile sizes and layouts, at most 54."""
        problem = GemmProblem.of(params, data.NUMPY_DTYPES)
        in_m, in_n, in_k = (block_sizes(BLOCKS, limit) for limit in (problem.m, problem.n, problem.k))
        return [
            {"block_m": block_m, "block_n": block_n, "block_k": block_k, "layout": layout}
            for block_m, block_n, block_k, layout in itertools.product(in_m, in_n, in_k, LAYOUTS)
        ]

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> PreparedWorkload:
        """Draw A and B, lay B out, and allocate memory; the process's cores are the device."""
        problem = GemmProblem.of(params, data.NUMPY_DTYPES)
        tiling = NumpyGemmTiling.of(complete_config(config, self.configs(params)[0]))
        a = data.draw_array(params["distribution"], (problem.m, problem.k), problem.dtype, seed, stream=0)
        b = data.draw_array(params["distribution"], (problem.k, problem.n), problem.dtype, seed, stream=1)
        b = shared_data(("b", tiling.layout), lambda: np.asarray(b, order="C" if tiling.layout == "row" else "F"))
        out = shared_data("out", lambda: np.zeros((problem.m, problem.n), problem.dtype))
        scratch = np.zeros((min(tiling.block_m, problem.m), min(tiling.block_n, problem.n)), problem.dtype)

        def call() -> None:
            multiply_tiled(a, b, out, scratch, tiling)

        def check() -> Check:
            out.fill(np.nan)
            call()
            return check_output(out, reference_matmul(a, b), problem.dtype)

        return PreparedWorkload(call=call, check=check, flop=problem.flop, bytes_moved=problem.bytes_moved)


GEMM_NUMPY: Workload = GemmNumpy()


def make_matmul(a: Tensor, b: Tensor, out: Tensor, *, tf32: bool) -> Callable[[], Tensor]:
    """Return a call that writes a·b into ``out``.

    TF32 is off for the whole process except for the calls that request it: they switch it on and off, which costs
    about a microsecond.
    """
    torch = import_torch()
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    plain: Callable[[], Tensor] = partial(torch.mm, a, b, out=out)
    if not tf32:
        return plain

    def rounded() -> Tensor:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        try:
            return plain()
        finally:
            torch.backends.cuda.matmul.fp32_precision = "ieee"

    return rounded


class Gemm(TensorOperator[GemmProblem]):
    """What every implementation on tensors computes; with ``tf32`` float32 is rounded to TF32 before products."""

    name = "gemm"
    problem_type = GemmProblem
    cpu_params: ClassVar[Params] = {"m": 64, "n": 64, "k": 64, "dtype": "float32", "tf32": False}
    gpu_params: ClassVar[Params] = {"m": 4096, "n": 4096, "k": 4096, "dtype": "bfloat16", "tf32": False}

    def reference(self, problem: GemmProblem, *inputs: Tensor) -> TensorReference:
        """Return the product of the two matrices."""
        flop_per_row, elements_per_row = 2.0 * problem.n * problem.k, problem.n + problem.k
        return TensorReference(problem.m, partial(reference_matmul_rows, *inputs), flop_per_row, elements_per_row)


class GemmTorch(Gemm, TorchOperator[GemmProblem]):
    """``gemm@torch``. Without ``tf32`` a GPU multiplies float32 exactly."""

    summary = "Matrix product C = A·B by torch.mm"
    cpu_params: ClassVar[Params] = {"m": 512, "n": 512, "k": 512, "dtype": "float32", "tf32": False}

    def make_call(self, params: Params, *inputs: Tensor) -> tuple[Callable[[], Tensor], Tensor | None]:
        """Return ``torch.mm`` into an output of its own."""
        a, b = inputs
        tf32 = uses_tf32(params, str(params["dtype"]))
        if tf32 and a.device.type == "cpu":
            raise BadInput("tf32 is for GPUs; a CPU has no such products.")
        out = a.new_empty((a.shape[0], b.shape[1]))
        return make_matmul(a, b, out, tf32=tf32), out


BLOCK_MN = ((128, 256), (128, 128), (256, 128), (64, 256), (64, 128), (128, 64), (64, 64), (256, 64))
BLOCK_K = {"tensor cores": (64, 32, 128), "threads": (32, 16, 64)}
MOST_SUMS_PER_THREAD = {"tensor cores": 128, "threads": 64}
"""Float32 sums that a thread keeps in registers, by the unit that multiplies; it has 255, some of them for factors."""

WARPS_STAGES = ((8, 3), (4, 4), (8, 4), (4, 3), (4, 2))
GROUP_M = 8


@dataclass(frozen=True)
class TritonGemmTiling:
    """Rows, columns and depth of a tile in elements, warps, and pipeline stages."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int

    @classmethod
    def of(cls, config: Params) -> Self:
        """Read the tiling from a complete configuration."""
        m, n, k = (tile_side(config, name) for name in ("block_m", "block_n", "block_k"))
        return cls(m, n, k, read_size(config, "num_warps"), read_size(config, "num_stages"))

    def fits(self, dtype: str, multiplied_by: str) -> bool:
        """Return whether it should fit the shared memory and registers of a large GPU."""
        shared = self.num_stages * self.block_k * (self.block_m + self.block_n) * ITEM_BYTES[dtype]
        sums = self.block_m * self.block_n / (32 * self.num_warps)
        return shared <= MOST_SHARED_BYTES and sums <= MOST_SUMS_PER_THREAD[multiplied_by]


def _settings(problem: GemmProblem, config: Params) -> dict[str, int | bool]:
    tiling = TritonGemmTiling.of(config)
    sides = {"block_m": tiling.block_m, "block_n": tiling.block_n, "block_k": tiling.block_k}
    return {**sides, "even_k": problem.k % tiling.block_k == 0}


def _grid(problem: GemmProblem, settings: Mapping[str, Any]) -> tuple[int]:
    return (-(-problem.m // settings["block_m"]) * -(-problem.n // settings["block_n"]),)


class GemmTriton(Gemm, TritonOperator[GemmProblem]):
    """``gemm@triton``. All matrices are stored by rows."""

    summary = "Matrix product C = A·B by a Triton kernel"

    def configs(self, params: Params) -> Sequence[Params]:
        """Return tiles with warps and stages for each, no larger than the problem: 88 for a large one of 16 bits."""
        problem = self.read_problem(params)
        by = multiply_unit(params, problem.dtype)
        most_m, most_n, most_k = (next_power_of_two(side) for side in (problem.m, problem.n, problem.k))
        tilings = (
            TritonGemmTiling(min(m, most_m), min(n, most_n), min(k, most_k), warps, stages)
            for (m, n), k, (warps, stages) in itertools.product(BLOCK_MN, BLOCK_K[by], WARPS_STAGES)
        )
        return [asdict(tiling) for tiling in dict.fromkeys(tilings) if tiling.fits(problem.dtype, by)]

    def launch_on(self, params: Params, inputs: tuple[Tensor, ...], out: Tensor) -> TritonLaunch:
        """Return the launch on A, B and C."""
        problem = self.read_problem(params)
        precision = "tf32" if uses_tf32(params, problem.dtype) else "ieee"
        return TritonLaunch(
            kernel="gemm",
            args=(*inputs, out, problem.m, problem.n, problem.k),
            out=out,
            fixed={"group_m": GROUP_M, "precision": precision, "widen": is_triton_interpreted()},
            settings=partial(_settings, problem),
            grid=partial(_grid, problem),
        )


class GemmHelion(Gemm, HelionOperator[GemmProblem]):
    """``gemm@helion``."""

    summary = "Matrix product C = A·B by a Helion kernel, to be tuned by Helion"

    def settings(self, params: Params) -> dict[str, Any]:
        """Return the settings of the kernel, with the precision of its products."""
        precision = "tf32" if uses_tf32(params, str(params["dtype"])) else "ieee"
        return {**super().settings(params), "dot_precision": precision}


GEMM_TORCH: Workload = GemmTorch()
GEMM_TRITON: Workload = GemmTriton()
GEMM_HELION: Workload = GemmHelion()
