"""A copy within a device's memory by PyTorch: ``Tensor.copy_`` from one tensor into another."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from assay.workloads.problems import Vector
from assay.workloads.torch_check import Truth
from assay.workloads.torch_common import DTYPES, TorchWorkload, Work
from assay.workloads.torch_data import draw
from assay.workloads.torch_device import open_device

if TYPE_CHECKING:
    from assay.core.values import Params
    from assay.workloads.base import Prepared, Workload


class MemcpyTorch(TorchWorkload):
    """``memcpy@torch``. It computes nothing, so its operations are null and its bytes are those read and written."""

    name = "memcpy"
    summary = "Copy of n elements within the device's memory by Tensor.copy_"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the elements, their dtype and distribution: 256 MiB on a GPU and 64 MiB on a CPU, beyond caches."""
        n = 2**26 if device_kind == "cuda" else 2**24
        return {"n": n, "dtype": "float32", "distribution": "normal"}

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> Prepared:
        """Draw what is copied, and set memory for the copy aside."""
        problem, where = Vector.of(params, DTYPES), open_device(device)
        x = draw(params["distribution"], (problem.n,), problem.dtype, seed, where=where)
        out = x.new_empty((problem.n,))
        return Work(
            call=partial(out.copy_, x),
            truth=Truth(problem.n, lambda which: x[which].double(), flop_per_row=0.0, elements_per_row=1.0),
            tolerance=0.0,
            flop=None,
            bytes_moved=problem.bytes_of(2),
            out=out,
        ).prepared(where=where, seed=seed)


WORKLOAD: Workload = MemcpyTorch()
