"""Matrix product by a Helion kernel of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.workloads import helion_common
from assay.workloads.gemm_torch import truth
from assay.workloads.helion_common import CHOICES, Problem
from assay.workloads.problems import Gemm
from assay.workloads.reference import tolerance
from assay.workloads.torch_common import Work, reads_tf32
from assay.workloads.torch_data import draw
from assay.workloads.torch_device import open_device, torch_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.values import Params
    from assay.workloads.base import Prepared, Workload


class GemmHelion:
    """``gemm@helion``. With ``tf32`` float32 is rounded to TF32 before products.

    A configuration is Helion's, each setting as JSON text; without one, Helion's default.
    """

    name = "gemm"
    impl = "helion"
    choices = CHOICES
    device_kinds = helion_common.device_kinds()
    summary = "Matrix product C = A·B by a Helion kernel, to be tuned by Helion"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the sizes in elements, the dtype and the distribution of A and B: 4096³ fills a GPU."""
        side = 4096 if device_kind == "cuda" else 64
        dtype = "bfloat16" if device_kind == "cuda" else "float32"
        return {"m": side, "n": side, "k": side, "dtype": dtype, "distribution": "normal", "tf32": False}

    def configs(self, params: Params) -> Sequence[Params]:
        """Return nothing: Helion's tuner draws configurations from a space of its own."""
        return ()

    def problem(self, params: Params, *, device: str, seed: int) -> Problem:
        """Draw A and B; a call makes C."""
        problem, where = Gemm.of(params, helion_common.DTYPES), open_device(device)
        a = draw(params["distribution"], (problem.m, problem.k), problem.dtype, seed, where=where, stream=0)
        b = draw(params["distribution"], (problem.k, problem.n), problem.dtype, seed, where=where, stream=1)
        precision = "tf32" if reads_tf32(params, problem.dtype) else "ieee"
        return Problem("gemm", (a, b), {"static_shapes": True, "dot_precision": precision})

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> Prepared:
        """Put the data in place; the kernel is compiled by the first call."""
        problem, kernel = Gemm.of(params, helion_common.DTYPES), self.problem(params, device=device, seed=seed)
        tf32 = reads_tf32(params, problem.dtype)
        a, b = kernel.args
        work = Work(
            call=kernel.call(config),
            truth=truth(a, b, problem),
            tolerance=tolerance("tf32" if tf32 else problem.dtype),
            flop=problem.flop,
            bytes_moved=problem.bytes_moved,
            backend=helion_common.backend_of,
        )
        return helion_common.prepared(work, where=torch_device(device), seed=seed)


WORKLOAD: Workload = GemmHelion()
