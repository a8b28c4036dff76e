"""Square matrix products ``sgemm``, ``hgemm`` and ``dgemm`` by PyTorch (cuBLAS on a GPU), and ``sgemm`` by numpy.

They are the base load of a power study: one large kernel per call, always the same, that fills the whole GPU. The size
is the requested one, or large enough to fill the GPU, and is checked against the free memory.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from assay.core.errors import BadInput, MachineCannot
from assay.workloads import numpy_support as data
from assay.workloads import numpy_support as reference
from assay.workloads.base import PreparedWorkload
from assay.workloads.numpy_support import DISTRIBUTIONS, tolerance_of
from assay.workloads.ops.gemm import make_matmul
from assay.workloads.parameters import ITEM_BYTES, GemmProblem, read_size
from assay.workloads.torch_device import free_bytes, free_host_bytes, import_torch, open_device
from assay.workloads.torch_support import TensorReference, TensorWork, TorchWorkload, draw_tensor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assay.core.results import Check
    from assay.core.values import Params, Scalar
    from assay.workloads.base import Workload
    from assay.workloads.torch_device import Tensor
    from assay.workloads.torch_support import RowSelection


FILL = "fill"
"""Value of ``n`` for a size that fills the device, resolved on the device."""

LARGEST_SIDE = 2**31 - 1
"""cuBLAS uses 32-bit row and column counts, and 64-bit element counts."""

TILE_ROWS, TILE_COLS = 128, 256
"""Output tile of one multiprocessor in cuBLAS's large kernels."""

TARGET_SIDES: Mapping[str, int] = {"float16": 16384, "float32": 16384, "float64": 8192}
"""Approximate size that fills a GPU: a few to some hundred milliseconds on current GPUs."""

TARGET_SIDE_SLOW_FLOAT64 = 4096
"""The same for float64 on GPUs with a float64 unit per 32 or 64 others."""

FAST_FLOAT64_CAPABILITIES = frozenset({(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)})
"""Compute capabilities of GPUs with float64 at half or all of the float32 rate."""

CPU_SIDE = 512
MEMORY_SHARE = 0.5
"""Largest share of the device's memory for ``fill``."""

CHECKED_AT_ONCE = 2**24
"""Elements of the second factor that are held in float64 at a time while a result is checked: 128 MiB."""

EXTRA_BYTES = 2**29
"""Memory beside the matrices: the library's workspace, and temporary data of the draw."""

_WHOLE_NUMBER = re.compile(r"[0-9]+")
_GIB = 2**30


@dataclass(frozen=True)
class GpuShape:
    """The properties of a GPU that determine the size that fills it."""

    multiprocessors: int
    memory_bytes: int
    capability: tuple[int, int]


def read_side(value: Scalar) -> int | None:
    """Parse a size; null for the one that fills the device."""
    text = str(value).strip()
    if isinstance(value, bool) or (text != FILL and not (_WHOLE_NUMBER.fullmatch(text) and int(text) >= 1)):
        raise BadInput(f"n is the word {FILL} or a whole number of at least 1, not {value!r}.")
    if text == FILL:
        return None
    if int(text) > LARGEST_SIDE:
        raise BadInput(f"n is at most {LARGEST_SIDE}, which is as far as cuBLAS counts rows, and {text} is more.")
    return int(text)


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
            f"{name} with n = {n} needs {needed / _GIB:.1f} GiB of memory, and {free_bytes / _GIB:.1f} GiB are free "
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

    def right(which: RowSelection) -> Tensor:
        rows = a[which].double()
        out = rows.new_zeros((rows.shape[0], n))
        for start in range(0, n, deep):
            out.addmm_(rows[:, start : start + deep], b[start : start + deep].double())
        return out

    return TensorReference(n, right, flop_per_row=2.0 * n * n, elements_per_row=3.0 * n)


class SquareGemmTorch(TorchWorkload):
    """A product of two n × n matrices into a preallocated third, ``repetitions`` times per call, one after another.

    ``n`` is ``fill`` or a number. TF32 is always off; a result rounded to it would not pass the check. The resolved
    n of ``fill`` is among the measured facts.
    """

    choices: Mapping[str, tuple[str, ...]] = {"distribution": DISTRIBUTIONS}

    def __init__(self, name: str, dtype: str, title: str) -> None:
        self.name, self._dtype = name, dtype
        self.summary = f"Square product C = A·B in {title} by cuBLAS, of a size that fills the GPU unless told"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the size, the products of one call, and the distribution of A and B."""
        return {"n": FILL, "repetitions": 1, "distribution": "normal"}

    def check_params(self, params: Params, device_kind: str) -> None:
        """Refuse an n that is neither a size nor ``fill``."""
        read_side(params["n"])

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


SGEMM_TORCH: Workload = SquareGemmTorch("sgemm", "float32", "float32 (TF32 off)")
HGEMM_TORCH: Workload = SquareGemmTorch("hgemm", "float16", "float16")
DGEMM_TORCH: Workload = SquareGemmTorch("dgemm", "float64", "float64")


SGEMM_DTYPE = "float32"


class SgemmNumpy:
    """``sgemm@numpy``: a product of two n × n matrices into a preallocated third, ``repetitions`` times per call."""

    name = "sgemm"
    impl = "numpy"
    device_kinds = frozenset({"cpu"})
    choices: Mapping[str, tuple[str, ...]] = {"distribution": data.DISTRIBUTIONS}
    summary = "Square product C = A·B in float32 on a CPU"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the size, the products of one call, and the distribution of A and B."""
        return {"n": FILL, "repetitions": 1, "distribution": "normal"}

    def configs(self, params: Params) -> Sequence[Params]:
        """Return no configurations: there is nothing to tune."""
        return ()

    def check_params(self, params: Params, device_kind: str) -> None:
        """Refuse an n that is neither a size nor ``fill``."""
        read_side(params["n"])

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> PreparedWorkload:
        """Check that it fits, draw A and B, and allocate C."""
        n, repetitions = read_side(params["n"]) or CPU_SIDE, read_size(params, "repetitions")
        check_side_fits(n, SGEMM_DTYPE, free_host_bytes(Path("/")), name=self.name, device=device)
        a, b = (
            data.draw_array(params["distribution"], (n, n), SGEMM_DTYPE, seed, stream=stream) for stream in range(2)
        )
        out = np.zeros((n, n), SGEMM_DTYPE)
        problem = GemmProblem(n, n, n, SGEMM_DTYPE)

        def call() -> None:
            for _ in range(repetitions):
                np.matmul(a, b, out=out)

        def check() -> Check:
            out.fill(np.nan)
            call()
            return reference.check_output(out, reference.reference_matmul(a, b), SGEMM_DTYPE)

        return PreparedWorkload(
            call=call,
            check=check,
            flop=problem.flop * repetitions,
            bytes_moved=problem.bytes_moved * repetitions,
            measured=lambda: {"n": float(n)},
        )


SGEMM_NUMPY: Workload = SgemmNumpy()
