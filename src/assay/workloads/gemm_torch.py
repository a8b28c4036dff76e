"""Matrix product by PyTorch: ``torch.mm`` into a kept output, which is cuBLAS on a GPU."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from assay.core.errors import BadInput
from assay.workloads import torch_reference
from assay.workloads.problems import Gemm
from assay.workloads.reference import tolerance
from assay.workloads.torch_check import Truth
from assay.workloads.torch_common import DTYPES, TorchWorkload, Work, reads_tf32
from assay.workloads.torch_data import draw
from assay.workloads.torch_device import import_torch, open_device

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.core.values import Params
    from assay.workloads.base import Prepared, Workload
    from assay.workloads.torch_device import Tensor


def truth(a: Tensor, b: Tensor, problem: Gemm) -> Truth:
    """Return what the product of two matrices must be."""
    flop_per_row, elements_per_row = 2.0 * problem.n * problem.k, problem.n + problem.k
    return Truth(problem.m, partial(torch_reference.matmul, a, b), flop_per_row, elements_per_row)


def multiplier(a: Tensor, b: Tensor, out: Tensor, *, tf32: bool) -> Callable[[], Tensor]:
    """Return a call that writes a·b into ``out``.

    TF32 is off for the whole process but for the calls that want it: they switch it on and off again, which costs
    them about a microsecond.
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

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> Prepared:
        """Draw A and B, and set C aside."""
        problem, where = Gemm.of(params, DTYPES), open_device(device)
        tf32 = reads_tf32(params, problem.dtype)
        if tf32 and where == "cpu":
            raise BadInput("tf32 is for GPUs; a CPU has no such products.")
        a = draw(params["distribution"], (problem.m, problem.k), problem.dtype, seed, where=where, stream=0)
        b = draw(params["distribution"], (problem.k, problem.n), problem.dtype, seed, where=where, stream=1)
        out = a.new_empty((problem.m, problem.n))
        return Work(
            call=multiplier(a, b, out, tf32=tf32),
            truth=truth(a, b, problem),
            tolerance=tolerance("tf32" if tf32 else problem.dtype),
            flop=problem.flop,
            bytes_moved=problem.bytes_moved,
            out=out,
        ).prepared(where=where, seed=seed)


WORKLOAD: Workload = GemmTorch()
