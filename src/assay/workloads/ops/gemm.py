"""Matrix product, by numpy, PyTorch, Triton and Helion.

The numpy version multiplies tiles in a choice of sizes and layouts; PyTorch's is ``torch.mm`` into a preallocated
output, which is cuBLAS on a GPU; the Triton kernel has a choice of tiles, warps and stages.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

from assay.core.errors import BadInput, MachineCannot
from assay.workloads.base import PreparedWorkload, UntunedWorkload, shared_data
from assay.workloads.kernel_support import (
    MOST_SHARED_BYTES,
    HelionOperator,
    TritonLaunch,
    TritonOperator,
    is_triton_interpreted,
    launch_options,
    multiply_unit,
    next_power_of_two,
    tile_side,
)
from assay.workloads.numpy_support import (
    DISTRIBUTIONS,
    NumpyCall,
    NumpyOperator,
    draw_array,
    reference_matmul,
    tolerance_of,
)
from assay.workloads.parameters import ITEM_BYTES, GemmProblem, block_sizes, check_choice, read_size
from assay.workloads.torch_device import free_bytes, free_host_bytes, import_torch, open_device
from assay.workloads.torch_support import (
    TensorOperator,
    TensorReference,
    TensorWork,
    TorchOperator,
    draw_tensor,
    reference_matmul_rows,
    uses_tf32,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from assay.core.values import Params, Scalar
    from assay.workloads.base import Workload
    from assay.workloads.numpy_support import ArrayShape, Floats
    from assay.workloads.torch_device import Tensor
    from assay.workloads.torch_support import RowSelection

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


class GemmNumpy(NumpyOperator[GemmProblem]):
    """``gemm@numpy``. Layout "row" stores B by rows, "column" by columns, that is transposed."""

    name = "gemm"
    problem_type = GemmProblem
    summary = "Matrix product C = A·B, tiled, on a CPU"
    params: ClassVar[Params] = {"m": 256, "n": 256, "k": 256, "dtype": "float32"}

    def configs(self, params: Params) -> Sequence[Params]:
        """Return every combination of tile sizes and layouts, at most 54."""
        problem = self.read_problem(params)
        m, n, k = (block_sizes(BLOCKS, limit) for limit in (problem.m, problem.n, problem.k))
        return [asdict(NumpyGemmTiling(*sizes)) for sizes in itertools.product(m, n, k, LAYOUTS)]

    def make_call(self, problem: GemmProblem, config: Params, draw: Callable[[ArrayShape, int], Floats]) -> NumpyCall:
        """Draw A and B, lay B out, and allocate memory."""
        tiling = NumpyGemmTiling.of(config)
        a, b = (draw(shape, stream) for stream, shape in enumerate(problem.input_shapes))
        b = shared_data(("b", tiling.layout), lambda: np.asarray(b, order="C" if tiling.layout == "row" else "F"))
        out = shared_data("out", lambda: np.zeros(problem.output_shape, problem.dtype))
        scratch = np.zeros((min(tiling.block_m, problem.m), min(tiling.block_n, problem.n)), problem.dtype)
        return NumpyCall(lambda: multiply_tiled(a, b, out, scratch, tiling), out, lambda: reference_matmul(a, b))


def make_matmul(a: Tensor, b: Tensor, out: Tensor, *, tf32: bool) -> Callable[[], Tensor]:
    """Return a call that writes a·b into ``out``.

    TF32 is off for the whole process except for the calls that request it: they switch it on and off, which costs
    about a microsecond.
    """
    torch = import_torch()
    matmul = torch.backends.cuda.matmul
    matmul.fp32_precision = "ieee"
    plain: Callable[[], Tensor] = partial(torch.mm, a, b, out=out)

    def rounded() -> Tensor:
        matmul.fp32_precision = "tf32"
        try:
            return plain()
        finally:
            matmul.fp32_precision = "ieee"

    return rounded if tf32 else plain


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
        return cls(m, n, k, **launch_options(config))

    def fits(self, dtype: str, multiplied_by: str) -> bool:
        """Return whether it should fit the shared memory and registers of a large GPU."""
        shared = self.num_stages * self.block_k * (self.block_m + self.block_n) * ITEM_BYTES[dtype]
        sums = self.block_m * self.block_n / (32 * self.num_warps)
        return shared <= MOST_SHARED_BYTES and sums <= MOST_SUMS_PER_THREAD[multiplied_by]


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

        def settings(config: Params) -> dict[str, int | bool]:
            tiling = TritonGemmTiling.of(config)
            sides = {"block_m": tiling.block_m, "block_n": tiling.block_n, "block_k": tiling.block_k}
            return {**sides, "even_k": problem.k % tiling.block_k == 0}

        def grid(settings: Mapping[str, Any]) -> tuple[int]:
            return (-(-problem.m // settings["block_m"]) * -(-problem.n // settings["block_n"]),)

        precision = "tf32" if uses_tf32(params, problem.dtype) else "ieee"
        fixed = {"group_m": GROUP_M, "precision": precision, "widen": is_triton_interpreted()}
        return TritonLaunch("gemm", (*inputs, out, problem.m, problem.n, problem.k), out, fixed, settings, grid)


class GemmHelion(Gemm, HelionOperator[GemmProblem]):
    """``gemm@helion``."""

    summary = "Matrix product C = A·B by a Helion kernel, to be tuned by Helion"

    def settings(self, params: Params) -> dict[str, Any]:
        """Return the settings of the kernel, with the precision of its products."""
        precision = "tf32" if uses_tf32(params, str(params["dtype"])) else "ieee"
        return {**super().settings(params), "dot_precision": precision}


GEMM_NUMPY: Workload = GemmNumpy()
GEMM_TORCH: Workload = GemmTorch()
GEMM_TRITON: Workload = GemmTriton()
GEMM_HELION: Workload = GemmHelion()

FILL = "fill"  # value of ``n`` for a size that fills the device, resolved on the device
LARGEST_SIDE = 2**31 - 1  # cuBLAS uses 32-bit row and column counts, and 64-bit element counts
TILE_ROWS, TILE_COLS = 128, 256  # output tile of one multiprocessor in cuBLAS's large kernels

TARGET_SIDES: Mapping[str, int] = {"float16": 16384, "float32": 16384, "float64": 8192}
"""Approximate size that fills a GPU: a few to some hundred milliseconds on current GPUs."""

TARGET_SIDE_SLOW_FLOAT64 = 4096  # the same for float64 on GPUs with a float64 unit per 32 or 64 others

FAST_FLOAT64_CAPABILITIES = frozenset({(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)})
"""Compute capabilities of GPUs with float64 at half or all of the float32 rate."""

CPU_SIDE = 512
MEMORY_SHARE = 0.5  # largest share of the device's memory for ``fill``

CHECKED_AT_ONCE = 2**24
"""Elements of the second factor that are held in float64 at a time while a result is checked: 128 MiB."""

EXTRA_BYTES = 2**29  # memory beside the matrices: the library's workspace, and temporary data of the draw


def read_side(value: Scalar) -> int | None:
    """Parse a size; null for the one that fills the device."""
    text = str(value).strip()
    if text == FILL:
        return None
    if isinstance(value, bool) or not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise BadInput(f"n is the word {FILL} or a whole number of at least 1, not {value!r}.")
    if int(text) > LARGEST_SIDE:
        raise BadInput(f"n is at most {LARGEST_SIDE}, which is as far as cuBLAS counts rows, and {text} is more.")
    return int(text)


class GpuShape(NamedTuple):
    """The properties of a GPU that determine the size that fills it."""

    multiprocessors: int
    memory_bytes: int
    capability: tuple[int, int]


def filling_side(card: GpuShape, dtype: str) -> int:
    """Return the n whose tiles fill a GPU's multiprocessors in waves with the fewest idle in the last one.

    It is the multiple of a tile within a tenth of the target with the smallest idle share, and of equal ones the
    nearest to the target. A GPU with little memory gets the largest multiple that leaves enough of it.
    """
    few = dtype == "float64" and card.capability not in FAST_FLOAT64_CAPABILITIES
    target = TARGET_SIDE_SLOW_FLOAT64 if few else TARGET_SIDES[dtype]
    most = largest_side(int(card.memory_bytes * MEMORY_SHARE), dtype)
    if most < target:
        return max(TILE_COLS, most // TILE_COLS * TILE_COLS)
    near = range(target * 9 // 10 // TILE_COLS * TILE_COLS, target * 11 // 10 + 1, TILE_COLS)
    return min((n for n in near if n <= most), key=lambda n: (idle_share(n, card.multiprocessors), abs(n - target)))


def idle_share(n: int, multiprocessors: int) -> float:
    """Return the share of the multiprocessors' time that is lost in the last wave of tiles."""
    tiles = -(-n // TILE_ROWS) * -(-n // TILE_COLS)
    waves = -(-tiles // multiprocessors)
    return 1 - tiles / (waves * multiprocessors)


def needed_bytes(n: int, dtype: str) -> int:
    """Return the memory of three matrices and of the check of the result, in bytes."""
    wide = 2 * 8 * min(n * n, max(n, CHECKED_AT_ONCE))
    return 3 * n * n * ITEM_BYTES[dtype] + wide + (EXTRA_BYTES if n > CPU_SIDE else 0)


def largest_side(free_bytes: int, dtype: str) -> int:
    """Return the largest n whose matrices fit into ``free_bytes``; 0 where none does."""
    low, high = 0, math.isqrt(max(0, free_bytes)) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if needed_bytes(middle, dtype) <= free_bytes else (low, middle)
    return low


def check_side_fits(n: int, dtype: str, free_bytes: int, *, name: str, device: str) -> None:
    """Refuse a size that does not fit into memory, before allocating any."""
    needed = needed_bytes(n, dtype)
    if needed > free_bytes:
        raise MachineCannot(
            f"{name} with n = {n} needs {needed / 2**30:.1f} GiB of memory, and {free_bytes / 2**30:.1f} GiB are free "
            f"on {device}: the largest n that fits is {largest_side(free_bytes, dtype)}."
        )


def gpu_shape(where: str) -> GpuShape:
    """Return the properties of a GPU that determine the size that fills it."""
    properties = import_torch().cuda.get_device_properties(where)
    return GpuShape(properties.multi_processor_count, properties.total_memory, (properties.major, properties.minor))


def square_gemm_reference(a: Tensor, b: Tensor) -> TensorReference:
    """Return the reference of the product, summed over two or more parts of the depth.

    That limits the float64 copy of b, and avoids checking float64 against the same call.
    """
    n = a.shape[0]
    deep = max(1, min(CHECKED_AT_ONCE // n, (n + 1) // 2))

    def compute_rows(which: RowSelection) -> Tensor:
        rows = a[which].double()
        out = rows.new_zeros((rows.shape[0], n))
        for start in range(0, n, deep):
            out.addmm_(rows[:, start : start + deep], b[start : start + deep].double())
        return out

    return TensorReference(n, compute_rows, flop_per_row=2.0 * n * n, elements_per_row=3.0 * n)


class SquareGemm(UntunedWorkload):
    """A product of two n × n matrices into a preallocated third, ``repetitions`` times per call, one after another.

    ``n`` is ``fill`` or a number; the resolved n is among the measured facts.
    """

    choices: Mapping[str, tuple[str, ...]] = {"distribution": DISTRIBUTIONS}

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the size, the products of one call, and the distribution of A and B."""
        return {"n": FILL, "repetitions": 1, "distribution": "normal"}

    def check_params(self, params: Params, device_kind: str) -> None:
        """Refuse an n that is neither a size nor ``fill``."""
        read_side(params["n"])


class SquareGemmTorch(SquareGemm):
    """``sgemm``, ``hgemm`` and ``dgemm@torch``. TF32 is always off; a result rounded to it would not pass the check."""

    impl = "torch"
    device_kinds = frozenset({"cpu", "cuda"})

    def __init__(self, name: str, dtype: str, title: str) -> None:
        self.name, self._dtype = name, dtype
        self.summary = f"Square product C = A·B in {title} by cuBLAS, by default of a size that fills the GPU"

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> PreparedWorkload:
        """Resolve the size, check that it fits, draw A and B, and allocate C."""
        requested, repetitions, where = read_side(params["n"]), read_size(params, "repetitions"), open_device(device)
        n = requested or (CPU_SIDE if where == "cpu" else filling_side(gpu_shape(where), self._dtype))
        check_side_fits(n, self._dtype, free_bytes(where), name=self.name, device=device)
        problem = GemmProblem(n, n, n, self._dtype)
        a, b = (
            draw_tensor(params["distribution"], (n, n), self._dtype, seed, where=where, stream=stream)
            for stream in range(2)
        )
        out = a.new_empty((n, n))
        multiply = make_matmul(a, b, out, tf32=False)

        def call() -> Tensor:
            for _ in range(repetitions):
                multiply()
            return out

        work = TensorWork(
            call=multiply if repetitions == 1 else call,
            reference=square_gemm_reference(a, b),
            tolerance=tolerance_of(self._dtype),
            flop=problem.flop * repetitions,
            bytes_moved=problem.bytes_moved * repetitions,
            out=out,
        )
        return replace(work.prepare(where=where, seed=seed), measured=lambda: {"n": float(n)})


class SgemmNumpy(SquareGemm):
    """``sgemm@numpy``."""

    name = "sgemm"
    impl = "numpy"
    device_kinds = frozenset({"cpu"})
    summary = "Square product C = A·B in float32 on a CPU"

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> PreparedWorkload:
        """Check that it fits, draw A and B, and allocate C."""
        n, repetitions, dtype = read_side(params["n"]) or CPU_SIDE, read_size(params, "repetitions"), "float32"
        check_side_fits(n, dtype, free_host_bytes(Path("/")), name=self.name, device=device)
        a, b = (draw_array(params["distribution"], (n, n), dtype, seed, stream=stream) for stream in range(2))
        out = np.zeros((n, n), dtype)
        problem = GemmProblem(n, n, n, dtype)

        def call() -> None:
            for _ in range(repetitions):
                np.matmul(a, b, out=out)

        return PreparedWorkload(
            call=call,
            check=partial(NumpyCall(call, out, lambda: reference_matmul(a, b)).check, dtype),
            flop=problem.flop * repetitions,
            bytes_moved=problem.bytes_moved * repetitions,
            measured=lambda: {"n": float(n)},
        )


SGEMM_TORCH: Workload = SquareGemmTorch("sgemm", "float32", "float32 (TF32 off)")
HGEMM_TORCH: Workload = SquareGemmTorch("hgemm", "float16", "float16")
DGEMM_TORCH: Workload = SquareGemmTorch("dgemm", "float64", "float64")
SGEMM_NUMPY: Workload = SgemmNumpy()
