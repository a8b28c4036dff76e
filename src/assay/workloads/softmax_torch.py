"""Softmax of each row by PyTorch: ``torch.softmax`` into a kept output."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from assay.workloads import torch_reference
from assay.workloads.problems import Softmax
from assay.workloads.reference import tolerance
from assay.workloads.torch_check import Truth
from assay.workloads.torch_common import DTYPES, TorchWorkload, Work
from assay.workloads.torch_data import draw
from assay.workloads.torch_device import import_torch, open_device

if TYPE_CHECKING:
    from assay.core.values import Params
    from assay.workloads.base import Prepared, Workload
    from assay.workloads.torch_device import Tensor


def truth(x: Tensor, problem: Softmax) -> Truth:
    """Return what the softmax of each row must be."""
    return Truth(problem.rows, partial(torch_reference.softmax, x), 5.0 * problem.cols, problem.cols)


class SoftmaxTorch(TorchWorkload):
    """``softmax@torch``."""

    name = "softmax"
    summary = "Softmax of each row of a matrix by torch.softmax"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the sizes in elements, the dtype and the distribution of the input: 4096² fills a GPU."""
        side = 4096 if device_kind == "cuda" else 1024
        return {"rows": side, "cols": side, "dtype": "float32", "distribution": "normal"}

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> Prepared:
        """Draw the input, and set the output aside."""
        problem, where = Softmax.of(params, DTYPES), open_device(device)
        x = draw(params["distribution"], problem.shape, problem.dtype, seed, where=where)
        out = x.new_empty(problem.shape)
        return Work(
            call=partial(import_torch().softmax, x, -1, out=out),
            truth=truth(x, problem),
            tolerance=tolerance(problem.dtype),
            flop=problem.flop,
            bytes_moved=problem.bytes_moved,
            out=out,
        ).prepared(where=where, seed=seed)


WORKLOAD: Workload = SoftmaxTorch()
