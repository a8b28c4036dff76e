"""Matrix product, by numpy, PyTorch, Triton and Helion.

The numpy version multiplies tiles in a choice of sizes and layouts; PyTorch's is ``torch.mm`` into a preallocated
output, which is cuBLAS on a GPU; the Triton kernel has a choice of tiles, warps and stages.
"""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from assay.core.errors import BadInput
from assay.workloads import helion_support as helion_common
from assay.workloads import numpy_support as data
from assay.workloads import numpy_support as reference
from assay.workloads import torch_support as torch_reference
from assay.workloads import triton_support as triton_common
from assay.workloads.base import PreparedWorkload, shared_data
from assay.workloads.helion_support import HELION_CHOICES, HelionProblem
from assay.workloads.numpy_support import NUMPY_CHOICES, tolerance_of
from assay.workloads.parameters import ITEM_BYTES, GemmProblem, block_sizes, check_choice, complete_config, read_size
from assay.workloads.torch_device import import_torch, open_device, torch_device
from assay.workloads.torch_support import (
    TORCH_DTYPES,
    TensorReference,
    TensorWork,
    TorchWorkload,
    draw_tensor,
    empty_output,
    uses_tf32,
)
from assay.workloads.triton_support import MOST_SHARED_BYTES, TRITON_CHOICES, TritonLaunch, next_power_of_two, tile_side

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
            return reference.check_output(out, reference.reference_matmul(a, b), problem.dtype)

        return PreparedWorkload(call=call, check=check, flop=problem.flop, bytes_moved=problem.bytes_moved)


GEMM_NUMPY: Workload = GemmNumpy()


def gemm_reference(a: Tensor, b: Tensor, problem: GemmProblem) -> TensorReference:
    """Return the reference of the product of two matrices."""
    flop_per_row, elements_per_row = 2.0 * problem.n * problem.k, problem.n + problem.k
    return TensorReference(
        problem.m, partial(torch_reference.reference_matmul_rows, a, b), flop_per_row, elements_per_row
    )


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


class GemmTorch(TorchWorkload):
    """``gemm@torch``. With ``tf32`` a GPU may round float32 to TF32 before it multiplies; otherwise it does not."""

    name = "gemm"
    summary = "Matrix product C = A·B by torch.mm"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the sizes in elements, the dtype and the distribution of A and B: 4096³ fills a GPU."""
        side = 4096 if device_kind == "cuda" else 512
        dtype = "bfloat16" if device_kind == "cuda" else "float32"
        return {"m": side, "n": side, "k": side, "dtype": dtype, "distribution": "normal", "tf32": False}

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> PreparedWorkload:
        """Draw A and B, and allocate C."""
        problem, where = GemmProblem.of(params, TORCH_DTYPES), open_device(device)
        tf32 = uses_tf32(params, problem.dtype)
        if tf32 and where == "cpu":
            raise BadInput("tf32 is for GPUs; a CPU has no such products.")
        a = draw_tensor(params["distribution"], (problem.m, problem.k), problem.dtype, seed, where=where, stream=0)
        b = draw_tensor(params["distribution"], (problem.k, problem.n), problem.dtype, seed, where=where, stream=1)
        out = a.new_empty((problem.m, problem.n))
        return TensorWork(
            call=make_matmul(a, b, out, tf32=tf32),
            reference=gemm_reference(a, b, problem),
            tolerance=tolerance_of("tf32" if tf32 else problem.dtype),
            flop=problem.flop,
            bytes_moved=problem.bytes_moved,
            out=out,
        ).prepare(where=where, seed=seed)


GEMM_TORCH: Workload = GemmTorch()


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


class GemmTriton:
    """``gemm@triton``. All matrices are stored by rows; with ``tf32`` float32 is rounded to TF32 before products."""

    name = "gemm"
    impl = "triton"
    choices = TRITON_CHOICES
    device_kinds = triton_common.triton_device_kinds()
    summary = "Matrix product C = A·B by a Triton kernel"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the sizes in elements, the dtype and the distribution of A and B: 4096³ fills a GPU."""
        side = 4096 if device_kind == "cuda" else 64
        dtype = "bfloat16" if device_kind == "cuda" else "float32"
        return {"m": side, "n": side, "k": side, "dtype": dtype, "distribution": "normal", "tf32": False}

    def configs(self, params: Params) -> Sequence[Params]:
        """Return tiles with warps and stages for each, no larger than the problem: 88 for a large one of 16 bits."""
        problem = GemmProblem.of(params, triton_common.TRITON_DTYPES)
        by = triton_common.multiply_unit(params, problem.dtype)
        most_m, most_n, most_k = (next_power_of_two(side) for side in (problem.m, problem.n, problem.k))
        tilings = (
            TritonGemmTiling(min(m, most_m), min(n, most_n), min(k, most_k), warps, stages)
            for (m, n), k, (warps, stages) in itertools.product(BLOCK_MN, BLOCK_K[by], WARPS_STAGES)
        )
        return [asdict(tiling) for tiling in dict.fromkeys(tilings) if tiling.fits(problem.dtype, by)]

    def launch(self, params: Params, *, device: str, seed: int) -> TritonLaunch:
        """Draw A and B, and allocate C."""
        problem, where = GemmProblem.of(params, triton_common.TRITON_DTYPES), open_device(device)
        a = draw_tensor(params["distribution"], (problem.m, problem.k), problem.dtype, seed, where=where, stream=0)
        b = draw_tensor(params["distribution"], (problem.k, problem.n), problem.dtype, seed, where=where, stream=1)
        out = empty_output(a, (problem.m, problem.n))
        precision = "tf32" if uses_tf32(params, problem.dtype) else "ieee"
        return TritonLaunch(
            kernel="gemm",
            args=(a, b, out, problem.m, problem.n, problem.k),
            out=out,
            fixed={"group_m": GROUP_M, "precision": precision, "widen": triton_common.is_triton_interpreted()},
            settings=partial(_settings, problem),
            grid=partial(_grid, problem),
        )

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> PreparedWorkload:
        """Create the data; the first call compiles the kernel."""
        problem, launch = (
            GemmProblem.of(params, triton_common.TRITON_DTYPES),
            self.launch(params, device=device, seed=seed),
        )
        tf32 = uses_tf32(params, problem.dtype)
        a, b = launch.args[:2]
        work = TensorWork(
            call=launch.call(complete_config(config, self.configs(params)[0])),
            reference=gemm_reference(a, b, problem),
            tolerance=tolerance_of("tf32" if tf32 else problem.dtype),
            flop=problem.flop,
            bytes_moved=problem.bytes_moved,
            out=launch.out,
            backend=triton_common.triton_backend,
        )
        return triton_common.prepare_triton_work(work, where=torch_device(device), seed=seed)


GEMM_TRITON: Workload = GemmTriton()


class GemmHelion:
    """``gemm@helion``. With ``tf32`` float32 is rounded to TF32 before products.

    A configuration is a Helion configuration, each setting as JSON text; the default is Helion's.
    """

    name = "gemm"
    impl = "helion"
    choices = HELION_CHOICES
    device_kinds = helion_common.helion_device_kinds()
    summary = "Matrix product C = A·B by a Helion kernel, to be tuned by Helion"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the sizes in elements, the dtype and the distribution of A and B: 4096³ fills a GPU."""
        side = 4096 if device_kind == "cuda" else 64
        dtype = "bfloat16" if device_kind == "cuda" else "float32"
        return {"m": side, "n": side, "k": side, "dtype": dtype, "distribution": "normal", "tf32": False}

    def configs(self, params: Params) -> Sequence[Params]:
        """Return no configurations: Helion's tuner has its own search space."""
        return ()

    def problem(self, params: Params, *, device: str, seed: int) -> HelionProblem:
        """Draw A and B; a call allocates C."""
        problem, where = GemmProblem.of(params, helion_common.HELION_DTYPES), open_device(device)
        a = draw_tensor(params["distribution"], (problem.m, problem.k), problem.dtype, seed, where=where, stream=0)
        b = draw_tensor(params["distribution"], (problem.k, problem.n), problem.dtype, seed, where=where, stream=1)
        precision = "tf32" if uses_tf32(params, problem.dtype) else "ieee"
        return HelionProblem("gemm", (a, b), {"static_shapes": True, "dot_precision": precision})

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> PreparedWorkload:
        """Create the data; the first call compiles the kernel."""
        problem, kernel = (
            GemmProblem.of(params, helion_common.HELION_DTYPES),
            self.problem(params, device=device, seed=seed),
        )
        tf32 = uses_tf32(params, problem.dtype)
        a, b = kernel.args
        work = TensorWork(
            call=kernel.call(config),
            reference=gemm_reference(a, b, problem),
            tolerance=tolerance_of("tf32" if tf32 else problem.dtype),
            flop=problem.flop,
            bytes_moved=problem.bytes_moved,
            backend=helion_common.helion_backend,
        )
        return helion_common.prepare_helion_work(work, where=torch_device(device), seed=seed)


GEMM_HELION: Workload = GemmHelion()
